"""Connects a producer's thread to an event loop: calls on the loop, waiting coroutines, and the futures of records."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from .errors import PenstockError
from .futures import Future, result_of
from .metadata import RecordMetadata

T = TypeVar("T")
R = TypeVar("R")
Polled = tuple[Any, PenstockError | None] | None
"""A result and an error, one of them None; or None as a whole: no outcome yet."""


class Bridge:
    """A queue of calls for one loop. Any thread may call `post`; the loop runs the calls in the same order. One wake-up
    serves all posted before the loop runs.

    Calls posted to a closed loop are dropped, because no coroutine can receive their results.
    """

    __slots__ = ("_drain_scheduled", "_posted", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self._posted: deque[Callable[[], None]] = deque()
        self._drain_scheduled = False

    def post(self, call: Callable[[], None]) -> None:
        """Schedule `call` on the loop."""
        self._posted.append(call)
        if not self._drain_scheduled:
            self._drain_scheduled = True
            try:
                _ = self.loop.call_soon_threadsafe(self.drain)
            except RuntimeError:
                self._posted.clear()

    def drain(self) -> None:
        """Run everything posted. Call on the loop."""
        # Reset before taking the first call: any later `post` schedules another drain.
        self._drain_scheduled = False
        for _ in range(len(self._posted)):
            self._posted.popleft()()


class LoopCondition(threading.Condition):
    """A condition whose `notify_all` also wakes the loop's coroutines."""

    def __init__(self, lock: threading.Lock, notify_loop: Callable[[], None]) -> None:
        super().__init__(lock)
        self._notify_loop: Final = notify_loop

    def notify_all(self) -> None:
        super().notify_all()
        self._notify_loop()


class BatchFutures(Generic[R]):
    """The loop's futures for the records of one batch, of which some may complete before others. One posted completion
    serves all that are complete."""

    __slots__ = ("_batch", "_batches", "_bridge", "_poll", "futures", "records")

    def __init__(
        self,
        batches: "dict[object, BatchFutures[R]]",
        batch: object,
        bridge: Bridge,
        poll_record: Callable[[R], Polled],
    ) -> None:
        self.records: list[R] = []
        self.futures: list[asyncio.Future[RecordMetadata]] = []
        """As many as `records`, in the same order."""
        self._batches: Final = batches
        self._batch: Final = batch
        self._bridge: Final = bridge
        self._poll: Final = poll_record

    def post(self) -> None:
        """Schedule `deliver` on the loop. Usually called on the producer's thread."""
        self._bridge.post(self.deliver)

    def deliver(self) -> None:
        """Complete the futures of complete records."""
        records, futures = self.records, self.futures
        self.records, self.futures = [], []
        for record, future in zip(records, futures, strict=True):
            outcome = self._poll(record)
            if outcome is None:
                self.records.append(record)
                self.futures.append(future)
            else:
                settle(future, *outcome)
        if not self.records:
            _ = self._batches.pop(self._batch, None)


class AsyncWaiters:
    """Coroutines of one loop that wait for changes by another thread, which calls `notify_all` after each change."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._notify_scheduled = False

    def notify_all(self) -> None:
        """Make all waiters check their condition again. Any thread may call this."""
        if self._waiting and not self._notify_scheduled:
            self._notify_scheduled = True
            try:
                _ = self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                self._notify_scheduled = False

    def _wake(self) -> None:
        self._notify_scheduled = False
        for future in list(self._waiting):
            _set(future)

    async def wait_for(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `done()` is true. Returns False on timeout."""
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while not done():
            if deadline is not None and self._loop.time() >= deadline:
                return False
            await self._wait_once(done, deadline)
        return True

    async def _wait_once(self, done: Callable[[], bool], deadline: float | None) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        self._waiting[woken] = None
        timer = None if deadline is None else self._loop.call_at(deadline, _set, woken)
        try:
            # A change made before this future was registered did not wake it: check again.
            if not done():
                await woken
        finally:
            del self._waiting[woken]
            if timer is not None:
                timer.cancel()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class KeyedLocks:
    """Fair locks by key: waiters queue per key, so records are buffered in the order of the calls.

    A key is in `in_use` from the first waiter until the last releases its lock. A caller that finds no key need not
    queue.
    """

    def __init__(self) -> None:
        self.in_use: dict[str, _KeyedLock] = {}

    @asynccontextmanager
    async def hold(self, kind: str) -> AsyncGenerator[None, None]:
        """Hold the lock of `kind`."""
        queue = self.in_use.get(kind)
        if queue is None:
            queue = self.in_use[kind] = _KeyedLock()
        queue.users += 1
        try:
            async with queue.lock:
                yield
        finally:
            queue.users -= 1
            if not queue.users:
                _ = self.in_use.pop(kind, None)


