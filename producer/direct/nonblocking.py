"""A producer whose callers must not be held up: what a call would have to wait for is told instead, and the call made again."""

from typing import Final, Protocol

from ...api.errors import BufferExhaustedError
from ..accumulator.buffer_pool import ANY_NODE, MemoryWaiter


class WouldBlockError(BufferExhaustedError):
    """The record was not taken: it has to wait for so many bytes for a node, or (None) for its topic. Applications never see this."""

    def __init__(self, size: int | None, node: int) -> None:
        super().__init__("the record has to wait")
        self.size: Final = size
        self.node: Final = node


class WouldBlock(Protocol):
    """What a front asks instead of waiting."""

    def on_missing_topic(self) -> WouldBlockError:
        """Nothing is known of a topic."""
        ...

    def on_memory_full(self, size: int, node: int) -> WouldBlockError | bool:
        """There is no memory. True: it has been reserved by another way. Called under the producer's lock."""
        ...


class Reservation:
    """Memory that was waited for, ready for the next attempt."""

    def __init__(self) -> None:
        self._ticket: MemoryWaiter | None = None

    def offer(self, ticket: MemoryWaiter | None) -> None:
        """Have the attempt that follows use what a ticket has reserved."""
        self._ticket = ticket

    def reclaim(self) -> MemoryWaiter | None:
        """The ticket, if the attempt had no use for it."""
        ticket, self._ticket = self._ticket, None
        return ticket

    def on_missing_topic(self) -> WouldBlockError:
        return WouldBlockError(None, ANY_NODE)

    def on_memory_full(self, size: int, node: int) -> WouldBlockError | bool:
        ticket = self._ticket
        if ticket is not None and ticket.granted and (ticket.size, ticket.node) == (size, node):
            self._ticket = None
            return True
        return WouldBlockError(size, node)
