"""Encodes the transaction manager's requests with `kafka.protocol`, and decodes their responses.

It makes no decisions. A response that lacks the requested items raises, and counts as unreadable.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from ..protocol.error_codes import NONE, UNSUPPORTED_VERSION
from .requests import (
    NO_IDENTITY,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Coordinator,
    DescribeTransaction,
    DescribeTransactionResult,
    EndTxn,
    ErrorCodeResult,
    FindCoordinator,
    FindCoordinatorResult,
    InitProducerId,
    PartitionErrorsResult,
    PartitionKey,
    ProducerIdAndEpoch,
    ProducerIdResult,
    TransactionRequest,
    TransactionResponse,
)
from .visibility import (
    LastStableOffsetResult,
    OpenTransactionsResult,
    VisibilityCheck,
    VisibilityCheckKind,
    VisibilityResult,
)

if TYPE_CHECKING:
    from ..protocol.responses import KafkaRequest

VISIBILITY_CHECK_VERSIONS: Final = {
    VisibilityCheckKind.LAST_STABLE_OFFSET: (2, 10),
    VisibilityCheckKind.OPEN_TRANSACTIONS: (0, 0),
}
"""ListOffsets has an isolation level from version 2."""
_READ_COMMITTED: Final = 1
_LATEST: Final = -1


class UnreadableError(Exception):
    """The response does not contain what was requested."""


def request_for(ask: TransactionRequest) -> "KafkaRequest":
    """Return the request, without a version yet."""
    match ask:
        case FindCoordinator(kind, key):
            # The version decides which of the two key fields is encoded.
            found: Any = FindCoordinatorRequest(key=key, key_type=kind.value, coordinator_keys=[key])
        case InitProducerId():
            found = InitProducerIdRequest(
                transactional_id=ask.transactional_id,
                transaction_timeout_ms=ask.timeout_ms,
                producer_id=ask.identity.producer_id,
                producer_epoch=ask.identity.epoch,
                enable2_pc=False,
                keep_prepared_txn=False,
            )
        case AddPartitions():
            kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
            found = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ask.transactional_id,
                v3_and_below_producer_id=ask.identity.producer_id,
                v3_and_below_producer_epoch=ask.identity.epoch,
                v3_and_below_topics=[
                    kind(name=name, partitions=indexes) for name, indexes in _by_topic(ask.partitions).items()
                ],
            )
        case AddOffsets():
            found = AddOffsetsToTxnRequest(
                transactional_id=ask.transactional_id,
                producer_id=ask.identity.producer_id,
                producer_epoch=ask.identity.epoch,
                group_id=ask.group,
            )
        case CommitOffsets():
            found = _commit_offsets(ask)
        case EndTxn():
            found = EndTxnRequest(
                transactional_id=ask.transactional_id,
                producer_id=ask.identity.producer_id,
                producer_epoch=ask.identity.epoch,
                committed=ask.commit,
            )
        case DescribeTransaction(transactional_id):
            found = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return cast("KafkaRequest", found)


def _commit_offsets(ask: CommitOffsets) -> TxnOffsetCommitRequest:
    kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    offsets = dict(ask.offsets)
    topics = [
        kind(
            name=name,
            partitions=[
                kind.TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offsets[name, index].offset,
                    committed_leader_epoch=offsets[name, index].leader_epoch,
                    committed_metadata=offsets[name, index].metadata,
                )
                for index in indexes
            ],
        )
        for name, indexes in _by_topic(offsets).items()
    ]
    return TxnOffsetCommitRequest(
        transactional_id=ask.transactional_id,
        group_id=ask.group.group,
        producer_id=ask.identity.producer_id,
        producer_epoch=ask.identity.epoch,
        generation_id=ask.group.generation,
        member_id=ask.group.member_id,
        group_instance_id=ask.group.instance_id,
        topics=topics,
    )


def read_answer(ask: TransactionRequest, response: object) -> TransactionResponse:
    """Decode a response.

    Raises:
        UnreadableError: it does not contain what was requested.
    """
    try:
        return _read(ask, response)
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise UnreadableError(f"{type(response).__name__}: {error}") from error


def _read(ask: TransactionRequest, response: object) -> TransactionResponse:
    match ask, response:
        case FindCoordinator(), FindCoordinatorResponse():
            return _coordinator(ask, response)
        case InitProducerId(), InitProducerIdResponse():
            return ProducerIdResult(
                response.error_code, ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
            )
        case AddPartitions(), AddPartitionsToTxnResponse():
            rows = response.results_by_topic_v3_and_below
            codes = {
                (str(topic.name), part.partition_index): part.partition_error_code
                for topic in rows
                for part in topic.results_by_partition
            }
            return _parts(ask.partitions, codes)
        case AddOffsets(), AddOffsetsToTxnResponse():
            return ErrorCodeResult(response.error_code)
        case CommitOffsets(), TxnOffsetCommitResponse():
            codes = {
                (str(topic.name), part.partition_index): part.error_code
                for topic in response.topics
                for part in topic.partitions
            }
            return _parts([part for part, _ in ask.offsets], codes)
        case EndTxn(), EndTxnResponse():
            if ask.version == 1:
                return ProducerIdResult(response.error_code, NO_IDENTITY)
            return ProducerIdResult(
                response.error_code, ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
            )
        case DescribeTransaction(), DescribeTransactionsResponse():
            (told,) = response.transaction_states
            identity = ProducerIdAndEpoch(told.producer_id, told.producer_epoch)
            return DescribeTransactionResult(told.error_code, str(told.transaction_state), identity)
        case _:
            raise TypeError(f"no answer to {type(ask).__name__}")


def _coordinator(ask: FindCoordinator, response: FindCoordinatorResponse) -> FindCoordinatorResult:
    told: Any = response
    if (response.version or 0) >= 4:
        told = next(row for row in response.coordinators if row.key == ask.key) if response.coordinators else None
        if told is None:
            raise ValueError("no coordinator is told")
    if told.error_code != NONE:
        return FindCoordinatorResult(told.error_code, told.error_message or None)
    return FindCoordinatorResult(NONE, None, Coordinator(told.node_id, str(told.host), told.port))


def _parts(wanted: Iterable[PartitionKey], codes: Mapping[PartitionKey, int]) -> PartitionErrorsResult:
    return PartitionErrorsResult({part: codes[part] for part in wanted})


# --- visibility checks -----------------------------------------------------------------------------------------------


def encode_visibility_checks(
    kind: VisibilityCheckKind, looks: Sequence[VisibilityCheck], leader_epochs: Mapping[PartitionKey, int]
) -> "KafkaRequest":
    """Encode checks of one kind for one leader. The leader refuses `leader_epochs` other than its own."""
    by_topic = _by_topic(look.part for look in looks)
    if kind is VisibilityCheckKind.OPEN_TRANSACTIONS:
        topic = DescribeProducersRequest.TopicRequest
        rows = [topic(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()]
        return cast("KafkaRequest", DescribeProducersRequest(topics=rows))
    offsets = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        offsets(
            name=name,
            partitions=[
                offsets.ListOffsetsPartition(
                    partition_index=index,
                    current_leader_epoch=leader_epochs.get((name, index), -1),
                    timestamp=_LATEST,
                )
                for index in indexes
            ],
        )
        for name, indexes in by_topic.items()
    ]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=_READ_COMMITTED, topics=topics, timeout_ms=0)
    return cast("KafkaRequest", request)


def decode_visibility_checks(
    looks: Sequence[VisibilityCheck], response: object
) -> dict[VisibilityCheck, VisibilityResult]:
    """The result of each check. Checks missing from the response are left out."""
    told: dict[PartitionKey, VisibilityResult] = {}
    match response:
        case ListOffsetsResponse():
            for topic in response.topics:
                for part in topic.partitions:
                    told[str(topic.name), part.partition_index] = LastStableOffsetResult(part.error_code, part.offset)
        case DescribeProducersResponse():
            for row in response.topics:
                for one in row.partitions:
                    active = one.active_producers or []
                    ids = frozenset(each.producer_id for each in active if each.current_txn_start_offset >= 0)
                    told[str(row.name), one.partition_index] = OpenTransactionsResult(one.error_code, ids)
        case _:
            return {}
    return {look: told[look.part] for look in looks if look.part in told}


def unsupported_check_result(look: VisibilityCheck) -> VisibilityResult | None:
    """The result of a check that the broker does not support, or None if it is to count as lost."""
    return OpenTransactionsResult(UNSUPPORTED_VERSION) if look.kind is VisibilityCheckKind.OPEN_TRANSACTIONS else None


def _by_topic(parts: Iterable[PartitionKey]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in parts:
        found.setdefault(topic, []).append(index)
    return found
