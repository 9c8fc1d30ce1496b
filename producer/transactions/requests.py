"""The transactional producer's requests and their responses as plain values; a shell encodes and decodes them.

`version_range` gives the versions in which a request may be sent. Version 1 of transactions (TV1) and version 2 (TV2,
KIP-890) differ exactly there. Mixing them under one identity can put a record into a transaction that is already
committed (TRX-2).
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
    """A broker, as returned by FindCoordinator."""

    node: int
    host: str
    port: int


class GroupMetadata(NamedTuple):
    """The consumer's group membership for committed offsets (KIP-447). Without a member only the group is checked."""

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None

    @property
    def names_member(self) -> bool:
        """Whether more than the group is given."""
        return self.generation >= 0 or self.member_id != "" or self.instance_id is not None


class OffsetToCommit(NamedTuple):
    """The next offset to read in a partition. `leader_epoch`: of the last record read (-1: unknown)."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


# --- requests --------------------------------------------------------------------------------------------------------


class FindCoordinator(NamedTuple):
    """Sent to any broker. `key`: the transactional id, or the group."""

    kind: CoordinatorKind
    key: str


class InitProducerId(NamedTuple):
    """`identity`: the current one, whose epoch is to be bumped; (-1, -1) for the first."""

    transactional_id: str
    timeout_ms: int
    identity: ProducerIdAndEpoch


class AddPartitions(NamedTuple):
    """AddPartitionsToTxn, TV1 only."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    partitions: tuple[PartitionKey, ...]


class AddOffsets(NamedTuple):
    """AddOffsetsToTxn, TV1 only: adds the group's offsets partition to the transaction."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    group: str


class CommitOffsets(NamedTuple):
    """TxnOffsetCommit, to the group coordinator. `version`: 1 or 2, of transactions."""

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
    """DescribeTransactions, to learn how a transaction ended whose EndTxn was not answered."""

    transactional_id: str


TransactionRequest = (
    FindCoordinator | InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTxn | DescribeTransaction
)


def api_of(ask: TransactionRequest) -> TransactionApi:
    """The request's row in the reaction table."""
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
    """The lowest and the highest version in which the request may be sent.

    InitProducerId 3 is the first that bumps an epoch on demand (TRX-10); 6 adds two-phase commits. AddPartitionsToTxn
    from 4 on is only for brokers. TxnOffsetCommit 3 is the first that names the group member.
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
    """The kind of coordinator that a request is for; None: any broker."""
    match ask:
        case FindCoordinator():
            return None
        case CommitOffsets():
            return CoordinatorKind.GROUP
        case _:
            return CoordinatorKind.TRANSACTION


# --- responses -------------------------------------------------------------------------------------------------------


class FindCoordinatorResult(NamedTuple):
    """Response to FindCoordinator. `message`: the broker's message, or None."""

    code: int
    message: str | None = None
    coordinator: Coordinator | None = None


class ProducerIdResult(NamedTuple):
    """Response to InitProducerId, and to EndTxn from version 5; below that the identity is (-1, -1)."""

    code: int
    identity: ProducerIdAndEpoch = NO_IDENTITY


class ErrorCodeResult(NamedTuple):
    """Response to AddOffsetsToTxn, and to any request that was refused as a whole."""

    code: int


class PartitionErrorsResult(NamedTuple):
    """Response to AddPartitionsToTxn and TxnOffsetCommit: an error code for each partition."""

    codes: Mapping[PartitionKey, int]


class DescribeTransactionResult(NamedTuple):
    """Response to DescribeTransactions. `state`: in the coordinator's words ("CompleteCommit"). `identity`: its current
    one."""

    code: int
    state: str = ""
    identity: ProducerIdAndEpoch = NO_IDENTITY


TransactionResponse = (
    FindCoordinatorResult | ProducerIdResult | ErrorCodeResult | PartitionErrorsResult | DescribeTransactionResult
)
"""A response of another kind than its request is unreadable, and fatal (TXS-6)."""
