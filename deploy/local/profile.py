"""How much memory and compilation the servers get: for a pipeline that runs, or for tests that start often."""

from dataclasses import dataclass

_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # starts in 2 s of CPU; half the throughput of C2
_COMMON = ("--enable-native-access=ALL-UNNAMED", "-Djava.awt.headless=true")


@dataclass(frozen=True)
class Profile:
    kafka_jvm: tuple[str, ...]
    registry_jvm: tuple[str, ...]
    shared_buffers_mb: int
    max_wal_mb: int
    jvm_small: tuple[str, ...] = ("-Xmx128m", *_SMALL, *_COMMON)


PROFILES = {
    # a cold JVM costs 2-3 times more per byte; G1 keeps the pauses below a view's emission interval
    "run": Profile(
        kafka_jvm=("-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", *_COMMON),
        registry_jvm=("-Xmx192m", *_SMALL, *_COMMON),
        shared_buffers_mb=512,
        max_wal_mb=4096,
    ),
    "test": Profile(
        kafka_jvm=("-Xms128m", "-Xmx256m", *_SMALL, *_COMMON),
        registry_jvm=("-Xmx192m", *_SMALL, *_COMMON),
        shared_buffers_mb=128,
        max_wal_mb=1024,
    ),
}
