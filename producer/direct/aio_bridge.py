"""Internals of the asynchronous form: a direct producer whose calls never block, and waits for memory outside it."""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ...api.bridging import LoopBinding, LoopCondition
from ...api.errors import OutcomeUnknownError
from ...api.plugins import Plugins
from ..accumulator.buffer_pool import ANY_NODE, MemoryWaiter
from ..kernel.futures import DirectRecordFuture
from .environment import Environment, SenderPort
from .front import Front
from .nonblocking import WouldBlockError
from .producer import DirectProducer

T = TypeVar("T")


class NonBlockingProducer(DirectProducer):
    """A direct producer whose calls never block."""

    def __init__(
        self,
        config: Mapping[str, object] | None,
        link: LoopBinding[DirectRecordFuture],
        reservation: "Reservation",
        **given: Any,  # noqa: ANN401
    ) -> None:
        self._link: Final = link
        self._reservation: Final = reservation
        super().__init__(config, **given)

    def _make_front_and_sender(self, seams: Environment) -> tuple[Front, SenderPort]:
        lock = threading.Lock()
        shared = LoopCondition(lock, self._link.notify_all)
        front, thread = super()._make_front_and_sender(
            seams._replace(condition=shared, new_condition=lambda: threading.Condition(lock))
        )
        front.accumulator.would_block = front.metadata.would_block = self._reservation
        front.completion.on_chunks_resolved = self._link.post_batches
        return front, thread

    @property
    def front(self) -> Front:
        """The front that accepts the records."""
        return self._front

    @property
    def thread(self) -> SenderPort:
        """The sender thread."""
        return self._thread

    @property
    def plugins(self) -> Plugins:
        """Serializers and interceptors."""
        return self._plugins

    def after_fork(self) -> None:
        self._link.detach(OutcomeUnknownError("the record is the parent process's"))
        super().after_fork()


class Reservation:
    """What the front calls instead of waiting (`nonblocking.WouldBlock`). Passes memory that was reserved by waiting to
    the next attempt."""

    def __init__(self) -> None:
        self.ticket: MemoryWaiter | None = None
        """The reserved memory. Set by `MemoryWait` for one attempt, which uses it if it fits."""

    def on_missing_topic(self) -> WouldBlockError:
        return WouldBlockError(None, ANY_NODE)

    def on_memory_full(self, size: int, node: int) -> WouldBlockError | bool:
        ticket = self.ticket
        if ticket is not None and ticket.granted and (ticket.size, ticket.node) == (size, node):
            self.ticket = None
            return True
        return WouldBlockError(size, node)


class MemoryWait:
    """The memory that one call waits for: a ticket kept between attempts, and cancelled at the end."""

    def __init__(self, front: Front, reservation: Reservation, began: float) -> None:
        self._front: Final = front
        self._reservation: Final = reservation
        self._deadline: Final = began + front.settings.max_block_ms / 1000
        self._ticket: MemoryWaiter | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds until the wait times out."""
        return max(0.0, self._deadline - self._front.environment.now())

    def attempt(self, take: Callable[[], T]) -> T:
        """Run `take`, which may use the reserved memory."""
        self._reservation.ticket = self._ticket
        try:
            return take()
        finally:
            self._ticket, self._reservation.ticket = self._reservation.ticket, None

    def reserve(self, size: int, node: int, wake: Callable[[], None]) -> Callable[[], bool]:
        """Queue for `size` bytes. Returns a function that is true when they are reserved or the producer is closed.

        Raises:
            BufferExhaustedError: the wait has timed out.
            ClosedError: the producer was closed.
        """
        front = self._front
        with front.condition:
            now = front.environment.now()
            if self._ticket is not None and (self._ticket.size, self._ticket.node) != (size, node):
                self._cancel()
            if self._ticket is None:
                self._ticket = front.pool.reserve(size, node, now=now, max_wait_s=self.remaining_s, wake=wake)
                front.accumulator.wake_sender()
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
        with self._front.condition:
            self._cancel()
