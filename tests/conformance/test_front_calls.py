"""Rows about the calls of the direct producer: what is raised, what fails in the future, waiting, flush and close."""

import threading
from typing import Any

import pytest
from penstock.api.errors import (
    BrokerError,
    BufferExhaustedError,
    ClosedError,
    FatalError,
    InvalidTopicError,
    MetadataTimeoutError,
    PenstockError,
    RecordTooLargeError,
    TopicForbiddenError,
)
from penstock.api.metadata import PartitionMetadata
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryFailureKind

from tests.fakes.front_world import TOPIC, FrontWorld


def rows_of(world: FrontWorld) -> list[bytes]:
    """What the chunks hold that are taken now, behind their headers."""
    taken = [world._front.arena.read(one.segment, 48, one.length - 48) for one in world.take()]
    return [bytes(data) for data in taken if not isinstance(data, str)]


@pytest.mark.row("H12")
def test_headers_are_what_they_were_when_the_record_was_sent() -> None:
    world = FrontWorld()
    value = bytearray(b"before")
    headers: list[tuple[str, bytes | bytearray | memoryview | None]] = [("name", value)]
    _ = world.send(TOPIC, b"v", headers=headers)
    value[:] = b"after!"
    headers.append(("more", b""))
    (row,) = rows_of(world)
    assert b"\x02\x08name\x0cbefore" in row
    assert b"more" not in row
    for wrong in ([("name", "text")], [(b"name", b"bytes")]):
        with pytest.raises(TypeError, match="header"):
            world.send(TOPIC, b"v", headers=wrong)  # type: ignore[arg-type]


@pytest.mark.row("H13")
def test_a_second_close_does_nothing_and_a_negative_one_is_refused() -> None:
    world = FrontWorld()
    with pytest.raises(ValueError, match="negative"):
        world.close(-1)
    future = world.send(TOPIC, b"value")

    def meanwhile() -> None:
        with pytest.raises(ClosedError):
            world.send(TOPIC, b"too late")

    world.at(1.0, meanwhile)
    world.at(2.0, lambda: (world.deliver(9), world.end()))
    world.close(5)
    assert world.sender.closes == [5]
    assert future.result(0).offset == 9
    world.close()
    world.close(0)
    assert world.sender.closes == [5]
    with pytest.raises(ClosedError):
        world.send(TOPIC, b"late")


