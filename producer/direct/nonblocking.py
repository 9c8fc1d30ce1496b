"""Non-blocking mode: a call that would have to wait fails with `WouldBlockError` instead, and is repeated later."""

from typing import Final, Protocol

from ...api.errors import BufferExhaustedError


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
