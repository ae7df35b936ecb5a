"""Topics on a real broker: made once, checked ever after, and one clear line for whatever is wrong."""

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from schemas.admin import Admin, AdminError, BrokerAwayError, MissingTopicError, WrongTopicError
from schemas.settings import Settings
from schemas.topics import TopicSpec, partials_topic, view_topic

if TYPE_CHECKING:
    from tests.conftest import Stack

NOBODY = "127.0.0.1:1"  # a port where nobody listens
PATIENCE_S = 1.0


def spec(**changes: object) -> TopicSpec:
    """A small topic with a name of its own."""
    plain = TopicSpec(
        f"test.{uuid.uuid4().hex}",
        2,
        1,
        "may be more",
        {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def lines(error: pytest.ExceptionInfo[Exception]) -> list[str]:
    return str(error.value).splitlines()


def test_a_broker_that_is_away_ends_in_one_line_with_its_address_and_the_remedy() -> None:
    with pytest.raises(BrokerAwayError, match=r"127\.0\.0\.1:1 .* set STROBE_KAFKA") as error:
        Admin(NOBODY, PATIENCE_S).ensure([spec()])
    assert len(lines(error)) == 1


def test_every_question_to_a_broker_that_is_away_ends() -> None:
    admin = Admin(NOBODY, PATIENCE_S)
    for ask in (admin.topic_id, admin.partition_count, admin.begin_offsets, admin.end_offsets):
        with pytest.raises(BrokerAwayError):
            ask("bpm.v1")


@pytest.fixture
def admin(stack: "Stack") -> Admin:
    return Admin(stack.settings().kafka)


@pytest.mark.stack
def test_a_missing_topic_is_made_and_a_second_time_nothing_happens(admin: Admin) -> None:
    wanted = spec()
    admin.ensure([wanted])
    before = admin.topic_id(wanted.name)
    admin.ensure([wanted])
    assert admin.topic_id(wanted.name) == before
    assert admin.partition_count(wanted.name) == 2
    assert admin.begin_offsets(wanted.name) == admin.end_offsets(wanted.name) == {0: 0, 1: 0}


@pytest.mark.stack
def test_the_topics_of_a_view_are_made_as_described(admin: Admin) -> None:
    view = f"v{uuid.uuid4().hex}"
    wanted = [partials_topic(view, Settings()), view_topic(view, Settings())]
    admin.ensure(wanted)
    admin.ensure(wanted)
    assert admin.partition_count(f"{view}.partials") == admin.partition_count(view) == Settings().partitions


@pytest.mark.stack
def test_two_clusters_of_setups_at_once_agree(admin: Admin, stack: "Stack") -> None:
    wanted = spec()
    other = Admin(stack.settings().kafka)
    admin._create([wanted])
    other._create([wanted])  # as if it had looked before the first made it
    other.ensure([wanted])


@pytest.mark.stack
def test_a_topic_made_anew_has_another_id(admin: Admin) -> None:
    wanted = spec()
    admin.ensure([wanted])
    before = admin.topic_id(wanted.name)
    admin._client.delete_topics([wanted.name])[wanted.name].result()
    while wanted.name in admin._partition_counts():  # the controller deletes, the broker hears of it
        time.sleep(0.05)
    admin.ensure([wanted])
    assert admin.topic_id(wanted.name) != before


@pytest.mark.stack
def test_a_topic_without_the_brokers_time_is_refused_with_the_command_that_helps(admin: Admin) -> None:
    wrong = spec(config={"message.timestamp.type": "CreateTime", "cleanup.policy": "delete"})
    admin.ensure([wrong])
    with pytest.raises(WrongTopicError) as error:
        admin.ensure([spec(name=wrong.name)])
    (line,) = lines(error)
    assert line.startswith(f"topic {wrong.name} has message.timestamp.type=CreateTime and needs LogAppendTime: ")
    assert line.endswith(
        f"kafka-configs.sh --bootstrap-server {admin.kafka} --alter --entity-type topics"
        f" --entity-name {wrong.name} --add-config message.timestamp.type=LogAppendTime"
    )


@pytest.mark.stack
def test_a_stream_that_would_be_compacted_is_refused(admin: Admin) -> None:
    wrong = spec(config={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"})
    admin.ensure([wrong])
    with pytest.raises(WrongTopicError, match=r"cleanup\.policy=compact and needs delete"):
        admin.ensure([spec(name=wrong.name)])


@pytest.mark.stack
def test_a_stream_may_have_more_partitions_than_asked_for(admin: Admin) -> None:
    large = spec(partitions=5)
    admin.ensure([large])
    admin.ensure([replace(large, partitions=2)])
    assert admin.partition_count(large.name) == 5


@pytest.mark.stack
def test_a_stream_with_fewer_partitions_is_refused_with_the_setting_that_helps(admin: Admin) -> None:
    small = spec()
    admin.ensure([small])
    with pytest.raises(WrongTopicError, match="STROBE_PARTITIONS=2"):
        admin.ensure([replace(small, partitions=3)])


@pytest.mark.stack
@pytest.mark.parametrize("other", [1, 3])
def test_a_hashed_topic_with_any_other_count_is_refused(admin: Admin, other: int) -> None:
    hashed = spec(growth="exact")
    admin.ensure([hashed])
    with pytest.raises(WrongTopicError, match=f"has 2 partitions and not {other}"):
        admin.ensure([replace(hashed, partitions=other)])


@pytest.mark.stack
def test_a_topic_that_follows_another_grows_with_it_and_keeps_its_id(admin: Admin) -> None:
    following = spec(growth="follows")
    admin.ensure([following])
    before = admin.topic_id(following.name)
    admin.ensure([replace(following, partitions=5)])
    assert admin.end_offsets(following.name) == dict.fromkeys(range(5), 0)
    assert admin.topic_id(following.name) == before


@pytest.mark.stack
def test_questions_about_a_topic_that_is_missing_say_how_to_make_it(admin: Admin) -> None:
    for ask in (admin.topic_id, admin.partition_count, admin.begin_offsets, admin.end_offsets):
        with pytest.raises(MissingTopicError, match="python -m schemas setup"):
            ask("no.such.topic")


@pytest.mark.stack
def test_more_copies_than_brokers_are_refused_with_the_brokers_reason_and_the_setting(admin: Admin) -> None:
    with pytest.raises(AdminError, match=r"replication factor of 9 .* STROBE_REPLICATION") as error:
        admin.ensure([spec(replication=9)])
    assert len(lines(error)) == 1
