"""Faults of other clients' fronts that must not be ours: memory without bound, flushes that lie, crowds that are woken for nothing."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from penstock.api.errors import BrokerError, BufferExhaustedError, ExpiredError, PenstockError
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryFailureKind, Failed
from penstock.producer.records.batch_builder import SlowChecksumError, self_check
from penstock.wire.slices import HEADER_BYTES

from tests.fakes.front_bench import FrontBench, NoThread
from tests.fakes.front_world import TOPIC, FrontWorld

PATIENCE_S = 20.0


@pytest.mark.fault("K5")
def test_with_brokers_that_do_not_answer_records_are_taken_up_to_the_memory_there_is() -> None:
    limit = 64 * 1024
    world = FrontWorld(buffer_memory=limit, batch_size=4096, max_block_ms=500)
    futures = [world.send(TOPIC, bytes(400)) for _ in range(300)]
    taken = [future for future in futures if not future.done()]
    refused = [future.exception(0) for future in futures if future.done()]
    assert limit // 2 < len(taken) * 400 < limit
    assert world.held_bytes <= limit
    assert {type(error) for error in refused} == {BufferExhaustedError}
    assert world.now == pytest.approx(1000.0 + 0.5 * len(refused)), "each waits for max.block.ms, and no longer"
    assert sum(len(chunk.data or b"") for chunk in world._front.completion.unsettled.values()) <= limit
    # What comes back is used.
    world.deliver()
    assert world.held_bytes == 0
    assert not world.send(TOPIC, bytes(400)).done()


@pytest.mark.fault("K7")
def test_flush_returns_when_every_record_has_its_outcome_and_futures_tell_which() -> None:
    world = FrontWorld(4)
    told: list[PenstockError | None] = []
    futures = [
        world.send(TOPIC, b"v", partition=index % 4, on_ack=lambda _, error: told.append(error)) for index in range(40)
    ]

    def some(outcomes: Callable[[], None]) -> None:
        assert sum(future.done() for future in futures) == len(told)
        outcomes()

    failure = DeliveryFailure(DeliveryFailureKind.REFUSED, 10, "MESSAGE_TOO_LARGE", "because")
    late = DeliveryFailure(DeliveryFailureKind.EXPIRED, -1, "EXPIRED", "never sent")
    world.at(0.1, lambda: some(lambda: world.take() and None))
    world.at(0.2, lambda: some(lambda: world.settle(Delivered(0, 0, 10, 0, -1))))
    world.at(0.3, lambda: some(lambda: world.settle(Failed(1, 0, 10, failure, released=True))))
    world.at(0.4, lambda: some(lambda: world.settle(Failed(2, 0, 4, late, released=True), Delivered(2, 4, 6, 0, -1))))
    world.at(0.5, lambda: some(lambda: world.settle(Delivered(3, 0, 10, 0, -1))))
    world.flush()
    assert world.now == 1000.5
    assert all(future.done() for future in futures)
    assert len(told) == 40
    kinds = [type(future.exception(0)) for future in futures]
    assert [kinds[index::4].count(type(None)) for index in range(4)] == [10, 0, 6, 10]
    assert kinds[1::4] == [BrokerError] * 10
    assert kinds[2::4] == [ExpiredError] * 4 + [type(None)] * 6


@pytest.mark.fault("K10")
def test_a_checksum_that_is_refused_is_an_error_at_every_record_and_nothing_is_sent() -> None:
    world = FrontWorld()

    def refuse() -> None:
        self_check(lambda: next(ticks))

    ticks = (float(number) for number in range(1000))
    world.sender.start = refuse  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(SlowChecksumError, match="without its C code"):
            world.send(TOPIC, b"value", partition=None)
    assert world.held_bytes == 0
    world.close()


class Counting(threading.Condition):
    """Counts how often anybody was woken."""

    woken = 0
    asleep: Callable[[], None] = staticmethod(lambda: None)
    """Called by who begins to wait, under the lock."""

    def wait(self, timeout: float | None = None) -> bool:
        Counting.asleep()
        done = super().wait(timeout)
        Counting.woken += 1
        return done


class CountedBench(FrontBench):
    """All who wait are counted when they wake up."""

    condition = Counting


class Stirred(NoThread):
    """Counts who asks the sender thread for something."""

    def __init__(self) -> None:
        self.wakes = threading.Semaphore(0)

    def wake(self) -> None:
        self.wakes.release()


class Numbered(NoThread):
    """Partitions have their own numbers."""

    def topic_of(self, number: int) -> tuple[str, int]:
        return "t", number


@pytest.mark.fault("K11")
def test_memory_that_comes_back_wakes_who_gets_it_and_nobody_else() -> None:
    waiting, size = 40, 1024
    Counting.woken = 0
    bench = CountedBench(dict.fromkeys(range(waiting), 1), **{"buffer.memory": 64 * 1024, "batch.size": size})
    thread = Stirred()
    bench.front.connect_sender(thread)
    pool = bench.front.pool
    with bench.front.condition:
        while pool.try_reserve(size):
            pass
    done = threading.Semaphore(0)

    def send(index: int) -> None:
        _ = bench.send("t", bytes(size - HEADER_BYTES - 40), b"key", partition=index)
        done.release()

    callers = [threading.Thread(target=send, args=(index,)) for index in range(waiting)]
    for caller in callers:
        caller.start()
        assert thread.wakes.acquire(timeout=PATIENCE_S)
    for _ in range(waiting):
        with bench.front.condition:
            pool.release(size)
        assert done.acquire(timeout=PATIENCE_S)
    for caller in callers:
        caller.join(PATIENCE_S)
    assert Counting.woken == waiting, "each when its memory is there, and nobody for another's"


@pytest.mark.fault("K11")
def test_an_outcome_wakes_who_waits_for_it_and_nobody_else() -> None:
    waiting = 40
    Counting.woken = 0
    bench = CountedBench(dict.fromkeys(range(waiting), 1))
    bench.front.connect_sender(Numbered())
    futures = [bench.send("t", b"value", partition=index) for index in range(waiting)]
    _ = bench.front.drain(bench.now, all_chunks=True)
    asleep, done = threading.Semaphore(0), threading.Semaphore(0)
    Counting.asleep = staticmethod(asleep.release)

    def wait(index: int) -> None:
        assert futures[index].result().partition == index
        done.release()

    callers = [threading.Thread(target=wait, args=(index,)) for index in range(waiting)]
    for caller in callers:
        caller.start()
        assert asleep.acquire(timeout=PATIENCE_S)
    for index in range(waiting):
        bench.front.settle([Delivered(index, 0, 1, 0, -1)])
        assert done.acquire(timeout=PATIENCE_S)
    for caller in callers:
        caller.join(PATIENCE_S)
    assert Counting.woken == waiting


@pytest.mark.fault("K12", "K21")
def test_records_whose_futures_nobody_keeps_leave_no_object_and_columns_have_one_callback() -> None:
    world = FrontWorld(1, buffer_memory=8 << 20, batch_size=1 << 20)
    _ = world.send(TOPIC, b"value")
    world.deliver()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(10_000):
        _ = world.send(TOPIC, b"value")
    gc.collect()
    assert len(gc.get_objects()) - before < 200, "per batch, not per record"
    world.deliver()

    told: list[Any] = []
    done = world.send_many(TOPIC, [b"value"] * 10_000, on_ack=lambda metadata, error: told.append(metadata))
    world.deliver(10)
    ((metadata),) = told
    assert metadata.count == 10_000
    assert done.result(0).count == 10_000


@pytest.mark.fault("K21")
def test_outcomes_run_python_for_batches_and_for_callbacks_that_were_asked_for() -> None:
    world = FrontWorld(1, buffer_memory=8 << 20, batch_size=1 << 20)
    told: list[int] = []
    futures = [
        world.send(TOPIC, b"value", on_ack=(lambda _, __, n=n: told.append(n)) if n % 1000 == 0 else None)
        for n in range(10_000)
    ]
    _ = world.take()
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        world.settle(Delivered(0, 0, 10_000, 0, -1))
    finally:
        sys.setprofile(None)
    assert told == list(range(0, 10_000, 1000))
    assert calls < 200, "not one for each record"
    assert futures[-1].result(0).offset == 9_999


@pytest.mark.fault("K25")
@pytest.mark.parametrize(
    ("key", "hashed"), [(b"", 275646681), (b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)]
)
def test_an_empty_key_is_a_key_and_every_key_goes_where_javas_partitioner_puts_it(key: bytes, hashed: int) -> None:
    bench = FrontBench(dict.fromkeys(range(7), 1))
    draws = bench.draws
    assert {bench.put(b"value", key=key) for _ in range(5)} == {(hashed & 0x7FFFFFFF) % 7}
    assert bench.draws == draws, "chance has no part in it"
