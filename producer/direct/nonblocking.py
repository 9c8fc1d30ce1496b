"""Non-blocking mode: a call that would have to wait fails with `WouldBlockError` instead, and is repeated later."""

from typing import Final, Protocol

from ...api.errors import BufferExhaustedError
from ..accumulator.buffer_pool import ANY_NODE, MemoryWaiter


class WouldBlockError(BufferExhaustedError):
    """The record was not appended: it has to wait for `size` bytes for a node, or (None) for its topic's metadata.
    Applications never see this error."""

    def __init__(self, size: int | None, node: int) -> None:
        super().__init__("the record has to wait")
        self.size: Final = size
        self.node: Final = node


class WouldBlock(Protocol):
    """The front calls it instead of waiting."""

    def on_missing_topic(self) -> WouldBlockError:
        """Return the error for a topic without metadata."""
        ...

    def on_memory_full(self, size: int, node: int) -> WouldBlockError | bool:
        """Return the error for missing memory, or True if a ticket has reserved it. Called under the lock."""
        ...


class Reservation:
    """Passes memory that was reserved by waiting to the next attempt."""

    def __init__(self) -> None:
        self._ticket: MemoryWaiter | None = None

    def offer(self, ticket: MemoryWaiter | None) -> None:
        """Let the next attempt use the memory that a ticket has reserved."""
        self._ticket = ticket

    def reclaim(self) -> MemoryWaiter | None:
        """Take back the ticket, None if the attempt used it."""
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
