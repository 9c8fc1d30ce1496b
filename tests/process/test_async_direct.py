"""The direct producer's asyncio form against an embedded broker: what is taken, what is waited for, and who is told."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from penstock.api.errors import (
    BrokerError,
    BufferExhaustedError,
    ClosedError,
    InvalidTopicError,
    MetadataTimeoutError,
    OutcomeUnknownError,
    SerializationError,
    TransactionStateError,
    WaitTimeoutError,
)
from penstock.api.interceptors import Interceptor
from penstock.producer import AsyncDirectProducer

from tests.harness.embedded import EmbeddedCluster
from tests.harness.readers import read_topic

WAIT_S = 60.0
PRODUCE = 0
RECORD = b"x" * 1_000
T = TypeVar("T")
SMALL: dict[str, object] = {"batch.size": 2_000, "buffer.memory": 8_000, "linger.ms": 0}
"""Memory for a few records only."""


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often the sender thread wakes it."""

    woken = 0

    def call_soon_threadsafe(self, *arguments: Any, **more: Any) -> asyncio.Handle:
        if threading.current_thread().name == "penstock-sender":
            self.woken += 1
        return super().call_soon_threadsafe(*arguments, **more)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(abs(hash(request.node.name)))
    cluster.create_topic(name, partitions=1)
    yield name
    _ = cluster.nodes[0].command(op="clear")


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner() as runner:
        return runner.run(asyncio.wait_for(main, 3 * WAIT_S))


def made(cluster: EmbeddedCluster, **settings: Any) -> AsyncDirectProducer:
    return AsyncDirectProducer({"bootstrap.servers": cluster.bootstrap}, **settings)


def hold(cluster: EmbeddedCluster, ms: int) -> None:
    """Keep the answers to the next Produce requests back for a while."""
    assert cluster.nodes[0].command(op="delay_answer", api=PRODUCE, ms=ms, times=1) == {"ok": True}


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    return [record.value or b"" for record in read_topic(cluster, topic)]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_many_records_are_told_with_few_wake_ups_and_in_their_places(cluster: EmbeddedCluster, topic: str) -> None:
    async def main() -> int:
        async with made(cluster, linger_ms=50) as producer:
            assert [one.partition for one in await producer.partitions_for(topic)] == [0]
            before = loop.woken
            futures = await asyncio.gather(*(producer.send(topic, b"%d" % i) for i in range(2_000)))
            await producer.flush(WAIT_S)
            assert [future.result().offset for future in futures] == list(range(2_000))
            return loop.woken - before

    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        woken = runner.run(asyncio.wait_for(main(), WAIT_S))
    assert woken < 20
    assert values(cluster, topic) == [b"%d" % i for i in range(2_000)]


def test_whoever_finds_memory_full_waits_and_records_are_taken_in_the_order_of_the_calls(
    cluster: EmbeddedCluster, topic: str
) -> None:
    async def main() -> None:
        async with made(cluster, **_named(SMALL)) as producer:
            _ = await producer.partitions_for(topic, WAIT_S)
            hold(cluster, 300)
            sends = [asyncio.create_task(producer.send(topic, b"%03d" % i + RECORD)) for i in range(40)]
            await settle()
            assert 0 < sum(task.done() for task in sends) < 20
            assert producer.held_bytes <= 8_000
            futures = [await task for task in sends]
            assert [(await future).offset for future in futures] == list(range(40))
            assert (await (await producer.send_many(topic, [b"%03d" % i + RECORD for i in range(40, 80)]))).count == 40

    run(main())
    assert [int(value[:3]) for value in values(cluster, topic)] == list(range(80))


def _named(settings: dict[str, object]) -> dict[str, object]:
    return {name.replace(".", "_"): value for name, value in settings.items()}