@pytest.mark.row("H13")
def test_a_close_that_is_interrupted_ends_the_producer_and_raises() -> None:
    world = FrontWorld()
    future = world.send(TOPIC, b"value")

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.at(1.0, interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.close()
    assert world.over
    assert isinstance(future.exception(0), ClosedError)


def test_a_close_whose_time_runs_out_fails_what_is_left_and_one_from_a_callback_waits_for_nothing() -> None:
    world = FrontWorld()
    future = world.send(TOPIC, b"value")
    world.close(3)
    assert (world.sender.closes, world.now) == ([3, 0], 1003.0)
    assert isinstance(future.exception(0), ClosedError)
    other = FrontWorld()
    _ = other.send(TOPIC, b"one", on_ack=lambda _metadata, _error: other.close())
    other.deliver()
    assert (other.sender.closes, other.now) == ([0], 1000.0)


@pytest.mark.row("H14")
def test_after_a_flush_every_record_sent_before_is_done() -> None:
    world = FrontWorld(3, linger_ms=100_000, delivery_timeout_ms=200_000)
    futures = [world.send(TOPIC, b"v", b"%d" % number) for number in range(50)]
    assert world._front.drain(world.now, all_chunks=False) == []

    def deliver_what_is_due() -> None:
        due = world._front.drain(world.now, all_chunks=False)
        world.settle(*(Delivered(one.index, one.first, one.count, one.first, -1) for one in due))

    world.at(1.0, deliver_what_is_due)
    world.flush()
    assert all(future.done() for future in futures)
    assert world.now == 1001.0


def test_a_flush_by_a_callback_is_refused() -> None:
    world, errors = FrontWorld(), list[BaseException]()

    def flush(_metadata: object, _error: object) -> None:
        with pytest.raises(RuntimeError, match="would deadlock") as caught:
            world.flush()
        errors.append(caught.value)

    _ = world.send(TOPIC, b"v", on_ack=flush)
    world.deliver()
    assert len(errors) == 1


@pytest.mark.row("H15")
def test_a_record_that_is_too_large_fails_in_its_future_with_its_partition() -> None:
    world, told = FrontWorld(max_request_size=1), list[tuple[object, PenstockError | None]]()
    future = world.send(TOPIC, b"value", partition=0, on_ack=lambda metadata, error: told.append((metadata, error)))
    ((metadata, error),) = told
    assert metadata is None
    assert isinstance(error, RecordTooLargeError)
    assert (error.topic, error.partition) == (TOPIC, 0)
    assert future.exception(0) is error
    assert isinstance(world.send_many(TOPIC, [b"v"]).exception(0), RecordTooLargeError)
    assert world.held_bytes == 0


def test_the_limits_hold_to_the_byte() -> None:
    # A batch of this record alone may take 61 bytes of its header, 21 of the record's, and the body: 1 + 2 + 900 + 1.
    size = 61 + 21 + 904
    assert FrontWorld(max_request_size=size).send(TOPIC, bytes(900)).done() is False
    assert isinstance(FrontWorld(max_request_size=size - 1).send(TOPIC, bytes(900)).exception(0), RecordTooLargeError)
    small: dict[str, Any] = {"batch_size": 16}
    assert FrontWorld(buffer_memory=size, **small).send(TOPIC, bytes(900)).done() is False
    refused = FrontWorld(buffer_memory=size - 1, **small).send(TOPIC, bytes(900)).exception(0)
    assert "buffer.memory" in str(refused)


@pytest.mark.row("H16")
def test_a_topic_of_no_such_name_fails_in_the_future_and_the_callback_runs_here() -> None:
    world, told = FrontWorld(0, max_block_ms=1000), list[tuple[object, PenstockError | None, int]]()
    future = world.send("topic abc", b"value", on_ack=lambda m, e: told.append((m, e, threading.get_ident())))
    ((metadata, error, thread),) = told
    assert metadata is None
    assert isinstance(error, InvalidTopicError)
    assert (error.topic, error.partition) == ("topic abc", -1)
    assert thread == threading.get_ident()
    with pytest.raises(InvalidTopicError):
        future.result(0)


def test_topics_that_never_come_or_are_forbidden_fail_in_the_future() -> None:
    world = FrontWorld(0, max_block_ms=1000)
    future = world.send(TOPIC, b"value")
    assert isinstance(future.exception(0), MetadataTimeoutError)
    assert world.now == 1001.0
    assert world.sender.wanted[0] == TOPIC
    world.at(0.5, lambda: world.tell(0, code=29))
    assert isinstance(world.send(TOPIC, b"value").exception(0), TopicForbiddenError)
    world.at(0.5, lambda: world.tell(2))
    assert world.send(TOPIC, b"value", partition=1).done() is False
    late = world.send(TOPIC, b"value", partition=2)
    assert "Partition 2" in str(late.exception(0))


@pytest.mark.row("H18")
def test_close_releases_who_waits_for_metadata() -> None:
    world = FrontWorld(0, max_block_ms=2**40)
    world.at(5.0, lambda: world.close(0))
    with pytest.raises(ClosedError):
        world.send(TOPIC, b"value")
    assert world.now == 1005.0


def test_close_releases_who_waits_for_memory() -> None:
    world = FrontWorld(buffer_memory=2048, batch_size=1024)
    while world.held_bytes < 2048:
        _ = world.send(TOPIC, bytes(200))
    world.at(5.0, lambda: world.close(0))
    with pytest.raises(ClosedError):
        world.send(TOPIC, bytes(1500))


def test_without_memory_in_time_the_record_fails_in_its_future_and_what_comes_back_in_time_is_used() -> None:
    world = FrontWorld(buffer_memory=2048, batch_size=1024, max_block_ms=2000)
    while world.held_bytes < 2048:
        _ = world.send(TOPIC, bytes(200))
    refused = world.send(TOPIC, bytes(1500))
    assert isinstance(refused.exception(0), BufferExhaustedError)
    assert world.now == 1002.0
    world.at(1.0, world.deliver)
    later = world.send(TOPIC, bytes(1500))
    assert world.now == 1003.0
    world.deliver()
    assert later.result(0).partition == 0
    assert world.held_bytes == 0


@pytest.mark.row("H20")
def test_without_permission_for_the_cluster_records_fail_and_once_it_is_given_the_next_ones_pass() -> None:
    world = FrontWorld()
    first = world.send(TOPIC, b"value")
    _ = world.take()
    world.fail(DeliveryFailureKind.REFUSED, code=31, name="CLUSTER_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        first.result(0)
    second = world.send(TOPIC, b"value")
    world.deliver()
    assert second.result(0).offset == 1


def test_a_producer_that_cannot_go_on_says_so_to_who_waits_and_to_every_later_call() -> None:
    world = FrontWorld(0)
    failure = DeliveryFailure(DeliveryFailureKind.FATAL, 35, "UNSUPPORTED_VERSION", "the brokers are too old")
    world.at(0.5, lambda: world.end(failure))
    for _ in range(2):
        with pytest.raises(FatalError, match="UNSUPPORTED_VERSION"):
            world.send(TOPIC, b"value")


@pytest.mark.row("H26")
def test_what_is_no_record_is_raised() -> None:
    world = FrontWorld(2, partitioner=lambda *_: -1)
    with pytest.raises(ValueError, match="chose partition -1"):
        world.send(TOPIC, b"value")
    beyond = FrontWorld(2, partitioner=lambda *_: 2)
    with pytest.raises(ValueError, match="chose partition 2"):
        beyond.send(TOPIC, b"value")
    with pytest.raises(ValueError, match="partition -1"):
        world.send(TOPIC, b"value", partition=-1)
    with pytest.raises(ValueError, match="timestamp_ms -1"):
        world.send(TOPIC, b"value", partition=0, timestamp_ms=-1)
    nothing: Any = None
    with pytest.raises(TypeError):
        world.send(nothing, b"value")
    with pytest.raises(TypeError):
        world.partitions_for(nothing)
    with pytest.raises(TypeError, match="str"):
        world.send(TOPIC, "text", partition=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 items for 1"):
        world.send_many(TOPIC, [b"v"], [b"k", b"k"])
    assert world.held_bytes == 0


def test_partitions_are_answered_from_what_is_known_and_errors_are_raised() -> None:
    world = FrontWorld(2, max_block_ms=1000)
    assert world.partitions_for(TOPIC) == [PartitionMetadata(index, 0, (0,), (0,)) for index in range(2)]
    with pytest.raises(MetadataTimeoutError):
        world.partitions_for("other", 0.25)
    assert world.now == 1000.25


def test_the_sender_thread_is_woken_for_the_first_record_and_for_full_chunks_only() -> None:
    world = FrontWorld(1, batch_size=1024)
    _ = world.send(TOPIC, bytes(100))
    woken = world.sender.wakes
    for _ in range(6):
        _ = world.send(TOPIC, bytes(100))
    assert world.sender.wakes == woken
    _ = [world.send(TOPIC, bytes(100)) for _ in range(3)]
    assert world.sender.wakes == woken + 1


def test_a_chunk_whose_first_record_was_never_written_holds_nothing_up() -> None:
    world = FrontWorld()
    _ = world.send(TOPIC, b"value")
    world.deliver()
    # What an interruption between the chunk and its first row leaves behind.
    with world._front.condition:
        assert world._front.accumulator.open_chunk(world._front.topics.part_at(TOPIC, 0), 100, None, None) is None
    assert world.held_bytes > 0
    assert world.take() == []
    world.flush(0)
    assert world.held_bytes == 0
