"""What a shard has to say to its router after a round, in order. Outcomes that follow each other become one message."""

from typing import NamedTuple

from ...wire.messages import ITEMS_MAX, BatchesDone, DoneBatch, ShardMessage


class ShardOutboxEntry(NamedTuple):
    """A message and the journal slots that are free once the router has acknowledged it (JRN-4)."""

    message: ShardMessage
    slots: list[int]


class ShardOutbox:
    """First in, first out: a REVOKED must not overtake the DONE before it."""

    def __init__(self) -> None:
        self._entries: list[ShardOutboxEntry] = []
        self._done: BatchesDone | None = None

    def put_done(self, item: DoneBatch, slots: list[int]) -> None:
        """A batch is acknowledged, and with it everything older of its partition."""
        if self._done is None or len(self._done.items) >= ITEMS_MAX:
            self._done = BatchesDone([])
            self._entries.append(ShardOutboxEntry(self._done, []))
        self._done.items.append(item)
        self._entries[-1].slots.extend(slots)

    def put(self, message: ShardMessage, slots: list[int] | None = None) -> None:
        """Anything else."""
        self._done = None
        self._entries.append(ShardOutboxEntry(message, slots or []))

    @property
    def has_messages(self) -> bool:
        """There is something to say."""
        return bool(self._entries)

    def take(self) -> list[ShardOutboxEntry]:
        """What is to be sent now."""
        said, self._entries, self._done = self._entries, [], None
        return said
