"""Kafka and the schema registry as Maven artifacts, unpacked under STROBE_HOME/servers once for each version."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from deploy.local import java
from deploy.local.command import Progress, megabytes, run
from deploy.local.error import LocalStackError
from deploy.local.home import drop_parts, locked, make_folder, new_part, require_room

KAFKA = "4.1.0"
KAFKA_MB = 250  # peak while fetching: Maven's own copy, its plugins, the jars
APICURIO = "3.3.3"
APICURIO_MB = 600  # peak: Maven's copy, ours, the unpacked one

POM = f"""\
<project>
 <modelVersion>4.0.0</modelVersion><groupId>strobe</groupId><artifactId>kafka</artifactId><version>1</version>
 <dependencies>
  <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version></dependency>
  <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA}</version></dependency>
 </dependencies>
</project>
"""


def provision_kafka(servers: Path, progress: Progress) -> Path:
    """The folder of Kafka's jars."""
    done = servers / f"kafka-{KAFKA}"
    with locked(servers / ".kafka.lock", lambda: progress("kafka", "another process fetches it")):
        drop_parts(servers, done.name)
        if not done.exists():
            require_room(servers, KAFKA_MB, "fetching Kafka")
            work = new_part(servers, done.name)
            (work / "pom.xml").write_text(POM)
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
            _maven(work, goal, "kafka", f"Kafka {KAFKA}", 125, progress)
            (work / "jars").rename(done)
            shutil.rmtree(work)
    return done


def provision_apicurio(servers: Path, progress: Progress) -> Path:
    """The folder that holds quarkus-run.jar."""
    done = servers / f"apicurio-{APICURIO}"
    with locked(servers / ".apicurio.lock", lambda: progress("registry", "another process fetches it")):
        drop_parts(servers, done.name)
        if not done.exists():
            require_room(servers, APICURIO_MB, "fetching the schema registry")
            work = new_part(servers, done.name)
            artifact = f"io.apicurio:apicurio-registry-app:{APICURIO}:tar.gz:all"
            goal = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={work}"]
            _maven(work, goal, "registry", f"Apicurio Registry {APICURIO}", 340, progress)
            progress("registry", "unpacking")
            unpacked = make_folder(work / "unpacked")
            archive = next(work.glob("*.tar.gz"))  # by tar: Debian 12's Python lacks tarfile's safe filters
            log = servers.parent / "logs" / "fetch-registry.log"
            run(
                ["tar", "-xzf", archive, "-C", unpacked, "--no-same-owner"],
                log=log,
                failed="cannot unpack the registry",
            )
            next(unpacked.rglob("quarkus-run.jar")).parent.rename(done)
            shutil.rmtree(work)
    return done


def _maven(work: Path, goal: Sequence[str], server: str, name: str, about_mb: int, progress: Progress) -> None:
    """Maven with a repository of its own, dropped afterwards: two at once in one repository disturb each other."""
    program, environ = java.maven(os.environ)
    make_folder(work.parent.parent / "logs")
    log = work.parent.parent / "logs" / f"fetch-{server}.log"
    progress(server, f"fetching {name}")
    output = run(
        [program, "-q", "-B", "-ntp", f"-Dmaven.repo.local={work / 'repository'}", *goal],
        log=log,
        environ=environ,
        folder=work,
        failed=f"Maven cannot fetch {name}; is there a network? (a proxy or mirror belongs into ~/.m2/settings.xml)",
        report=lambda: progress(server, f"fetching {name}, {megabytes(work)} of about {about_mb} MB"),
    )
    if not any(work.glob("jars/*.jar")) and not any(work.glob("*.tar.gz")):
        raise LocalStackError(f"Maven fetched nothing for {name}: {' '.join(output.split())[:200]} (see {log})")
