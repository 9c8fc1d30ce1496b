"""Messages from a shard to its router, in order. Consecutive outcomes are combined into one message."""

from typing import NamedTuple

from ...wire.messages import ITEMS_MAX, BatchesDone, DoneBatch, ShardMessage


class ShardOutboxEntry(NamedTuple):
    """A message, and the journal slots to release once the router has acknowledged it (JRN-4)."""

    message: ShardMessage
    slots: list[int]


class ShardOutbox:
    """First in, first out: a `Revoked` must not overtake the `BatchesDone` before it."""

    def __init__(self) -> None:
        self._entries: list[ShardOutboxEntry] = []
        self._done: BatchesDone | None = None

    def put_done(self, item: DoneBatch, slots: list[int]) -> None:
        """Add the acknowledgement of a batch; with idempotence it covers all older records of the partition."""
        if self._done is None or len(self._done.items) >= ITEMS_MAX:
            self._done = BatchesDone([])
            self._entries.append(ShardOutboxEntry(self._done, []))
        self._done.items.append(item)
        self._entries[-1].slots.extend(slots)

    def put(self, message: ShardMessage, slots: list[int] | None = None) -> None:
        """Add any other message."""
        self._done = None
        self._entries.append(ShardOutboxEntry(message, slots or []))

    @property
    def has_messages(self) -> bool:
        """Whether there are messages to send."""
        return bool(self._entries)

    def take(self) -> list[ShardOutboxEntry]:
        """Take all messages, in order."""
        said, self._entries, self._done = self._entries, [], None
        return said
