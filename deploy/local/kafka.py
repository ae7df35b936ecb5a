"""Kafka 4.1 in KRaft mode, one process that is broker and controller."""

import base64
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.local.command import run
from deploy.local.home import make_folder
from deploy.local.leash import Leash
from deploy.local.ports import HOST, is_open, require_free
from deploy.local.profile import Profile
from deploy.local.server import Server

OFFSETS_RETENTION_MINUTES = 366 * 24 * 60  # a pipeline that rests for months must find its positions again
MESSAGE_BYTES_MAX = 10 * 2**20
DEDUPE_BUFFER_BYTES = 32 * 2**20  # 1.2 million keys in one pass of the cleaner; the default of 128 MiB is half the heap
ANSWER_LIMIT_S = 2.0

LOG4J = """\
rootLogger.level=warn
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %m (%c)%n
"""


def properties(port: int, controller_port: int, log_folder: Path) -> str:
    """server.properties; every line that differs from Kafka's default says why, where it is not plain."""
    lines = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": log_folder,
        # one broker holds the only copy of everything
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        # a mistyped topic is an error, not a new topic with the wrong settings
        "auto.create.topics.enable": "false",
        # after a crash the broker is let in again only when its old session has ended; the default of 9 s is for
        # clusters, where another broker could serve meanwhile
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 0,
        "offsets.retention.minutes": OFFSETS_RETENTION_MINUTES,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "replica.fetch.max.bytes": MESSAGE_BYTES_MAX,
        # compacted logs are read as a whole at every restore: keep them short
        "log.cleaner.backoff.ms": 5000,
        "log.cleaner.min.cleanable.ratio": 0.2,
        "log.cleaner.dedupe.buffer.size": DEDUPE_BUFFER_BYTES,
        # a machine of a few cores
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


class Kafka(Server):
    name = "kafka"

    def __init__(
        self, home: Path, leash: Leash, jars: Path, java: Path, port: int, controller_port: int, profile: Profile
    ) -> None:
        super().__init__(home, leash)
        self.address = f"{HOST}:{port}"
        self._jars, self._java = jars, java / "bin" / "java"
        self._port, self._controller_port, self._profile = port, controller_port, profile

    @property
    def argument(self) -> str:
        return f"-Dstrobe.folder={self.folder}"

    def require_ports(self) -> None:
        require_free(self._port, "Kafka", "kafka")
        require_free(self._controller_port, "Kafka's controller", "controller")

    def prepare(self) -> None:
        logs = make_folder(self.folder) / "logs"
        settings = self.folder / "server.properties"
        settings.write_text(properties(self._port, self._controller_port, logs))
        (self.folder / "log4j2.properties").write_text(LOG4J)
        if not (logs / "meta.properties").exists():  # written last by the formatting
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            # With "=": one id in 64 begins with "-", which would pass for another option.
            tool = [
                "kafka.tools.StorageTool",
                "format",
                "--ignore-formatted",
                f"--cluster-id={cluster}",
                "-c",
                str(settings),
            ]
            run(
                [str(self._java), *self._profile.jvm_small, "-cp", f"{self._jars}/*", *tool],
                log=self.log,
                environ=self.environ(),
                failed="Kafka's folder cannot be formatted",
            )

    def command(self) -> Sequence[str]:
        return [
            str(self._java),
            *self._profile.kafka_jvm,
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            self.argument,
            "-cp",
            f"{self._jars}/*",
            "kafka.Kafka",
            str(self.folder / "server.properties"),
        ]

    def environ(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("JAVA_TOOL_OPTIONS")}

    def answers(self) -> bool:
        """An open port is not enough: the broker must name itself in the metadata."""
        if not is_open(self._port):
            return False
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "socket.timeout.ms": 2000})
        try:
            return bool(admin.list_topics(timeout=ANSWER_LIMIT_S).brokers)
        except KafkaException:
            return False
