"""A direct producer whose calls never wait, and the memory that its callers wait for elsewhere: inside of the asynchronous form."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from ...api.bridging import Bridge, Link, settle
from ...api.errors import OutcomeUnknownError, PenstockError
from ...api.futures import Future
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.plugins import Plugins
from ..accumulator.buffer_pool import Ticket
from ..kernel.chunks import Chunk
from ..kernel.futures import RecordFuture
from .callbacks import result_of
from .environment import Seams
from .futures_front import Front
from .metadata_wait import Thread
from .nonblocking import Prepaid
from .producer import DirectProducer

T = TypeVar("T")


class Ending(Protocol):
    """Something that has ended, to be told on the loop."""

    def deliver(self) -> None: ...


class Watch:
    """The records of one chunk that a loop waits for: the sender thread tells of all of them at once."""

    __slots__ = ("_chunk", "_futures", "_records", "_watches", "bridge")

    def __init__(self, watches: "dict[Chunk, Watch]", chunk: Chunk, bridge: Bridge[Ending]) -> None:
        self.bridge: Final = bridge
        self._watches: Final = watches
        self._chunk: Final = chunk
        self._records: list[RecordFuture] = []
        self._futures: list[asyncio.Future[RecordMetadata]] = []

    def add(self, record: RecordFuture, future: asyncio.Future[RecordMetadata]) -> None:
        """Have the loop's future follow the record's."""
        self._records.append(record)
        self._futures.append(future)

    def deliver(self) -> None:
        """Tell of those that have ended. What shared a chunk need not end at once."""
        records, futures = self._records, self._futures
        self._records, self._futures = [], []
        for record, future in zip(records, futures, strict=True):
            if record.done():
                settle(future, *result_of(record))
            else:
                self.add(record, future)
        if not self._records:
            _ = self._watches.pop(self._chunk, None)

    def fail(self, error: PenstockError) -> None:
        """Nobody will tell."""
        for future in self._futures:
            settle(future, None, error)


class Columned:
    """What one `send_many` took."""

    __slots__ = ("_columns", "future")

    def __init__(self, columns: Future[FrameMetadata], future: asyncio.Future[FrameMetadata]) -> None:
        self._columns: Final = columns
        self.future: Final = future

    def deliver(self) -> None:
        settle(self.future, *result_of(self._columns))


class Watches:
    """Those of all chunks, for one loop. All but `heard` is the loop's."""

    def __init__(self) -> None:
        self._watches: dict[Chunk, Watch] = {}
        self._bridge: Bridge[Ending] | None = None

    def follow(self, bridge: Bridge[Ending], record: RecordFuture, future: asyncio.Future[RecordMetadata]) -> None:
        """Have the loop's future follow that of a record that has been taken."""
        if bridge is not self._bridge:
            # Those of a loop that is gone.
            self._watches = {}
            self._bridge = bridge
        chunk = record.chunk
        watch = self._watches.get(chunk)
        if watch is None:
            watch = self._watches[chunk] = Watch(self._watches, chunk, bridge)
            watch.add(record, future)
            if record.done():
                # It was heard of before there was a watch.
                bridge.post(watch)
        else:
            watch.add(record, future)

    def heard(self, chunks: Iterable[Chunk]) -> None:
        """Something of these chunks has ended; the sender thread."""
        watches = self._watches
        for chunk in chunks:
            watch = watches.get(chunk)
            if watch is not None:
                watch.bridge.post(watch)

    def fail(self, error: PenstockError) -> None:
        """Nobody will tell of any of them."""
        for watch in self._watches.values():
            watch.fail(error)
        self._watches = {}


class Bell(threading.Condition):
    """A condition that is heard by coroutines, too."""

    def __init__(self, lock: threading.Lock, ring: Callable[[], None]) -> None:
        super().__init__(lock)
        self._ring: Final = ring

    def notify_all(self) -> None:
        super().notify_all()
        self._ring()


class Hurried(DirectProducer):
    """A direct producer whose calls never wait."""

    def __init__(
        self,
        config: Mapping[str, object] | None,
        link: Link[Ending],
        prepaid: Prepaid,
        **given: Any,  # noqa: ANN401
    ) -> None:
        self._link: Final = link
        self._prepaid: Final = prepaid
        self.watches: Final = Watches()
        super().__init__(config, **given)

    def _parts(self, seams: Seams) -> tuple[Front, Thread]:
        lock = threading.Lock()
        shared = Bell(lock, self._link.ring)
        front, thread = super()._parts(seams._replace(shared=shared, apart=lambda: threading.Condition(lock)))
        front.hurry = self._prepaid
        front.heard = self.watches.heard
        return front, thread

    @property
    def front(self) -> Front:
        """Where records are put."""
        return self._rows

    @property
    def thread(self) -> Thread:
        """The sender thread."""
        return self._thread

    @property
    def plugins(self) -> Plugins | None:
        """Serializers and interceptors."""
        return self._plugins

    def after_fork(self) -> None:
        error = OutcomeUnknownError("the record is the parent process's")
        self.watches.fail(error)
        self._link.cut(error)
        super().after_fork()


class Memory:
    """The memory that one call waits for: a ticket between attempts, given back at the end."""

    def __init__(self, front: Front, prepaid: Prepaid, began: float) -> None:
        self._front: Final = front
        self._prepaid: Final = prepaid
        self._deadline: Final = began + front.settings.max_block_ms / 1000
        self._ticket: Ticket | None = None

    @property
    def left_s(self) -> float:
        """How long it may still be waited for."""
        return max(0.0, self._deadline - self._front.seams.now())

    def attempt(self, take: Callable[[], T]) -> T:
        """Try to put something, with what has been reserved."""
        self._prepaid.lay_down(self._ticket)
        try:
            return take()
        finally:
            self._ticket = self._prepaid.take_back()

    def queue(self, size: int, node: int, wake: Callable[[], None]) -> Callable[[], bool]:
        """Stand in the queue for so many bytes. Returns what says whether they are reserved.

        Raises:
            BufferExhaustedError: the time is over.
            ClosedError: the producer was closed.
        """
        front = self._front
        with front.shared:
            now = front.seams.now()
            if self._ticket is not None and (self._ticket.size, self._ticket.node) != (size, node):
                self._cancel()
            if self._ticket is None:
                self._ticket = front.pool.reserve(size, node, now=now, max_wait_s=self.left_s, wake=wake)
                front.rouse()
            ticket = self._ticket
            _ = ticket.poll(now)
        return lambda: ticket.granted or front.pool.closed

    def _cancel(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()
            self._ticket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._front.shared:
            self._cancel()
