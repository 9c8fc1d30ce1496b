"""Queue of a transactional id's requests: sent by priority, one at a time, each with its own backoff (TXS-1, 10.5)."""

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
    """Lower values go first."""

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    """Requests that add partitions and offsets to the transaction."""
    END_TXN = 3
    """Never sent before all additions are made."""
    EPOCH_BUMP = 4


class QueuedTransactionRequest:
    """A request and the number of its failed attempts."""

    def __init__(
        self, ask: TransactionRequest, urgency: RequestPriority, operation: TransactionOperation | None = None
    ) -> None:
        self.request = ask
        self.priority: Final = urgency
        self.operation: Final = operation
        self.attempts = 0
        self.not_before = 0.0
        self.sent = False
        """It was sent at least once, so it may have had its effect."""


def priority_of(ask: TransactionRequest) -> RequestPriority:
    """The first InitProducerId has a high priority; an epoch bump (with a current identity) goes after EndTxn."""
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
    """Holds at most one lookup per coordinator, one EndTxn or InitProducerId, and one addition per call.

    A request waiting for its backoff or for a coordinator lookup does not hold up others. A caller that queues EndTxn
    must make sure that no addition is outstanding.
    """

    def __init__(self) -> None:
        self._entries: list[QueuedTransactionRequest] = []

    def __iter__(self) -> Iterator[QueuedTransactionRequest]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, queued: QueuedTransactionRequest) -> None:
        """Insert a request after others of its priority. A request sent before goes ahead, which keeps its place."""
        at = 0
        while at < len(self._entries) and self._entries[at].priority < queued.priority + (not queued.sent):
            at += 1
        self._entries.insert(at, queued)

    def remove(self, queued: QueuedTransactionRequest) -> None:
        """Remove a request that is being sent."""
        self._entries.remove(queued)

    def drop(self, unwanted: Callable[[QueuedTransactionRequest], bool]) -> list[QueuedTransactionRequest]:
        """Remove and return the unwanted requests."""
        dropped = [one for one in self._entries if unwanted(one)]
        self._entries = [one for one in self._entries if not unwanted(one)]
        return dropped
