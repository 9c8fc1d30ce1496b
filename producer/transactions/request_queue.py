"""Requests of a transactional id that wait to go out: by urgency, one at a time, each with its own wait (TXS-1, 10.5)."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

from .operations import Operation
from .requests import AddOffsets, AddPartitions, Ask, CommitOffsets, EndTxn, FindCoordinator, InitProducerId


class Urgency(IntEnum):
    """Lower goes first."""

    LOOK_UP = 0
    INITIALISE = 1
    ADD = 2
    """Partitions and offsets become part of the transaction."""
    END = 3
    """Never before what is to be added is added."""
    BUMP = 4


class Queued:
    """A request, and how often it went out in vain."""

    def __init__(self, ask: Ask, urgency: Urgency, operation: Operation | None = None) -> None:
        self.ask = ask
        self.urgency: Final = urgency
        self.operation: Final = operation
        self.attempts = 0
        self.not_before = 0.0
        self.sent = False
        """It went out at least once: it may have had its effect."""


def urgency_of(ask: Ask) -> Urgency:
    """The first InitProducerId comes before everything; one that moves the epoch (a current identity is named) after EndTxn."""
    match ask:
        case FindCoordinator():
            return Urgency.LOOK_UP
        case InitProducerId(identity=identity):
            return Urgency.BUMP if identity.producer_id >= 0 else Urgency.INITIALISE
        case AddPartitions() | AddOffsets() | CommitOffsets():
            return Urgency.ADD
        case EndTxn() | _:
            return Urgency.END


class RequestQueue:
    """At most one entry per coordinator to look up, one EndTxn or InitProducerId, and as many additions as calls asked for.

    A request that waits for its backoff, or for a coordinator that is looked up, keeps back no other: whoever puts in the end of a
    transaction sees to it that nothing is left to be added."""

    def __init__(self) -> None:
        self._entries: list[Queued] = []

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, queued: Queued) -> None:
        """Behind those of the same urgency. A request that is tried again keeps its place by coming first among them."""
        at = 0
        while at < len(self._entries) and self._entries[at].urgency < queued.urgency + (not queued.sent):
            at += 1
        self._entries.insert(at, queued)

    def remove(self, queued: Queued) -> None:
        """It goes out."""
        self._entries.remove(queued)

    def drop(self, unwanted: Callable[[Queued], bool]) -> list[Queued]:
        """Take these out for good."""
        dropped = [one for one in self._entries if unwanted(one)]
        self._entries = [one for one in self._entries if not unwanted(one)]
        return dropped
