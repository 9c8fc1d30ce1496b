"""What a shard has to say to its router after a round, in order. Outcomes that follow each other become one message."""

from typing import NamedTuple

from ...wire.messages import ITEMS_MAX, Done, DoneItem, ShardMessage


class Said(NamedTuple):
    """A message and the journal slots that are free once the router has acknowledged it (JRN-4)."""

    message: ShardMessage
    slots: list[int]


class Outbox:
    """First in, first out: a REVOKED must not overtake the DONE before it."""

    def __init__(self) -> None:
        self._said: list[Said] = []
        self._done: Done | None = None

    def done(self, item: DoneItem, slots: list[int]) -> None:
        """A batch is acknowledged, and with it everything older of its partition."""
        if self._done is None or len(self._done.items) >= ITEMS_MAX:
            self._done = Done([])
            self._said.append(Said(self._done, []))
        self._done.items.append(item)
        self._said[-1].slots.extend(slots)

    def say(self, message: ShardMessage, slots: list[int] | None = None) -> None:
        """Anything else."""
        self._done = None
        self._said.append(Said(message, slots or []))

    @property
    def has_words(self) -> bool:
        """There is something to say."""
        return bool(self._said)

    def take(self) -> list[Said]:
        """What is to be sent now."""
        said, self._said, self._done = self._said, [], None
        return said
