"""Operations that the application waits for, and the manager's events for the delivery."""

from enum import Enum
from typing import Final, NamedTuple

from .requests import GroupMetadata, OffsetToCommit, PartitionKey
from .states import TransactionFailure


class TransactionOperationKind(Enum):
    """The value is the name in error texts."""

    INITIALISE = "init_transactions"
    SEND_OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


Offsets = tuple[tuple[PartitionKey, OffsetToCommit], ...]


class TransactionOperation:
    """One call of the application. It continues when the caller stops waiting; repeating the call returns the same
    object (TXN-3). Until it is acknowledged, no other transactional call is accepted."""

    def __init__(self, kind: TransactionOperationKind, offsets: tuple[GroupMetadata, Offsets] | None = None) -> None:
        """`offsets`: for SEND_OFFSETS only."""
        self.kind: Final = kind
        self.offsets: Final = offsets
        self.done = False
        """It has ended, successfully or with `failure`."""
        self.failure: TransactionFailure | None = None
        self.committed = False
        """EndTxn(commit) has succeeded; readers may not see the records yet (TRX-3)."""
        self.written_partitions: tuple[PartitionKey, ...] = ()
        """The partitions that must become visible before a commit is done."""
        self.acknowledged = False

    def acknowledge(self) -> None:
        """The caller knows the result: a wait returned or raised the failure, or raised "committed, not visible"."""
        self.acknowledged = True

    def finish(self, failure: TransactionFailure | None = None) -> None:
        """End the operation, once."""
        assert not self.done, f"{self.kind.value} ended twice"
        self.done = True
        self.failure = failure


class OperationFinished(NamedTuple):
    """An operation is done: wake its waiters."""

    operation: TransactionOperation


class ProducerIdChanged(NamedTuple):
    """All later batches carry this identity, and all sequences restart at 0 (TRX-5). `version`: of transactions."""

    producer_id: int
    epoch: int
    version: int


class PartitionsAdded(NamedTuple):
    """These partitions may be sent to (TV1, TRX-2)."""

    partitions: tuple[PartitionKey, ...]


class AbortUnsent(NamedTuple):
    """Fail the records never sent with this failure; batches already sent are awaited (TRX-4)."""

    failure: TransactionFailure


class TransactionEnded(NamedTuple):
    """The transaction has ended at the coordinator, or had nothing to end there."""

    committed: bool


class TransactionFatal(NamedTuple):
    """Fail everything with this failure; the producer can only be closed (TXN-5)."""

    failure: TransactionFailure


class PartitionsVisible(NamedTuple):
    """Records of an earlier transaction are visible: these partitions may be sent to again."""

    partitions: tuple[PartitionKey, ...]


class TransactionAlarm(NamedTuple):
    """A problem for the operator, as text."""

    text: str


TransactionEvent = (
    OperationFinished
    | ProducerIdChanged
    | PartitionsAdded
    | PartitionsVisible
    | AbortUnsent
    | TransactionEnded
    | TransactionFatal
    | TransactionAlarm
)