class _KeyedLock:
    """One key's lock; `asyncio.Lock` is first come, first served."""

    def __init__(self) -> None:
        self.lock: Final = asyncio.Lock()
        self.users = 0


class LoopBinding(Generic[R]):
    """A producer's binding to the event loop that uses it. There is one loop at a time; another may follow it.

    poll_record: returns a record's outcome, None if it has none yet. watch: called with the futures of a new batch and
    its first record; their `post` must be called, or have been called, for every record that completes from then on.
    """

    def __init__(self, poll_record: Callable[[R], Polled], watch: Callable[[BatchFutures[R], R], object]) -> None:
        self.send_locks = KeyedLocks()
        self.batches: dict[object, BatchFutures[R]] = {}
        """Records whose outcomes the loop awaits, by batch. Changed by the loop's thread only."""
        self._pending: Final[set[asyncio.Future[Any]]] = set()
        """Futures with no other reference, kept so that `detach` can fail them."""
        self._poll: Final = poll_record
        self._watch: Final = watch
        self._bridge: Bridge | None = None
        self._waiters: AsyncWaiters | None = None

    def bridge(self) -> Bridge:
        """The bridge to the running loop.

        Raises:
            RuntimeError: no loop is running, or another running loop uses the producer.
        """
        loop = asyncio.get_running_loop()
        bridge = self._bridge
        if bridge is not None:
            if bridge.loop is loop:
                return bridge
            if bridge.loop.is_running():
                raise RuntimeError("the producer is in use by another event loop")
        self.send_locks = KeyedLocks()
        self.batches = {}
        self._waiters = AsyncWaiters(loop)
        bridge = self._bridge = Bridge(loop)
        return bridge

    async def wait_for(
        self, condition: threading.Condition, done: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        """Like `condition.wait_for`, for a coroutine: `done` is called under the condition's lock, which the caller does
        not hold. Returns False on timeout.

        Raises:
            RuntimeError: as `bridge`.
        """

        def locked() -> bool:
            with condition:
                return done()

        _ = self.bridge()
        assert self._waiters is not None, "a loop without waiters"
        return await self._waiters.wait_for(locked, timeout_s)

    def notify_all(self) -> None:
        """Wake the waiting coroutines after a change. Any thread may call this."""
        waiters = self._waiters
        if waiters is not None:
            waiters.notify_all()

    def follow(self, bridge: Bridge, batch: object, record: R, future: asyncio.Future[RecordMetadata]) -> None:
        """Complete `future` when `record`, which is in `batch`, completes."""
        known = self.batches.get(batch)
        if known is None:
            known = self.batches[batch] = BatchFutures(self.batches, batch, bridge, self._poll)
            known.records.append(record)
            known.futures.append(future)
            self._watch(known, record)
        else:
            known.records.append(record)
            known.futures.append(future)

    def post_batches(self, batches: Iterable[object]) -> None:
        """Post the futures of these batches, some of whose records have completed."""
        known = self.batches
        for batch in batches:
            futures = known.get(batch)
            if futures is not None:
                futures.post()

    def future_of(self, source: Future[T]) -> asyncio.Future[T]:
        """A future of the running loop with the outcome of `source`."""
        bridge = self.bridge()
        future: asyncio.Future[T] = bridge.loop.create_future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        source.add_done_callback(lambda _: bridge.post(lambda: settle(future, *result_of(source))))
        return future

    def detach(self, error: BaseException) -> None:
        """In a forked child: drop the parent's loop and fail its futures with `error`."""
        self._bridge = self._waiters = None
        batches, self.batches = self.batches, {}
        for future in [*self._pending, *(one for batch in batches.values() for one in batch.futures)]:
            settle(future, None, error)


def settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Set a future's result or error, unless it is done or cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
