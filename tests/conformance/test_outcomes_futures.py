"""Rows about what becomes of records: futures, callbacks and their order, each record's own error, what comes too late."""

import logging
import struct

import pytest
from penstock.api.errors import (
    BrokerError,
    ClosedError,
    ExpiredError,
    ExpiredMayBeWrittenError,
    OutcomeUnknownError,
    PenstockError,
    RefusedError,
    WaitTimeoutError,
)
from penstock.api.metadata import OffsetRun, RecordMetadata
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryFailureKind, Failed, Released

from tests.fakes.front_world import NOW_MS, TOPIC, FrontWorld

Told = tuple[RecordMetadata | None, PenstockError | None]


@pytest.mark.row("D1", "D2")
def test_a_record_that_was_given_up_is_told_once_and_later_answers_change_nothing() -> None:
    world, told = FrontWorld(), list[Told]()
    future = world.send(TOPIC, b"value", on_ack=lambda metadata, error: told.append((metadata, error)))
    _ = world.take()
    world.settle(Failed(0, 0, 1, DeliveryFailure(DeliveryFailureKind.CLOSED, -1, "CLOSED", "given up"), released=False))
    world.settle(Delivered(0, 0, 1, 500, 10))
    world.fail(DeliveryFailureKind.REFUSED)
    ((metadata, error),) = told
    assert metadata is None
    assert isinstance(error, ClosedError)
    with pytest.raises(ClosedError, match="given up"):
        future.result(0)
    assert future.exception() is error


@pytest.mark.row("D3")
def test_records_are_delivered_once_with_the_offset_and_the_time_of_the_log() -> None:
    world = FrontWorld()
    future = world.send(TOPIC, b"value")
    _ = world.take()
    ghosts = world.send(TOPIC, b"other")
    _ = world.take()
    world.settle(Delivered(0, 0, 1, 500, 10))
    assert future.result(0) == RecordMetadata(TOPIC, 0, 500, 10, "delivered", single_replica=False)
    chunk = world._front.completion.unsettled[1]
    assert chunk.resolve(0, 1, 501, 10, None)
    with pytest.raises(AssertionError):
        _ = chunk.resolve(0, 1, 501, 10, None)
    assert ghosts.result(0).offset == 501


@pytest.mark.row("D3")
def test_an_answer_for_records_of_several_chunks_gives_each_its_own_offset() -> None:
    world = FrontWorld()
    futures = [world.send(TOPIC, b"value") for _ in range(2)]
    _ = world.take()
    for _ in range(2):
        futures += [world.send(TOPIC, b"value") for _ in range(2)]
        _ = world.take()
    world.settle(Delivered(0, 0, 5, 500, 10))
    assert [future.result(0).offset for future in futures[:5]] == [500, 501, 502, 503, 504]
    assert not futures[5].done()


@pytest.mark.row("D3")
def test_without_a_time_of_the_log_a_record_keeps_its_own_and_without_an_offset_it_has_none() -> None:
    world = FrontWorld()
    own, given = world.send(TOPIC, b"v"), world.send(TOPIC, b"v", timestamp_ms=77)
    _ = world.take()
    world.settle(Delivered(0, 0, 2, -1, -1))
    assert [(one.result(0).offset, one.result(0).timestamp_ms) for one in (own, given)] == [(-1, NOW_MS), (-1, 77)]


@pytest.mark.row("D8")
def test_a_chunk_that_is_sealed_takes_no_record_any_more() -> None:
    world = FrontWorld()
    first = world.send(TOPIC, b"one")
    (sealed,) = world.take()
    second = world.send(TOPIC, b"two")
    assert sealed.count == 1
    (later,) = world.take()
    assert (later.first, later.count) == (1, 1)
    world.settle(Delivered(0, 0, 1, 10, -1))
    assert (first.done(), second.done()) == (True, False)


