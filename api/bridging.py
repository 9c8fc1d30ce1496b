"""Passes completions from a producer's thread to an event loop. One wake-up serves all posted before the loop runs."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


class Bridge(Generic[T]):
    """A queue of outcomes for one loop. Any thread may call `post`; `deliver` is called on the loop, in the same order.

    Items posted to a closed loop are dropped, because no coroutine can receive them.
    """

    __slots__ = ("_deliver", "_drain_scheduled", "_posted", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None]) -> None:
        self.loop: Final = loop
        self._deliver: Final = deliver
        self._posted: deque[T] = deque()
        self._drain_scheduled = False

    def post(self, item: T) -> None:
        """Schedule `item` for delivery on the loop."""
        self._posted.append(item)
        if not self._drain_scheduled:
            self._drain_scheduled = True
            try:
                _ = self.loop.call_soon_threadsafe(self.drain)
            except RuntimeError:
                self._posted.clear()

    def drain(self) -> None:
        """Deliver everything posted. Call on the loop."""
        # Reset before taking the first item: any later `post` schedules another drain.
        self._drain_scheduled = False
        for _ in range(len(self._posted)):
            self._deliver(self._posted.popleft())


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


class LoopBinding(Generic[T]):
    """A producer's binding to the event loop that uses it. There is one loop at a time; another may follow it."""

    def __init__(self, deliver: Callable[[T], None]) -> None:
        self.send_locks = KeyedLocks()
        self.pending: Final[set[asyncio.Future[Any]]] = set()
        """Futures with no other reference, kept so that `detach` can fail them."""
        self._deliver: Final = deliver
        self._bridge: Bridge[T] | None = None
        self._waiters: AsyncWaiters | None = None

    def bridge(self) -> Bridge[T]:
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
        self._waiters = AsyncWaiters(loop)
        bridge = self._bridge = Bridge(loop, self._deliver)
        return bridge

    def waiters(self) -> AsyncWaiters:
        """The waiters of the running loop.

        Raises:
            RuntimeError: as `bridge`.
        """
        _ = self.bridge()
        assert self._waiters is not None, "a loop without waiters"
        return self._waiters

    def notify_all(self) -> None:
        """Wake the waiters after a change. Any thread may call this."""
        waiters = self._waiters
        if waiters is not None:
            waiters.notify_all()

    def track(self, future: asyncio.Future[Any]) -> None:
        """Keep a reference to `future` until it is done."""
        self.pending.add(future)
        future.add_done_callback(self.pending.discard)

    def detach(self, error: BaseException) -> None:
        """In a forked child: drop the parent's loop and fail the tracked futures with `error`."""
        self._bridge = self._waiters = None
        for future in list(self.pending):
            settle(future, None, error)


def settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Set a future's result or error, unless it is done or cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