def test_a_send_that_is_cancelled_or_out_of_time_has_taken_nothing(cluster: EmbeddedCluster, topic: str) -> None:
    async def main() -> None:
        async with made(cluster, max_block_ms=400, **_named(SMALL)) as producer:
            _ = await producer.partitions_for(topic, WAIT_S)
            hold(cluster, 1_500)
            filling = [await producer.send(topic, b"taken" + RECORD) for _ in range(4)]
            cancelled = asyncio.create_task(producer.send(topic, b"never" + RECORD))
            await settle()
            assert not cancelled.done()
            assert cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                _ = await cancelled
            late = await producer.send(topic, b"late" + RECORD)
            assert isinstance(late.exception(), BufferExhaustedError)
            for future in filling:
                _ = await future
            _ = await (await producer.send(topic, b"taken" + RECORD))
            assert producer.held_bytes == 0

    run(main())
    assert [value[:5] for value in values(cluster, topic)] == [b"taken"] * 5


def test_columns_cancelled_on_their_way_in_tell_how_many_were_taken(cluster: EmbeddedCluster, topic: str) -> None:
    async def main() -> int:
        async with made(cluster, **_named(SMALL)) as producer:
            _ = await producer.partitions_for(topic, WAIT_S)
            hold(cluster, 500)
            sending = asyncio.create_task(producer.send_many(topic, [b"%03d" % i + RECORD for i in range(100)]))
            await settle()
            assert sending.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                _ = await sending
            taken: int = caught.value.taken  # type: ignore[attr-defined]
            metadata = await caught.value.future  # type: ignore[attr-defined]
            assert (metadata.count, metadata.runs[0].offset) == (taken, 0)
            return taken

    taken = run(main())
    assert 0 < taken < 20
    assert [int(value[:3]) for value in values(cluster, topic)] == list(range(taken))


def test_a_topic_that_comes_later_is_waited_for_without_holding_up_the_loop(cluster: EmbeddedCluster) -> None:
    async def main() -> None:
        async with made(cluster, max_block_ms=20_000, retry_backoff_ms=20) as producer:
            sends = [asyncio.create_task(producer.send("comes-later", b"%d" % i)) for i in range(3)]
            given_up = asyncio.create_task(producer.send("comes-later", b"never"))
            await settle()
            assert given_up.cancel()
            await asyncio.to_thread(cluster.create_topic, "comes-later", partitions=1)
            assert [(await (await task)).offset for task in sends] == [0, 1, 2]

    run(main())


def test_what_fails_in_the_synchronous_futures_fails_in_these(cluster: EmbeddedCluster, topic: str) -> None:
    async def main() -> None:
        async with made(cluster, max_block_ms=100, value_serializer="int") as producer:
            _ = await producer.partitions_for(topic, WAIT_S)
            missing = await producer.send("nowhere", 1)
            assert isinstance(missing.exception(), MetadataTimeoutError)
            with pytest.raises(MetadataTimeoutError):
                _ = await producer.partitions_for("nowhere")
            assert isinstance((await producer.send("no topic", 1)).exception(), InvalidTopicError)
            many = await producer.send_many("nowhere", [1, 2])
            with pytest.raises(MetadataTimeoutError):
                _ = await many
            with pytest.raises(SerializationError):
                _ = await producer.send(topic, "text")
            with pytest.raises(ValueError, match="not between"):
                _ = await producer.send(topic, 1, partition=-1)
            fails = {"op": "fail_next", "api": PRODUCE, "error": "INVALID_RECORD", "times": 1}
            assert cluster.nodes[0].command(**fails) == {"ok": True}
            future = await producer.send(topic, 1)
            with pytest.raises(BrokerError, match="INVALID_RECORD"):
                _ = await future
        with pytest.raises(ClosedError):
            _ = await producer.send(topic, 1)

    run(main())


def test_several_loops_may_use_a_producer_one_after_the_other(cluster: EmbeddedCluster, topic: str) -> None:
    producer = made(cluster, linger_ms=0)
    left: list[asyncio.Future[Any]] = []

    async def leave_behind() -> None:
        _ = await producer.partitions_for(topic, WAIT_S)
        hold(cluster, 300)
        left.append(await producer.send(topic, b"unanswered"))
        left.append(await producer.send_many(topic, [b"unanswered too"]))

    async def go_on() -> None:
        assert (await (await producer.send(topic, b"more"))).offset == 2
        await producer.close(WAIT_S)

    run(leave_behind())
    run(go_on())
    assert not any(future.done() for future in left)
    assert values(cluster, topic) == [b"unanswered", b"unanswered too", b"more"]


