"""A producer whose callers must not be held up: what a call would have to wait for is told instead, and the call made again."""

from typing import Final, Protocol

from ...api.errors import BufferExhaustedError
from ..accumulator.buffer_pool import ANY_NODE, Ticket


class NotYetError(BufferExhaustedError):
    """The record was not taken: it has to wait for so many bytes for a node, or (None) for its topic. Applications never see this."""

    def __init__(self, size: int | None, node: int) -> None:
        super().__init__("the record has to wait")
        self.size: Final = size
        self.node: Final = node


class Hurry(Protocol):
    """What a front asks instead of waiting."""

    def topic(self) -> NotYetError:
        """Nothing is known of a topic."""
        ...

    def memory(self, size: int, node: int) -> NotYetError | bool:
        """There is no memory. True: it has been reserved by another way. Called under the producer's lock."""
        ...


class Prepaid:
    """Memory that was waited for, ready for the next attempt."""

    def __init__(self) -> None:
        self._ticket: Ticket | None = None

    def lay_down(self, ticket: Ticket | None) -> None:
        """Have the attempt that follows use what a ticket has reserved."""
        self._ticket = ticket

    def take_back(self) -> Ticket | None:
        """The ticket, if the attempt had no use for it."""
        ticket, self._ticket = self._ticket, None
        return ticket

    def topic(self) -> NotYetError:
        return NotYetError(None, ANY_NODE)

    def memory(self, size: int, node: int) -> NotYetError | bool:
        ticket = self._ticket
        if ticket is not None and ticket.granted and (ticket.size, ticket.node) == (size, node):
            self._ticket = None
            return True
        return NotYetError(size, node)
