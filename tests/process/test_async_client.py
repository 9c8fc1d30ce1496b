"""The client library's asyncio form against a daemon that the test plays: what is taken, what is waited for, and who is told."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from penstock.api.interceptors import Interceptor
from penstock.client import (
    AsyncProducer,
    BufferExhaustedError,
    ClosedError,
    OutcomeUnknownError,
    RefusedError,
    SerializationError,
    WaitTimeoutError,
)
from penstock.wire import frames
from penstock.wire.frames import Code, PartitionInfo, Run, Type

from tests.fakes.fake_daemon import FakeDaemon, Peer

WAIT_S = 60.0
RECORD = b"x" * 1_000
T = TypeVar("T")


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads wake it."""

    woken = 0

    def call_soon_threadsafe(self, *arguments: Any, **more: Any) -> asyncio.Handle:
        if threading.current_thread().name == "penstock-client":
            self.woken += 1
        return super().call_soon_threadsafe(*arguments, **more)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path) as fake:
        yield fake


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner() as runner:
        return runner.run(asyncio.wait_for(main, 3 * WAIT_S))


async def aside(function: Callable[..., T], *arguments: Any) -> T:
    """What the daemon does, while the loop runs."""
    return await asyncio.to_thread(function, *arguments)


def met(daemon: FakeDaemon) -> Peer:
    peer = daemon.accept()
    _ = peer.greet()
    return peer