def test_two_loops_at_a_time_are_refused(cluster: EmbeddedCluster, topic: str) -> None:
    async def other(producer: AsyncDirectProducer) -> None:
        _ = await producer.send(topic, b"v")

    async def main() -> None:
        async with made(cluster) as producer:
            _ = await producer.send(topic, b"v")
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(run, other(producer))

    with asyncio.Runner() as runner:
        runner.run(main())


def test_a_close_whose_time_is_over_or_that_is_cancelled_gives_up_what_is_left(
    cluster: EmbeddedCluster, topic: str
) -> None:
    async def main() -> None:
        for cancel in (False, True):
            producer = made(cluster, linger_ms=0)
            _ = await producer.partitions_for(topic, WAIT_S)
            hold(cluster, 2_000)
            future = await producer.send(topic, b"v")
            with pytest.raises(WaitTimeoutError):
                await producer.flush(0.1)
            if cancel:
                closing = asyncio.create_task(producer.close())
                await settle()
                assert closing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await closing
            else:
                await producer.close(0.05)
            with pytest.raises((OutcomeUnknownError, ClosedError)):
                _ = await future
            await producer.close()

    run(main())


def test_interceptors_are_told_on_the_sender_thread_and_before_the_future_is_done(
    cluster: EmbeddedCluster, topic: str
) -> None:
    told: list[tuple[str, int, bool]] = []
    refused: list[tuple[str, type[BaseException]]] = []
    futures: list[asyncio.Future[Any]] = []

    class Telling(Interceptor):
        def on_ack(self, metadata: Any, error: object, *_: object) -> None:
            own = futures[metadata.offset : metadata.offset + 1]
            told.append((threading.current_thread().name, metadata.offset, any(one.done() for one in own)))

        def on_send_error(self, metadata: Any, error: BaseException, *_: object) -> None:
            refused.append((metadata.topic, type(error)))

    async def main() -> None:
        async with made(cluster, max_block_ms=50, linger_ms=20, interceptors=[Telling()]) as producer:
            _ = await producer.partitions_for(topic, WAIT_S)
            for _ in range(3):
                futures.append(await producer.send(topic, b"v"))  # noqa: PERF401  (interceptors look at it)
            futures.append(await producer.send_many(topic, [b"w"]))
            _ = await futures[-1]
            assert isinstance((await producer.send("nowhere", b"v")).exception(), MetadataTimeoutError)
            waiting = asyncio.create_task(producer.send("nowhere", b"v"))
            await settle()
            assert waiting.cancel()
            await asyncio.wait((waiting,))

    run(main())
    assert told == [("penstock-sender", offset, False) for offset in range(4)]
    assert refused == [("nowhere", MetadataTimeoutError), ("nowhere", asyncio.CancelledError)]


def test_a_transaction_is_committed_and_another_aborted(cluster: EmbeddedCluster, topic: str) -> None:
    async def main() -> None:
        async with made(cluster, transactional_id=f"async-{topic}") as producer:
            with pytest.raises(TransactionStateError):
                _ = await producer.send(topic, b"too early")
            await producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            future = await producer.send(topic, b"committed")
            await producer.send_offsets_to_transaction({(topic, 0): 5}, "group", WAIT_S)
            await producer.commit_transaction(WAIT_S)
            assert (await future).offset == 0
            producer.begin_transaction()
            _ = await (await producer.send(topic, b"aborted"))
            await producer.abort_transaction(WAIT_S)

    run(main())


