"""What the application asked for and may still wait for, and what the joined producer must hear of."""

from enum import Enum
from typing import Final, NamedTuple

from .requests import GroupMetadata, OffsetToCommit, PartitionKey
from .states import TransactionFailure


class TransactionOperationKind(Enum):
    """The value is what a person reads in an error."""

    INITIALISE = "init_transactions"
    SEND_OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


Offsets = tuple[tuple[PartitionKey, OffsetToCommit], ...]


class TransactionOperation:
    """One call of the application. It goes on when the caller stops waiting; the same call made again gets the same object
    (TXN-3). Until it is acknowledged no other transactional call is taken."""

    def __init__(self, kind: TransactionOperationKind, offsets: tuple[GroupMetadata, Offsets] | None = None) -> None:
        """`offsets`: of SEND_OFFSETS."""
        self.kind: Final = kind
        self.offsets: Final = offsets
        self.done = False
        """It ended, well or (`failure`) not."""
        self.failure: TransactionFailure | None = None
        self.committed = False
        """The coordinator has answered EndTxn(commit): what may still lack is that readers see it (TRX-3)."""
        self.written_partitions: tuple[PartitionKey, ...] = ()
        """The partitions that a commit waits to see."""
        self.acknowledged = False

    def acknowledge(self) -> None:
        """The caller knows how it ended: a wait returned or raised the failure, or it raised "committed, not visible"."""
        self.acknowledged = True

    def finish(self, failure: TransactionFailure | None = None) -> None:
        """End it, once."""
        assert not self.done, f"{self.kind.value} ended twice"
        self.done = True
        self.failure = failure


class OperationFinished(NamedTuple):
    """An operation is done: wake who waits."""

    operation: TransactionOperation


class ProducerIdChanged(NamedTuple):
    """From now on all batches carry this; every partition's sequences begin at 0 (TRX-5). `version`: of transactions."""

    producer_id: int
    epoch: int
    version: int


class PartitionsAdded(NamedTuple):
    """The gate is open for these (TV1, TRX-2)."""

    partitions: tuple[PartitionKey, ...]


class AbortUnsent(NamedTuple):
    """What was never sent is to fail with this; what was sent is waited for (TRX-4)."""

    failure: TransactionFailure


class TransactionEnded(NamedTuple):
    """The transaction is over at the coordinator, or there was none to end there."""

    committed: bool


class TransactionFatal(NamedTuple):
    """Everything is to fail with this; only closing is left (TXN-5)."""

    failure: TransactionFailure


class PartitionsVisible(NamedTuple):
    """Records of an earlier commit can be read now: these partitions may be sent to again."""

    partitions: tuple[PartitionKey, ...]


class TransactionAlarm(NamedTuple):
    """Something an operator should know, in words."""

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