async def settle() -> None:
    """Let everything go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_records_sent_together_share_a_frame_and_the_loop_is_woken_once(daemon: FakeDaemon) -> None:
    async def main() -> int:
        async with AsyncProducer(daemon.path, linger_ms=10_000) as producer:
            futures = [await producer.send("orders", b"v%d" % i, b"k%d" % i) for i in range(500)]
            flushing = asyncio.create_task(producer.flush())
            peer = await aside(met, daemon)
            sent = await aside(peer.frame)
            assert sent.values == [b"v%d" % i for i in range(500)]
            assert (await aside(peer.message))[0] == Type.FLUSH
            assert not any(future.done() for future in futures)
            before = loop.woken
            peer.deliver(sent, partition=4, offset=7)
            await flushing
            assert [future.result().offset for future in futures] == list(range(7, 507))
            assert futures[0].result()[:2] == ("orders", 4)
            return loop.woken - before

    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        # One for the frame, one for who flushes, and one for room.
        assert runner.run(asyncio.wait_for(main(), 3 * WAIT_S)) <= 3


def test_whoever_finds_the_buffer_full_waits_and_records_are_taken_in_the_order_of_the_calls(
    daemon: FakeDaemon,
) -> None:
    async def main() -> None:
        producer = AsyncProducer(daemon.path, linger_ms=0, batch_bytes=1, buffer_bytes_max=4_000)
        sends = [asyncio.create_task(producer.send("orders", b"%04d" % i + RECORD)) for i in range(20)]
        peer = await aside(met, daemon)
        await settle()
        taken = sum(task.done() for task in sends)
        assert 0 < taken < 5
        values = []
        for i in range(20):
            sent = await aside(peer.frame)
            values += [int(value[:4]) for value in sent.values]
            peer.deliver(sent, offset=i)
        assert values == list(range(20))
        assert [(await (await task)).offset for task in sends] == list(range(20))
        await producer.close()
        assert producer.held_bytes == 0

    run(main())


def test_a_send_that_is_cancelled_or_out_of_time_has_taken_nothing(daemon: FakeDaemon) -> None:
    async def main() -> None:
        producer = AsyncProducer(daemon.path, linger_ms=0, batch_bytes=1, buffer_bytes_max=2_000, max_block_ms=300)
        first = await producer.send("orders", b"first" + RECORD)
        cancelled = asyncio.create_task(producer.send("orders", b"never" + RECORD))
        many = asyncio.create_task(producer.send_many("orders", [b"never" + RECORD]))
        await settle()
        assert not cancelled.done()
        assert cancelled.cancel()
        assert many.cancel()
        for task in (cancelled, many):
            with pytest.raises(asyncio.CancelledError):
                _ = await task
        with pytest.raises(BufferExhaustedError, match=r"no room .* within 300 ms"):
            _ = await producer.send("orders", b"late" + RECORD)
        waiting = asyncio.create_task(producer.send("orders", b"second" + RECORD))
        peer = await aside(met, daemon)
        for expected in (b"first", b"second"):
            sent = await aside(peer.frame)
            assert sent.values == [expected + RECORD]
            peer.deliver(sent)
        _ = await first, await (await waiting)
        assert await aside(peer.quiet, 0.05)
        await producer.close()

    run(main())


def test_an_outcome_whose_future_was_cancelled_troubles_nobody(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.path, linger_ms=10_000) as producer:
            one, two = await producer.send("orders", b"1"), await producer.send("orders", b"2")
            with pytest.raises(TimeoutError):
                _ = await asyncio.wait_for(one, 0.01)
            flushing = asyncio.create_task(producer.flush())
            peer = await aside(met, daemon)
            peer.deliver(await aside(peer.frame), offset=5)
            await flushing
            assert one.cancelled()
            assert two.result().offset == 6

    run(main())


def test_several_loops_may_use_a_producer_one_after_the_other(daemon: FakeDaemon) -> None:
    producer = AsyncProducer(daemon.path, linger_ms=0)
    left: list[asyncio.Future[Any]] = []

    async def leave_one_behind() -> None:
        left.append(await producer.send("orders", b"unanswered"))
        left.append(await producer.send_many("orders", [b"unanswered too"]))

    run(leave_one_behind())
    peer = met(daemon)
    behind = [peer.frame(), peer.frame()]

    async def go_on() -> None:
        future = await producer.send("orders", b"more")
        for sent in (*behind, await aside(peer.frame)):
            peer.deliver(sent, offset=sent.seq)
        assert (await future).offset == 2
        await producer.flush(WAIT_S)
        await producer.close(WAIT_S)

    run(go_on())
    assert not any(future.done() for future in left)


def test_two_loops_at_a_time_are_refused(daemon: FakeDaemon) -> None:
    async def other(producer: AsyncProducer) -> None:
        _ = await producer.send("orders", b"v")

    async def main() -> None:
        producer = AsyncProducer(daemon.path, linger_ms=0)
        _ = await producer.send("orders", b"v")
        with pytest.raises(RuntimeError, match="another event loop"):
            await aside(run, other(producer))
        await producer.close(0)

    with asyncio.Runner() as runner:
        runner.run(main())


def test_what_the_daemon_refuses_and_what_is_no_record_is_an_error(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.path, linger_ms=0, value_serializer="int") as producer:
            with pytest.raises(SerializationError):
                _ = await producer.send("orders", "text")
            with pytest.raises(ValueError, match="not a topic"):
                _ = await producer.send("no topic", 1)
            one, many = await producer.send("orders", 1), await producer.send_many("orders", [2, 3])
            peer = await aside(met, daemon)
            for _ in range(2):
                sent = await aside(peer.frame)
                peer.say(_refusal(sent.seq))
            for future in (one, many):
                with pytest.raises(RefusedError, match="not_allowed"):
                    _ = await future
        with pytest.raises(ClosedError):
            _ = await producer.send("orders", 1)

    run(main())


def _refusal(seq: int) -> bytes:
    return frames.refused(seq, Code.NOT_ALLOWED, "not yours")


def test_columns_go_whole_and_their_answer_has_every_place(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.path, key_serializer="int") as producer:
            future = await producer.send_many("orders", [b"a", b"b"], [1, 2], level="accepted")
            peer = await aside(met, daemon)
            sent = await aside(peer.frame)
            assert (sent.level, sent.keys) == (0, [b"\x00\x00\x00\x01", b"\x00\x00\x00\x02"])
            peer.ack(sent.seq, 0, runs=[Run(1, 9, 2, -1)])
            assert (await future).count == 2

    run(main())


def test_partitions_are_asked_for_without_holding_up_the_loop_and_a_partitioner_waits_for_them(
    daemon: FakeDaemon,
) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.path, linger_ms=0, partitioner=lambda *given: len(given[3]) - 1) as producer:
            sending = asyncio.create_task(producer.send("orders", b"v"))
            peer = await aside(met, daemon)
            question = await aside(peer.message)
            assert question[0] == Type.PARTITIONS
            assert not sending.done()
            peer.say(_done(question[1], [PartitionInfo(0, 1, [1], [1]), PartitionInfo(1, 1, [1], [1])]))
            future = await sending
            sent = await aside(peer.frame)
            assert sent.partitions == [1]
            peer.deliver(sent, partition=1)
            assert (await future).partition == 1
            with pytest.raises(WaitTimeoutError):
                _ = await producer.partitions_for("others", 0.05)

    run(main())


def _done(seq: int, partitions: list[PartitionInfo]) -> bytes:
    return frames.done(seq, partitions)


def test_a_close_whose_time_is_over_or_that_is_cancelled_gives_up_what_is_left(daemon: FakeDaemon) -> None:
    async def main() -> None:
        timed = AsyncProducer(daemon.path, linger_ms=0)
        future = await timed.send("orders", b"v")
        peer = await aside(met, daemon)
        _ = await aside(peer.frame)
        with pytest.raises(WaitTimeoutError):
            await timed.flush(0.02)
        await timed.close(0.02)
        with pytest.raises(OutcomeUnknownError):
            _ = await future
        cancelled = AsyncProducer(daemon.path, linger_ms=0)
        future = await cancelled.send("orders", b"v")
        second = await aside(met, daemon)
        _ = await aside(second.frame)
        closing = asyncio.create_task(cancelled.close())
        await settle()
        assert closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(OutcomeUnknownError):
            _ = await future

    run(main())


def test_interceptors_are_told_on_the_producers_thread_before_the_future_is_done(daemon: FakeDaemon) -> None:
    told: list[tuple[str, object, bool]] = []

    class Telling(Interceptor):
        def on_ack(self, metadata: Any, error: object, *_: object) -> None:
            told.append((threading.current_thread().name, metadata.offset, futures[0].done()))

        def on_send_error(self, metadata: Any, error: object, *_: object) -> None:
            told.append((threading.current_thread().name, type(error), False))

    futures: list[asyncio.Future[Any]] = []

    async def main() -> None:
        producer = AsyncProducer(
            daemon.path, linger_ms=0, batch_bytes=1, buffer_bytes_max=2_000, interceptors=[Telling()]
        )
        futures.append(await producer.send("orders", RECORD))
        full = asyncio.create_task(producer.send("orders", RECORD))
        await settle()
        assert told == []
        assert full.cancel()
        with pytest.raises(asyncio.CancelledError):
            _ = await full
        peer = await aside(met, daemon)
        peer.deliver(await aside(peer.frame), offset=3)
        assert (await futures[0]).offset == 3
        await producer.close()

    run(main())
    main_thread = threading.current_thread().name
    assert told == [(main_thread, asyncio.CancelledError, False), ("penstock-client", 3, False)]


def test_after_a_fork_the_child_has_a_session_and_a_loop_of_its_own(daemon: FakeDaemon) -> None:
    async def in_child(producer: AsyncProducer, future: asyncio.Future[Any]) -> int:
        unknown = isinstance(future.exception(), OutcomeUnknownError)
        offset = (await (await producer.send("orders", b"child"))).offset
        await producer.close(WAIT_S)
        return 0 if unknown and offset == 7 else 2

    async def main() -> None:
        producer = AsyncProducer(daemon.path, client_id="app", linger_ms=0)
        future = await producer.send("orders", b"parent")
        peer = await aside(met, daemon)
        sent = await aside(peer.frame)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = run(in_child(producer, future))
            finally:
                os._exit(code)
        child = await aside(daemon.accept)
        assert (await aside(child.greet))[2] == f"app.{pid}"
        second = await aside(child.frame)
        assert second.values == [b"child"]
        peer.deliver(sent)
        assert (await future).offset == 100
        child.deliver(second, offset=7)
        assert await aside(child.message) == [Type.BYE]
        _, status = await aside(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await producer.close()

    run(main())


def test_headers_that_can_be_gone_through_once_are_there_though_room_was_waited_for(daemon: FakeDaemon) -> None:
    async def main() -> None:
        producer = AsyncProducer(daemon.path, linger_ms=0, batch_bytes=1, buffer_bytes_max=2_000)
        _ = await producer.send("orders", RECORD)
        waiting = asyncio.create_task(producer.send("orders", RECORD, headers=((name, b"1") for name in "ab")))
        peer = await aside(met, daemon)
        assert not waiting.done()
        peer.deliver(await aside(peer.frame))
        _ = await waiting
        sent = await aside(peer.frame)
        assert sent.headers == [["a", b"1", "b", b"1"]]
        peer.deliver(sent)
        await producer.close()

    run(main())


def test_a_close_that_gives_up_lets_callbacks_wait_for_the_loop(daemon: FakeDaemon) -> None:
    async def main() -> None:
        told: list[BaseException | None] = []

        async def note(error: BaseException | None) -> None:
            told.append(error)

        class Asking(Interceptor):
            def on_ack(self, metadata: object, error: BaseException | None, headers: object, /) -> None:
                asyncio.run_coroutine_threadsafe(note(error), loop).result(WAIT_S)

        loop = asyncio.get_running_loop()
        producer = AsyncProducer(daemon.path, linger_ms=0, interceptors=[Asking()])
        future = await producer.send("orders", b"v")
        peer = await aside(met, daemon)
        _ = await aside(peer.frame)
        await producer.close(0.1)
        assert told == [future.exception()]
        assert isinstance(told[0], OutcomeUnknownError)

    run(main())


def test_whoever_waits_for_partitions_behind_others_is_told_no_later_than_they_are(daemon: FakeDaemon) -> None:
    async def main() -> None:
        producer = AsyncProducer(daemon.path, linger_ms=0, max_block_ms=300, partitioner=lambda *_: 0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        sends = asyncio.gather(*(producer.send("orders", b"v") for _ in range(60)), return_exceptions=True)
        _ = await aside(met, daemon)
        assert all(isinstance(told, WaitTimeoutError) for told in await sends)
        # One after the other that would be 18 s.
        assert loop.time() - began < 9
        await producer.close(0.1)

    run(main())
