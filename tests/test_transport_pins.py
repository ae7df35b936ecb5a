"""What processors/transport.py leans on inside Faust and aiokafka. If one fails, read its module docstring first."""

import asyncio
import inspect
from importlib.metadata import version
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.protocol.fetch import FetchRequest
from faust.transport.consumer import Consumer, ConsumerThread
from faust.transport.drivers import aiokafka as driver
from mode.threads import ServiceThread

from processors import transport


def source(thing: Any) -> str:
    return " ".join(inspect.getsource(thing).split())


def parameters(thing: Any) -> list[str]:
    return list(inspect.signature(thing).parameters)


def test_the_versions_are_those_that_were_read() -> None:
    assert version("faust-streaming") == "0.15.3"
    assert version("aiokafka") == "0.14.0"
    assert version("mode-streaming") == "0.7.1"


@pytest.mark.parametrize("ours", [transport.ConsumerThread, transport.Consumer, transport.RebalanceListener])
def test_every_method_that_is_overridden_exists_with_the_same_parameters(ours: Any) -> None:
    own = {"open", "committed", "commit_positions", "void", "leave", "hold", "on_its_loop"}
    own |= {"_packing", "_pack", "_note_damage", "_tell", "_membership"}
    base = ours.__mro__[1]
    for name, method in vars(ours).items():
        if inspect.isfunction(method) and name not in own:
            assert parameters(method) == parameters(getattr(base, name)), name
    assert not own & set(dir(driver.AIOKafkaConsumerThread))


def test_the_driver_makes_its_consumer_thread_and_listener_where_they_are_replaced() -> None:
    assert "consumer.RebalanceListener(self)" in source(driver.AIOKafkaConsumerThread.__post_init__)
    assert "self._create_worker_consumer(transport)" in source(driver.AIOKafkaConsumerThread._create_consumer)
    assert "self._new_consumer_thread()" in source(driver.ThreadDelegateConsumer.__init__)
    assert driver.Transport.Consumer is driver.Consumer
    assert "thread.app.on_rebalance_start()" in source(driver.ConsumerRebalanceListener.on_partitions_revoked)
    assert {"thread_loop", "parent_loop"} <= set(ServiceThread.__init__.__code__.co_names)


def test_settings_that_are_changed_on_the_consumer_are_read_when_it_starts() -> None:
    start = source(AIOKafkaConsumer.start)
    for name in ("_fetch_max_wait_ms", "_fetch_min_bytes", "_isolation_level", "_check_crcs"):
        assert f"=self.{name}" in start


def test_fetches_go_through_the_client_s_send_and_come_as_tuples_ending_in_the_batches() -> None:
    fetch = source(Fetcher._proc_fetch_request)
    assert "await self._client.send(node_id, request)" in fetch
    assert "for partition, error_code, highwater, *part_data in partitions:" in fetch
    assert "lso = part_data[0]" in fetch
    assert "MemoryRecords(part_data[-1])" in fetch
    assert "request.topics" in fetch
    assert parameters(AIOKafkaClient.send)[1:3] == ["node_id", "request"]
    request = FetchRequest(1, 1, 1, 0, [("topic", [(0, 5, 100)])], rack_id="")
    assert [part[:2] for _, parts in request.topics for part in parts] == [(0, 5)]


def test_a_fetch_counts_only_for_the_position_and_assignment_that_hold_when_it_arrives() -> None:
    fetch = source(Fetcher._proc_fetch_request)
    assert "if not assignment.active:" in fetch
    assert "not tp_state.has_valid_position or tp_state.position != fetch_offset" in fetch
    assert "del self._records[tp]" in source(Fetcher.seek_to)


def test_a_partition_with_a_position_is_given_no_other_and_a_paused_one_is_not_fetched() -> None:
    update = source(Fetcher._update_fetch_positions)
    assert update.count("if tp_state.has_valid_position or tp_state.awaiting_reset: continue") == 2
    actions = source(Fetcher._get_actions_per_node)
    assert actions.index("not tp_state.has_valid_position") < actions.index("elif tp_state.paused:")
    assert "paused" in dir(TopicPartitionState)


def test_the_listener_is_called_before_anything_else_can_run_after_an_assignment() -> None:
    complete = source(GroupCoordinator._on_join_complete)
    begin = complete.index("self.start_commit_offsets_refresh_task(")
    called = complete.index("self._subscription.listener.on_partitions_assigned(assigned)")
    assert "await" not in complete[begin:called].replace("'await", "")


def test_a_revocation_is_awaited_before_the_group_is_joined_anew() -> None:
    prepare = source(GroupCoordinator._on_join_prepare)
    assert "listener.on_partitions_revoked(revoked)" in prepare
    assert "await res" in prepare
    join = source(GroupCoordinator.ensure_active_group)
    assert join.index("self._on_join_prepare(") < join.index("self._do_rejoin_group(")


def test_a_single_commit_is_fenced_by_the_generation_and_the_public_one_repeats_under_any() -> None:
    commit = source(GroupCoordinator._do_commit_offsets)
    assert "self.generation, self.member_id" in commit
    assert commit.index("self.generation, self.member_id") < commit.index("await ")  # as checked just before the call
    assert "while True" in source(GroupCoordinator.commit_offsets)
    assert parameters(GroupCoordinator._do_commit_offsets) == ["self", "assignment", "offsets"]
    assert parameters(GroupCoordinator.ensure_coordinator_known) == ["self"]


def test_committed_offsets_are_fetched_with_their_metadata() -> None:
    assert parameters(GroupCoordinator.fetch_committed_offsets) == ["self", "partitions"]
    assert "offsets[tp] = OffsetAndMetadata(offset, metadata)" in source(GroupCoordinator._do_fetch_commit_offsets)


def test_faust_s_own_books_have_the_names_that_are_relieved() -> None:
    names = set(Consumer.__init__.__code__.co_names)
    assert {"_unacked_messages", "_read_offset", "_waiting_for_ack"} <= names | set(Consumer.__annotations__)
    assert "await self.seek_to_committed()" in source(Consumer.perform_seek)
    assert "if offset is not None and self._should_commit(tp, offset)" in source(Consumer._filter_committable_offsets)
    drain = source(Consumer._drain_messages)
    assert "if r_offset is None or offset >= r_offset" in drain
    assert "yield tp, to_message(tp, record)" in source(Consumer.getmany)
    assert issubclass(driver.AIOKafkaConsumerThread, ConsumerThread)


def test_a_batch_is_labelled_after_the_last_wait_before_the_fetcher_looks_at_it() -> None:
    """A label given earlier could name an assignment that ended meanwhile."""
    packing = source(transport.ConsumerThread._packing)
    assert "await" not in packing[packing.index("response = await") + len("response = await") :]
    fetch = source(Fetcher._proc_fetch_request)
    sent = fetch.index("response = await self._client.send(node_id, request)")
    noted = fetch.index("self._records[tp] = FetchResult(")
    assert "await" not in fetch[fetch.index("if not assignment.active:", sent) : noted]


def test_the_worker_s_loop_gets_the_result_of_what_runs_on_the_consumer_s() -> None:
    assert asyncio.iscoroutinefunction(transport.ConsumerThread.on_its_loop)