@pytest.mark.row("D9")
def test_each_record_fails_with_its_own_error_and_the_rest_with_the_batchs() -> None:
    world = FrontWorld()
    futures = [world.send(TOPIC, b"%d" % number) for number in range(5)]
    _ = world.take()
    for first, count, name in (
        (0, 1, "INVALID_ZERO"),
        (1, 2, "INVALID_RECORD"),
        (3, 1, "THREE"),
        (4, 1, "INVALID_RECORD"),
    ):
        world.fail(DeliveryFailureKind.REFUSED, code=87, name=name, first=first, count=count)
    errors = [future.exception(0) for future in futures]
    assert all(isinstance(error, BrokerError) and error.number == 87 for error in errors)
    names = [error.code for error in errors if isinstance(error, BrokerError)]
    assert names == ["INVALID_ZERO", "INVALID_RECORD", "INVALID_RECORD", "THREE", "INVALID_RECORD"]


@pytest.mark.row("D10")
def test_a_failure_without_an_error_is_no_outcome() -> None:
    world = FrontWorld()
    future = world.send(TOPIC, b"value")
    _ = world.take()
    with pytest.raises(AttributeError):
        world.settle(Failed(0, 0, 1, None, released=True))  # type: ignore[arg-type]
    assert not future.done()


@pytest.mark.row("D12")
def test_a_timed_wait_counts_in_seconds_and_a_failed_record_raises_its_cause() -> None:
    world = FrontWorld()
    future = world.send(TOPIC, b"value")
    began = world.now
    with pytest.raises(WaitTimeoutError, match="1 s"):
        future.result(1)
    assert world.now == began + 1
    _ = world.take()
    world.at(0.5, lambda: world.fail(DeliveryFailureKind.EXPIRED))
    with pytest.raises(ExpiredError, match="because"):
        future.result(1)
    assert world.now == began + 1.5
    assert future.done()


@pytest.mark.row("D12")
def test_who_waits_without_a_limit_is_answered_when_the_record_is() -> None:
    world = FrontWorld()
    future = world.send(TOPIC, b"value")
    world.at(100.0, lambda: world.deliver(7))
    assert future.result().offset == 7
    assert world.now == 1100.0


def test_callbacks_run_in_the_records_order_and_before_anybody_may_go_on() -> None:
    world, seen = FrontWorld(), list[tuple[int, bool, bool]]()
    futures = [
        world.send(TOPIC, b"v", on_ack=lambda _m, _e, i=i: seen.append((i, futures[i].done(), other_sees())))
        for i in range(3)
    ]
    futures[1].add_done_callback(lambda done: seen.append((10, done.done(), other_sees())))

    def other_sees() -> bool:
        """What a thread that is not the sender's would see."""
        world.sender.is_current = False
        try:
            return futures[0].done()
        finally:
            world.sender.is_current = True

    world.deliver(0)
    assert seen == [(0, True, False), (1, True, False), (10, True, False), (2, True, False)]
    assert other_sees()


def test_what_a_callback_raises_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    world, told = FrontWorld(), list[int]()

    def broken(_metadata: object, _error: object) -> None:
        raise ValueError("a fault of the application")

    futures = [world.send(TOPIC, b"v", on_ack=broken), world.send(TOPIC, b"v", on_ack=lambda _m, _e: told.append(1))]
    with caplog.at_level(logging.ERROR, "penstock.producer"):
        world.deliver(3)
    assert told == [1]
    assert "a fault of the application" in caplog.text
    assert [future.result(0).offset for future in futures] == [3, 4]


def test_a_callback_of_a_record_that_is_done_runs_at_once() -> None:
    world, told = FrontWorld(), list[int]()
    future = world.send(TOPIC, b"v")
    world.deliver(3)
    future.add_done_callback(lambda done: told.append(done.result(0).offset))
    assert told == [3]


