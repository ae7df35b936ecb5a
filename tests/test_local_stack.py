"""The local servers as they really are: they answer, keep what they got over crashes, and leave nothing behind."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local import process
from deploy.local.error import LocalStackError
from deploy.local.home import default_home
from deploy.local.leash import ROOT
from deploy.local.ports import Ports
from deploy.local.stack import LocalStack

if TYPE_CHECKING:
    from tests.conftest import Stack

pytestmark = pytest.mark.stack
DOWNLOADS = default_home(os.environ, os.geteuid())


def ask(url: str, statement: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def test_the_database_is_durable_silent_and_ours(stack: "Stack") -> None:
    settings = "current_setting('fsync'), current_setting('timescaledb.telemetry_level'), current_setting('jit')"
    assert ask(stack.database(), f"SELECT {settings}") == [("on", "off", "off")]
    assert ask(stack.database(), "SELECT count(*) FROM pg_extension WHERE extname = 'timescaledb'") == [(1,)]
    for role in ("owner", "writer", "reader"):
        assert ask(stack.database(role), "SELECT current_user") == [(f"strobe_{role}",)]


def test_a_wrong_password_does_not_enter(stack: "Stack") -> None:
    password = stack.database("reader").partition("strobe_reader:")[2].partition("@")[0]
    with pytest.raises(psycopg2.OperationalError, match="password"):
        ask(stack.database("reader").replace(password, "guessed"), "SELECT 1")


def test_a_mistyped_topic_is_not_created(stack: "Stack") -> None:
    consumer = Consumer({"bootstrap.servers": stack.settings().kafka, "group.id": "none"})
    assert "mistyped" not in consumer.list_topics("mistyped", timeout=10).topics or (
        consumer.list_topics("mistyped", timeout=10).topics["mistyped"].error is not None
    )
    consumer.close()


def test_kafka_keeps_messages_and_positions_when_killed(stack: "Stack") -> None:
    topic = f"kept.{uuid.uuid4().hex}"
    address = {"bootstrap.servers": stack.settings().kafka}
    admin = AdminClient(address)  # kept: its answers end with it
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(address | {"acks": "all"})
    for number in range(100):
        producer.produce(topic, str(number).encode())
    assert producer.flush(30) == 0
    group = Consumer(address | {"group.id": topic})
    group.commit(offsets=[TopicPartition(topic, 0, 42)], asynchronous=False)
    group.close()

    stack.kill("kafka")
    assert not stack.alive("kafka")
    stack.start("kafka")

    group = Consumer(address | {"group.id": topic})
    assert group.committed([TopicPartition(topic, 0)], timeout=30)[0].offset == 42
    assert group.get_watermark_offsets(TopicPartition(topic, 0), timeout=30) == (0, 100)
    group.close()


def test_the_database_keeps_what_was_committed_when_killed(stack: "Stack") -> None:
    table = f"kept_{uuid.uuid4().hex}"
    ask(stack.database(), f"CREATE TABLE {table} AS SELECT 7 AS seven")
    stack.kill("database")
    assert not stack.alive("database")
    stack.start("database")
    assert ask(stack.database(), f"SELECT seven FROM {table}") == [(7,)]
    ask(stack.database(), f"DROP TABLE {table}")


def test_the_registry_keeps_schemas_when_killed(stack: "Stack") -> None:
    subject = f"{stack.settings().registry}/subjects/kept.{uuid.uuid4().hex}-value"
    body = json.dumps({"schema": '"string"'}).encode()
    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    posted = urllib.request.Request(f"{subject}/versions", body, kind)  # noqa: S310 - our own server
    number = json.load(urllib.request.urlopen(posted))["id"]  # noqa: S310 - our own server
    stack.kill("registry")
    stack.start("registry")
    kept = json.load(urllib.request.urlopen(f"{subject}/versions/latest"))  # noqa: S310 - our own server
    assert (kept["id"], kept["schema"]) == (number, '"string"')


def test_a_server_that_was_stopped_starts_again(stack: "Stack") -> None:
    for name in ("registry", "kafka"):
        stack.stop(name)
        assert not stack.alive(name)
        stack.start(name)
        assert stack.alive(name)


# --- a database alone, in a home of its own, so that it can be treated badly ---


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="strobe-test-"))
    folder.chmod(0o755)
    yield folder
    process.kill(process.find(f"strobe.folder={folder / 'data' / 'database'}"))
    shutil.rmtree(folder)


def database_in(home: Path) -> LocalStack:
    return LocalStack(home, Ports.any_free(), "test", servers=("database",), downloads=DOWNLOADS)


def test_a_killed_supervisor_leaves_no_server_and_its_data_go_on(home: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from deploy.local.ports import Ports\n"
        "from deploy.local.stack import LocalStack\n"
        "stack = LocalStack(Path(sys.argv[1]), Ports.any_free(), 'test', servers=('database',),"
        " downloads=Path(sys.argv[2]))\n"
        "stack.start(); print(stack.database(), flush=True); input()"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, str(home), str(DOWNLOADS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert supervisor.stdout is not None
    ask(supervisor.stdout.readline().decode().strip(), "CREATE TABLE kept AS SELECT 7 AS seven")
    servers = process.find(f"strobe.folder={home / 'data' / 'database'}")
    assert servers

    second = database_in(home)
    with pytest.raises(LocalStackError, match=str(supervisor.pid)):
        second.start()
    second.stop()
    assert all(process.exists(pid) for pid in servers)  # the attempt did no harm

    supervisor.kill()
    supervisor.communicate()
    assert process.await_end(servers, 30.0)
    second.start()
    assert ask(second.database(), "SELECT seven FROM kept") == [(7,)]
    second.stop()
    assert process.find(f"strobe.folder={home / 'data' / 'database'}") == []


def test_a_process_number_left_by_a_crash_that_is_somebody_elses_now_is_no_obstacle(home: Path) -> None:
    stack = database_in(home)
    stack.start()
    left = (home / "data" / "database" / "postmaster.pid").read_text().splitlines()
    stack.kill("database")
    stranger = subprocess.Popen(["sleep", "60"])
    (home / "data" / "database" / "postmaster.pid").write_text("\n".join([str(stranger.pid), *left[1:]]) + "\n")
    stack.start_server("database")
    assert ask(stack.database(), "SELECT 1") == [(1,)]
    assert stranger.poll() is None
    stack.stop()
    stranger.kill()
    stranger.wait()


def test_lost_passwords_are_made_anew(home: Path) -> None:
    first = database_in(home)
    first.start()
    first.stop()
    (home / "secrets.json").unlink()
    second = database_in(home)
    second.start()
    assert first.database() != second.database()
    assert ask(second.database(), "SELECT current_user") == [("strobe_owner",)]
    second.stop()


def test_data_of_another_postgresql_are_not_touched(home: Path) -> None:
    stack = database_in(home)
    stack.start()
    stack.stop()
    (home / "data" / "database" / "PG_VERSION").write_text("12\n")
    with pytest.raises(LocalStackError, match="PostgreSQL 12"):
        database_in(home).start()
