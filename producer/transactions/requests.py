"""What the transactional producer asks of brokers, and what they answer, as plain values: a shell encodes and decodes them.

`version_range` says in which versions an ask may go out. Version 1 of transactions (TV1) and version 2 (TV2, KIP-890) differ exactly
there, and mixing them under one identity can put a record into a transaction that is already committed (TRX-2).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, assert_never

from .states import TransactionApi

PartitionKey = tuple[str, int]
"""Topic and partition."""

NO_ID: Final = -1


class ProducerIdAndEpoch(NamedTuple):
    """Producer id and epoch."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = ProducerIdAndEpoch(NO_ID, NO_ID)


class CoordinatorKind(Enum):
    """The value is the key type of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Coordinator(NamedTuple):
    """A broker, as FindCoordinator names it."""

    node: int
    host: str
    port: int


class GroupMetadata(NamedTuple):
    """The consumer's membership that committed offsets belong to (KIP-447). Without a member only the group counts."""

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None

    @property
    def names_member(self) -> bool:
        """More than the group is given."""
        return self.generation >= 0 or self.member_id != "" or self.instance_id is not None


class OffsetToCommit(NamedTuple):
    """The next offset to read of a partition; `leader_epoch` of the last record read (-1: unknown)."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


# --- asks ------------------------------------------------------------------------------------------------------------


class FindCoordinator(NamedTuple):
    """Goes to any broker. `key`: the transactional id, or the group."""

    kind: CoordinatorKind
    key: str


class InitProducerId(NamedTuple):
    """`identity`: the one in use, whose epoch is to be raised; (-1, -1) for the first."""

    transactional_id: str
    timeout_ms: int
    identity: ProducerIdAndEpoch


class AddPartitions(NamedTuple):
    """TV1 only."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    partitions: tuple[PartitionKey, ...]


class AddOffsets(NamedTuple):
    """TV1 only: the group's partition of committed offsets becomes part of the transaction."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    group: str


class CommitOffsets(NamedTuple):
    """TxnOffsetCommit, to the coordinator of the group. `version`: 1 or 2, of transactions."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    group: GroupMetadata
    offsets: tuple[tuple[PartitionKey, OffsetToCommit], ...]
    version: int


class EndTxn(NamedTuple):
    """`version`: 1 or 2, of transactions."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    commit: bool
    version: int


class DescribeTransaction(NamedTuple):
    """How did the transaction end whose EndTxn was never answered?"""

    transactional_id: str


TransactionRequest = (
    FindCoordinator | InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTxn | DescribeTransaction
)


def api_of(ask: TransactionRequest) -> TransactionApi:
    """The row of the reaction table."""
    match ask:
        case FindCoordinator():
            return TransactionApi.FIND_COORDINATOR
        case InitProducerId():
            return TransactionApi.INIT_PRODUCER_ID
        case AddPartitions():
            return TransactionApi.ADD_PARTITIONS
        case AddOffsets():
            return TransactionApi.ADD_OFFSETS
        case CommitOffsets():
            return TransactionApi.COMMIT_OFFSETS
        case EndTxn():
            return TransactionApi.END
        case DescribeTransaction():
            return TransactionApi.DESCRIBE
        case _:
            assert_never(ask)


def version_range(ask: TransactionRequest) -> tuple[int, int]:
    """The least and the greatest version of the request that may carry this ask.

    InitProducerId 3 is the first that raises an epoch on demand (TRX-10); 6 begins two-phase commits. AddPartitionsToTxn from 4 on
    is for brokers among themselves. TxnOffsetCommit 3 is the first that names the member of the group.
    """
    match ask:
        case FindCoordinator(kind=kind):
            return (0 if kind is CoordinatorKind.GROUP else 1, 6)
        case InitProducerId():
            return (3, 5)
        case AddPartitions():
            return (0, 3)
        case AddOffsets():
            return (0, 4)
        case CommitOffsets(version=2):
            return (5, 5)
        case CommitOffsets(group=group):
            return (3 if group.names_member else 0, 4)
        case EndTxn(version=version):
            return (5, 5) if version == 2 else (0, 4)
        case DescribeTransaction():
            return (0, 0)
        case _:
            assert_never(ask)


def coordinator_kind_of(ask: TransactionRequest) -> CoordinatorKind | None:
    """The kind of coordinator an ask goes to; None: any broker."""
    match ask:
        case FindCoordinator():
            return None
        case CommitOffsets():
            return CoordinatorKind.GROUP
        case _:
            return CoordinatorKind.TRANSACTION


# --- answers ---------------------------------------------------------------------------------------------------------


class FindCoordinatorResult(NamedTuple):
    """Of FindCoordinator. `message`: the broker's message, or None."""

    code: int
    message: str | None = None
    coordinator: Coordinator | None = None


class ProducerIdResult(NamedTuple):
    """Of InitProducerId, and of EndTxn from version 5 on; below that the identity is (-1, -1)."""

    code: int
    identity: ProducerIdAndEpoch = NO_IDENTITY


class ErrorCodeResult(NamedTuple):
    """Of AddOffsetsToTxn; of any request that was refused as a whole."""

    code: int


class PartitionErrorsResult(NamedTuple):
    """Of AddPartitionsToTxn and TxnOffsetCommit: a code for each partition."""

    codes: Mapping[PartitionKey, int]


class DescribeTransactionResult(NamedTuple):
    """Of DescribeTransactions. `state`: the coordinator's word ("CompleteCommit"); the identity it keeps now."""

    code: int
    state: str = ""
    identity: ProducerIdAndEpoch = NO_IDENTITY


TransactionResponse = (
    FindCoordinatorResult | ProducerIdResult | ErrorCodeResult | PartitionErrorsResult | DescribeTransactionResult
)
"""An answer of another kind than its ask is one that nobody can read, and fatal (TXS-6)."""