def test_after_a_fork_the_child_has_a_producer_and_a_loop_of_its_own(cluster: EmbeddedCluster, topic: str) -> None:
    async def in_child(producer: AsyncDirectProducer, futures: list[asyncio.Future[Any]]) -> int:
        unknown = all(isinstance(future.exception(), OutcomeUnknownError) for future in futures)
        offset = (await (await producer.send(topic, b"child"))).offset
        await producer.close(WAIT_S)
        return 0 if unknown and offset == 1 else 2

    async def main() -> None:
        producer = made(cluster, linger_ms=0)
        _ = await (await producer.send(topic, b"first"))
        waiting = made(cluster, linger_ms=60_000)
        futures = [await waiting.send(topic, b"parent")]
        futures += [await waiting.send_many(topic, [b"parent"])]  # type: ignore[list-item]
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = run(in_child(producer, futures))
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await waiting.close()
        await producer.close()
        assert [(await futures[0]).offset, (await futures[1]).count] == [2, 1]

    run(main())
    assert values(cluster, topic) == [b"first", b"child", b"parent", b"parent"]


def test_headers_that_can_be_gone_through_once_are_there_though_topic_and_memory_were_waited_for(
    cluster: EmbeddedCluster, topic: str
) -> None:
    def pairs(i: int) -> Iterator[tuple[str, bytes]]:
        yield "number", b"%d" % i

    async def main() -> None:
        async with made(cluster, **_named(SMALL)) as producer:
            _ = await producer.send(topic, b"first", headers=pairs(0))
            hold(cluster, 300)
            sends = [producer.send(topic, RECORD, headers=pairs(1 + i)) for i in range(10)]
            columns = producer.send_many(topic, [RECORD] * 10, headers=[pairs(11 + i) for i in range(10)])
            _, last = await asyncio.gather(asyncio.gather(*sends), columns)
            _ = await last

    run(main())
    headers = [record.headers for record in read_topic(cluster, topic)]
    assert headers == [(("number", b"%d" % i),) for i in range(21)]


def test_whoever_waits_behind_others_is_told_no_later_than_they_are() -> None:
    async def main() -> None:
        async with AsyncDirectProducer({"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 500}) as producer:
            loop = asyncio.get_running_loop()
            began = loop.time()
            sends = [producer.send("orders", b"v") for _ in range(20)]
            many = [producer.send_many("orders", [b"v"]) for _ in range(20)]
            for futures in await asyncio.gather(asyncio.gather(*sends), asyncio.gather(*many)):
                assert all(isinstance(future.exception(), MetadataTimeoutError) for future in futures)
            # One after the other that would be 10 s for each of the two.
            assert loop.time() - began < 5

    run(main())


class Closed(Interceptor):
    """Writes down what it is told, and whether it was closed."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_ack(self, metadata: object, error: BaseException | None, headers: object, /) -> None:
        self.told.append("delivered" if error is None else "failed")

    def close(self) -> None:
        self.told.append("closed")


def test_a_second_close_closes_no_interceptor_that_is_still_to_be_told(cluster: EmbeddedCluster, topic: str) -> None:
    async def main() -> None:
        watching = Closed()
        producer = made(cluster, interceptors=[watching])
        _ = await producer.partitions_for(topic)
        hold(cluster, 300)
        future = await producer.send(topic, b"v")
        closing = asyncio.create_task(producer.close())
        await settle()
        await producer.close()
        await closing
        assert (await future).offset == 0
        assert watching.told == ["delivered", "closed"]

    run(main())


def test_a_close_that_gives_up_lets_callbacks_wait_for_the_loop(cluster: EmbeddedCluster, topic: str) -> None:
    async def main() -> None:
        told: list[BaseException | None] = []

        async def note(error: BaseException | None) -> None:
            told.append(error)

        class Asking(Interceptor):
            def on_ack(self, metadata: object, error: BaseException | None, headers: object, /) -> None:
                asyncio.run_coroutine_threadsafe(note(error), loop).result(WAIT_S)

        loop = asyncio.get_running_loop()
        producer = made(cluster, interceptors=[Asking()])
        _ = await producer.partitions_for(topic)
        hold(cluster, 2_000)
        future = await producer.send(topic, b"v")
        await producer.close(0.1)
        assert told == [future.exception()]
        assert told[0] is not None

    run(main())
