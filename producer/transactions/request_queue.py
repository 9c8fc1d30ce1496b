"""Requests of a transactional id that wait to go out: by urgency, one at a time, each with its own wait (TXS-1, 10.5)."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

from .operations import TransactionOperation
from .requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    TransactionRequest,
)


class RequestPriority(IntEnum):
    """Lower goes first."""

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    """Partitions and offsets become part of the transaction."""
    END_TXN = 3
    """Never before what is to be added is added."""
    EPOCH_BUMP = 4


class QueuedTransactionRequest:
    """A request, and how often it went out in vain."""

    def __init__(
        self, ask: TransactionRequest, urgency: RequestPriority, operation: TransactionOperation | None = None
    ) -> None:
        self.request = ask
        self.priority: Final = urgency
        self.operation: Final = operation
        self.attempts = 0
        self.not_before = 0.0
        self.sent = False
        """It went out at least once: it may have had its effect."""


def priority_of(ask: TransactionRequest) -> RequestPriority:
    """The first InitProducerId comes before everything; one that moves the epoch (a current identity is named) after EndTxn."""
    match ask:
        case FindCoordinator():
            return RequestPriority.FIND_COORDINATOR
        case InitProducerId(identity=identity):
            return RequestPriority.EPOCH_BUMP if identity.producer_id >= 0 else RequestPriority.INIT_PRODUCER_ID
        case AddPartitions() | AddOffsets() | CommitOffsets():
            return RequestPriority.ADD_PARTITIONS_OR_OFFSETS
        case EndTxn() | _:
            return RequestPriority.END_TXN


class TransactionRequestQueue:
    """At most one entry per coordinator to look up, one EndTxn or InitProducerId, and as many additions as calls asked for.

    A request that waits for its backoff, or for a coordinator that is looked up, keeps back no other: whoever puts in the end of a
    transaction sees to it that nothing is left to be added."""

    def __init__(self) -> None:
        self._entries: list[QueuedTransactionRequest] = []

    def __iter__(self) -> Iterator[QueuedTransactionRequest]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, queued: QueuedTransactionRequest) -> None:
        """Behind those of the same urgency. A request that is tried again keeps its place by coming first among them."""
        at = 0
        while at < len(self._entries) and self._entries[at].priority < queued.priority + (not queued.sent):
            at += 1
        self._entries.insert(at, queued)

    def remove(self, queued: QueuedTransactionRequest) -> None:
        """It goes out."""
        self._entries.remove(queued)

    def drop(self, unwanted: Callable[[QueuedTransactionRequest], bool]) -> list[QueuedTransactionRequest]:
        """Take these out for good."""
        dropped = [one for one in self._entries if unwanted(one)]
        self._entries = [one for one in self._entries if not unwanted(one)]
        return dropped
