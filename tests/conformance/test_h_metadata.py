"""Rows of the front that wait for metadata: what a caller of `send` waits for, what it costs, and what it is told."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from penstock.api.errors import (
    ClosedError,
    InvalidTopicError,
    MetadataTimeoutError,
    PenstockError,
    TopicForbiddenError,
)
from penstock.producer.delivery.outcomes import DeliveryFailure, DeliveryFailureKind

from tests.conformance.metadata_world import FORBIDDEN, INVALID, World, missing, told
from tests.fakes.front_bench import FrontBench, NoThread

PATIENCE_S = 10.0
ORDERS = "orders"


class WorldThread(NoThread):
    """The sender thread's part, with the world's cache for its metadata. `asked`: a question was wanted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked = threading.Semaphore(0)

    def want_topic(self, topic: str) -> None:
        self.world.cache.want(topic, self.world.now)

    def request_topic(self, topic: str) -> None:
        self.world.requests += 1
        self.world.plan.request(topic, self.world.now)
        self.asked.release()


class Caller:
    """A thread of the application that calls once."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: list[Any] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result.append(call())
        except PenstockError as error:
            self._error.append(error)

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the caller was not released"
        if self._error:
            raise self._error[0]
        return self._result[0]


class Bench:
    """A front whose metadata is a world's."""

    def __init__(self, *, idle_ms: int = 300_000, **settings: Any) -> None:
        self.world = World(idle_ms=idle_ms)
        self.front = FrontBench({0: 1}, **settings)
        self.thread = WorldThread(self.world)
        self.front.front.connect_sender(self.thread)
        self.front.now = self.world.now

    def send(self, topic: str = ORDERS, partition: int | None = None) -> Caller:
        """Call `send` in a thread."""
        return Caller(lambda: self.front.send(topic, b"value", partition=partition))

    def until_asked(self) -> None:
        assert self.thread.asked.acquire(timeout=PATIENCE_S), "nobody asked"

    def update(self, *, late_ms: int = 0) -> None:
        """The next question, its answer, and what the sender thread makes of it."""
        _ = self.world.update(late_ms=late_ms)
        self.tell()

    def tell(self) -> None:
        self.front.now = self.world.now
        self.front.front.cluster_changed(self.world.cache.cluster)


@pytest.mark.row("H7")
def test_send_waits_through_empty_answers_and_the_next_one_finds_the_topic_known() -> None:
    bench = Bench()
    caller = bench.send()
    for _ in range(3):
        bench.until_asked()
        bench.update()
    bench.until_asked()
    bench.world.brokers[ORDERS] = told(ORDERS, (1, 1))
    bench.update()
    future = caller.result()
    assert not future.done()
    assert bench.world.requests == 4
    assert not bench.front.send(ORDERS, b"value").done()
    assert [row.partition for row in bench.front.front.partitions(ORDERS, None)] == [0]
    assert bench.world.requests == 4


@pytest.mark.row("H8")
def test_a_topic_that_was_dropped_makes_the_next_send_wait_again() -> None:
    bench = Bench(idle_ms=60_000)
    bench.world.brokers[ORDERS] = told(ORDERS, (1, 1))
    caller = bench.send()
    bench.until_asked()
    bench.update()
    _ = caller.result()
    bench.world.pass_ms(60_000)
    bench.world.plan.refresh(bench.world.now)
    bench.update()
    assert bench.world.cache.topic(ORDERS) is None
    caller = bench.send()
    bench.until_asked()
    bench.update()
    assert not caller.result().done()
    assert bench.world.requests == 2


@pytest.mark.row("H9", "H11")
def test_a_topic_that_does_not_come_in_time_fails_the_future_and_names_the_brokers_error() -> None:
    bench = Bench()
    caller = bench.send()
    for late_ms in (0, 0, 0, 70_000):
        bench.until_asked()
        bench.update(late_ms=late_ms)
    error = caller.result().exception()
    assert isinstance(error, MetadataTimeoutError)
    assert (
        str(error) == "no_metadata: Topic orders not present in metadata after 60000 ms. (UNKNOWN_TOPIC_OR_PARTITION)"
    )
    assert error.cause == "UNKNOWN_TOPIC_OR_PARTITION"
    assert bench.world.requests == 4


@pytest.mark.row("H9")
def test_a_partition_that_the_topic_does_not_have_fails_the_future_and_says_how_many_there_are() -> None:
    bench = Bench()
    bench.world.brokers[ORDERS] = told(ORDERS, (1, 1))
    caller = bench.send(partition=2)
    for late_ms in (0, 0, 0, 70_000):
        bench.until_asked()
        bench.update(late_ms=late_ms)
    error = caller.result().exception()
    assert isinstance(error, MetadataTimeoutError)
    text = "Partition 2 of topic orders with partition count 1 is not present in metadata after 60000 ms."
    assert str(error) == f"no_metadata: {text}"
    assert bench.world.requests == 4


@pytest.mark.row("H10")
def test_a_partition_that_comes_while_send_waits_for_it_is_sent_to() -> None:
    bench = Bench()
    bench.world.brokers[ORDERS] = told(ORDERS, (1, 1))
    caller = bench.send(partition=2)
    bench.until_asked()
    bench.update()
    bench.until_asked()
    bench.world.brokers[ORDERS] = told(ORDERS, (1, 1), (1, 1), (1, 1))
    bench.update()
    assert not caller.result().done()
    assert bench.world.requests == 2


@pytest.mark.row("H17")
@pytest.mark.parametrize(
    ("code", "expected"), [(INVALID, InvalidTopicError), (FORBIDDEN, TopicForbiddenError)], ids=["invalid", "forbidden"]
)
def test_a_topic_nobody_may_send_to_fails_the_future_with_the_first_answer(
    code: int, expected: type[PenstockError]
) -> None:
    bench = Bench()
    bench.world.brokers[ORDERS] = missing(ORDERS, code)
    caller = bench.send()
    bench.until_asked()
    bench.update()
    assert isinstance(caller.result().exception(), expected)
    assert bench.world.requests == 1


@pytest.mark.row("H18")
def test_who_waits_for_metadata_is_released_when_somebody_closes_and_not_when_that_is_done() -> None:
    bench = Bench(**{"max.block.ms": 2**31 - 1})
    caller = bench.send()
    bench.until_asked()
    assert bench.front.front.stop()
    with pytest.raises(ClosedError):
        caller.result()
    assert not bench.front.front.sender_has_ended


@pytest.mark.row("J3")
@pytest.mark.parametrize(
    "failure",
    [
        None,
        DeliveryFailure(
            DeliveryFailureKind.FATAL, 31, "CLUSTER_AUTHORIZATION_FAILED", "no permission to write idempotently"
        ),
    ],
    ids=["closed", "fatal"],
)
def test_a_waiting_send_is_released_when_the_producer_ends_and_told_why(failure: DeliveryFailure | None) -> None:
    bench = Bench(**{"max.block.ms": 2**31 - 1})
    caller = bench.send()
    bench.until_asked()
    bench.front.front.sender_ended(failure)
    with pytest.raises(PenstockError) as caught:
        caller.result()
    if failure is None:
        assert isinstance(caught.value, ClosedError)
    else:
        assert "CLUSTER_AUTHORIZATION_FAILED" in f"{caught.value!r} {caught.value}"