def test_a_callback_that_would_wait_for_a_later_record_is_refused_instead_of_standing_still() -> None:
    world, errors = FrontWorld(), list[BaseException]()

    def wait(_metadata: object, _error: object) -> None:
        try:
            _ = later.result(1)
        except RuntimeError as error:
            errors.append(error)

    _ = world.send(TOPIC, b"v", on_ack=wait)
    later = world.send(TOPIC, b"v")
    _ = world.take()
    world.settle(Delivered(0, 0, 1, 0, -1))
    assert [str(error) for error in errors] == ["result() inside a delivery callback would deadlock"]


def test_a_chunk_is_resolved_piece_by_piece_and_its_memory_goes_back_with_the_last() -> None:
    world = FrontWorld()
    futures = [world.send(TOPIC, b"v") for _ in range(4)]
    _ = world.take()
    held = world.held_bytes
    assert held > 0
    world.settle(Delivered(0, 0, 2, 100, -1))
    assert [future.done() for future in futures] == [True, True, False, False]
    # A ghost fails before its turn, and keeps its memory.
    world.settle(
        Failed(
            0,
            3,
            1,
            DeliveryFailure(DeliveryFailureKind.MAY_BE_WRITTEN, -1, "DELIVERY_TIMEOUT", "in flight"),
            released=False,
        )
    )
    assert [future.done() for future in futures] == [True, True, False, True]
    with pytest.raises(ExpiredMayBeWrittenError) as caught:
        futures[3].result(0)
    assert isinstance(caught.value, OutcomeUnknownError)
    world.settle(Delivered(0, 2, 1, 102, -1))
    assert futures[2].result(0).offset == 102
    assert world.held_bytes == held
    world.flush(0)
    world.settle(Released(0, 3, 1))
    assert world.held_bytes == 0


def test_columns_are_told_where_each_record_went_and_which_were_refused() -> None:
    world = FrontWorld(2)
    future = world.send_many(TOPIC, [b"a", b"b", b"c", b"d"], partitions=[0, 1, 0, 1])
    _ = world.take()
    world.settle(Delivered(0, 0, 2, 10, -1))
    assert not future.done()
    world.settle(Delivered(1, 0, 2, 20, -1))
    done = future.result(0)
    assert (done.count, done.partitions) == (4, [0, 1, 0, 1])
    assert done.runs == [OffsetRun(0, 10, 2, -1), OffsetRun(1, 20, 2, -1)]
    half = world.send_many(TOPIC, [b"a", b"b", b"c", b"d"], partitions=[0, 1, 0, 1])
    _ = world.take()
    world.settle(Delivered(1, 2, 2, 22, -1))
    world.fail(DeliveryFailureKind.REFUSED, code=10, name="MESSAGE_TOO_LARGE", first=2, count=2)
    with pytest.raises(RefusedError) as caught:
        half.result(0)
    assert [(one.first, one.count) for one in caught.value.refused] == [(0, 1), (2, 1)]


def test_a_callback_of_columns_runs_once_when_the_last_of_them_is_settled() -> None:
    world, told = FrontWorld(2), list[object]()
    _ = world.send_many(TOPIC, [b"a", b"b"], partitions=[0, 1], on_ack=lambda done, _error: told.append(done))
    _ = world.take()
    world.settle(Delivered(1, 0, 1, 5, -1))
    assert told == []
    world.settle(Delivered(0, 0, 1, 6, -1))
    assert len(told) == 1


def test_a_row_has_its_own_timestamp_and_the_slice_the_layout_that_shards_read() -> None:
    world = FrontWorld()
    _ = world.send(TOPIC, None, b"key", headers=[("h", b"x"), ("n", None)], timestamp_ms=5)
    (sealed,) = world.take()
    data = world._front.arena.read(sealed.segment, 0, sealed.length)
    assert not isinstance(data, str)
    body = b"\x06key" + b"\x01" + b"\x04" + b"\x02h\x02x" + b"\x02n\x01"
    assert bytes(data[48:]) == struct.pack("<qI", 5, len(body)) + body
    assert (sealed.count, sealed.max_ts) == (1, 5)
