"""Transaction coordinator requests: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, describe and list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from kafka.protocol.admin.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.node import BrokerNode
from ..cluster.responses import ImmediateResponse, RequestContext, RequestOutcome
from ..log import internal_topics
from ..log.error_codes import ErrorCode
from ..transactions.states import FencingAbort, Key, TransactionMetadata, TransactionOwner, TransactionState
from .coordinator import DelayedWrite, coordinator_partition_of, ensure_internal_topic, try_complete_write
from .transaction_coordinator import Result, StoredTransaction, add_to_transaction, decide_end, initialise

ADD_PARTITIONS_KEY: Final = 24
ADD_OFFSETS_KEY: Final = 25
END_TXN_KEY: Final = 26
INIT_PRODUCER_ID_KEY: Final = 22
PRODUCER_FENCED_FROM: Final = {22: 4, 24: 2, 25: 2, 26: 2}
"""First versions with PRODUCER_FENCED; earlier versions get INVALID_PRODUCER_EPOCH."""

BUMPING_END: Final = 5
"""First EndTxn version that returns the producer's next epoch."""

_Topic: TypeAlias = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Part: TypeAlias = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult
_State: TypeAlias = DescribeTransactionsResponse.TransactionState
ErrorResponseFactory = Callable[[ErrorCode], ApiMessage]


def _error_for_version(api: int, version: int, error: ErrorCode) -> ErrorCode:
    """Return the error code that this version of an API uses for `error`."""
    old = error is ErrorCode.PRODUCER_FENCED and version < PRODUCER_FENCED_FROM.get(api, 0)
    return ErrorCode.INVALID_PRODUCER_EPOCH if old else error


def is_authorized(node: BrokerNode, call: RequestContext, operation: AclOperation, transactional_id: str) -> bool:
    """Return whether a client may perform an operation on a transactional id."""
    return node.authorizer.is_allowed(call.client_id, operation, AclResourceType.TRANSACTIONAL_ID, transactional_id)


def _answer(
    node: BrokerNode,
    call: RequestContext,
    found: Result | TransactionMetadata | FencingAbort,
    told: ErrorResponseFactory,
    done: Callable[[TransactionMetadata], ApiMessage],
) -> RequestOutcome:
    """Respond once the written state is replicated; `done` builds the success response, the factory before it the error."""
    match found:
        case StoredTransaction(known, home, end_offset):
            return try_complete_write(node, call, DelayedWrite(done(known), home, end_offset, told))
        case TransactionMetadata():
            return ImmediateResponse(done(found))
        case FencingAbort():
            return ImmediateResponse(told(ErrorCode.CONCURRENT_TRANSACTIONS))
        case _:
            return ImmediateResponse(told(found))


def _request_error(node: BrokerNode, api: int, transactional_id: str, call: RequestContext) -> ErrorCode:
    """Return why a request is rejected at once, or NONE."""
    fault = node.faults.for_partition(api, transactional_id, -1)
    if fault is not None and not fault.applied:
        return fault.error
    if not is_authorized(node, call, AclOperation.WRITE, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE if transactional_id else ErrorCode.INVALID_REQUEST


def init_transactional(node: BrokerNode, request: InitProducerIdRequest, call: RequestContext) -> RequestOutcome:
    """Serve InitProducerId with a transactional id: abort any open transaction, bump the epoch (KIP-98, KIP-360)."""

    def told(error: ErrorCode) -> ApiMessage:
        named = _error_for_version(INIT_PRODUCER_ID_KEY, call.version, error)
        return InitProducerIdResponse(error_code=named, producer_id=-1, producer_epoch=-1)

    name = str(request.transactional_id)
    error = _request_error(node, INIT_PRODUCER_ID_KEY, name, call)
    expected = (
        TransactionOwner(request.producer_id, request.producer_epoch) if call.version >= 3 else TransactionOwner(-1, -1)
    )
    if error is ErrorCode.NONE and (expected.producer_id == -1) != (expected.epoch == -1):
        error = ErrorCode.INVALID_REQUEST
    timeout_ms = request.transaction_timeout_ms
    if error is ErrorCode.NONE and not 0 < timeout_ms <= node.limits.transaction_timeout_max_ms:
        error = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    if error is not ErrorCode.NONE:
        return ImmediateResponse(told(error))
    asked = None if expected.producer_id == -1 else expected
    found = initialise(node, name, timeout_ms, asked, call.moment)
    return _answer(
        node,
        call,
        found,
        told,
        lambda known: InitProducerIdResponse(
            error_code=ErrorCode.NONE, producer_id=known.producer_id, producer_epoch=known.epoch
        ),
    )


def add_partitions(node: BrokerNode, request: AddPartitionsToTxnRequest, call: RequestContext) -> RequestOutcome:
    """Serve AddPartitionsToTxn from clients (versions up to 3): add all partitions or none."""
    name = request.v3_and_below_transactional_id
    keys = [(entry.name, index) for entry in request.v3_and_below_topics for index in entry.partitions]

    def told(error: ErrorCode) -> ApiMessage:
        return _add_partitions_response(
            dict.fromkeys(keys, _error_for_version(ADD_PARTITIONS_KEY, call.version, error))
        )

    error = _request_error(node, ADD_PARTITIONS_KEY, name, call)
    if error is not ErrorCode.NONE:
        return ImmediateResponse(told(error))
    wrong = {key: _partition_error(node, key, call) for key in keys}
    if any(wrong.values()):
        return ImmediateResponse(
            _add_partitions_response({key: found or ErrorCode.OPERATION_NOT_ATTEMPTED for key, found in wrong.items()})
        )
    who = TransactionOwner(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    found = add_to_transaction(node, name, who, frozenset(keys), 1, call.moment)
    return _answer(node, call, found, told, lambda _: _add_partitions_response(dict.fromkeys(keys, ErrorCode.NONE)))


def _partition_error(node: BrokerNode, key: Key, call: RequestContext) -> ErrorCode:
    """Return why a partition cannot be in a transaction, or NONE."""
    fault = node.faults.for_partition(ADD_PARTITIONS_KEY, *key)
    if fault is not None:
        return fault.error
    if (
        not node.authorizer.is_allowed(call.client_id, AclOperation.WRITE, AclResourceType.TOPIC, key[0])
        or key[0] in internal_topics.NAMES
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = node.topic(key[0])
    there = topic is not None and 0 <= key[1] < topic.partitions
    return ErrorCode.NONE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _add_partitions_response(errors: dict[Key, ErrorCode]) -> ApiMessage:
    parts: dict[str, list[_Part]] = {}
    for (topic, index), error in errors.items():
        part = _Part(partition_index=index, partition_error_code=error)
        parts.setdefault(topic, []).append(part)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            _Topic(name=name, results_by_partition=results) for name, results in parts.items()
        ]
    )


def add_offsets(node: BrokerNode, request: AddOffsetsToTxnRequest, call: RequestContext) -> RequestOutcome:
    """Serve AddOffsetsToTxn: add the group's offsets partition to the transaction (protocol version 1)."""

    def told(error: ErrorCode) -> ApiMessage:
        return AddOffsetsToTxnResponse(error_code=_error_for_version(ADD_OFFSETS_KEY, call.version, error))

    name = request.transactional_id
    error = _request_error(node, ADD_OFFSETS_KEY, name, call)
    if error is not ErrorCode.NONE:
        return ImmediateResponse(told(error))
    if not node.authorizer.is_allowed(call.client_id, AclOperation.READ, AclResourceType.GROUP, request.group_id):
        return ImmediateResponse(told(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    if ensure_internal_topic(node, internal_topics.OFFSETS, call.moment) is None:
        return ImmediateResponse(told(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    who = TransactionOwner(request.producer_id, request.producer_epoch)
    key = (internal_topics.OFFSETS, internal_topics.internal_partition_of(request.group_id))
    found = add_to_transaction(node, name, who, frozenset({key}), 1, call.moment)
    return _answer(node, call, found, told, lambda _: AddOffsetsToTxnResponse(error_code=ErrorCode.NONE))


def end_transaction(node: BrokerNode, request: EndTxnRequest, call: RequestContext) -> RequestOutcome:
    """Serve EndTxn: decide the outcome; from version 5 the response has the next producer id and epoch."""

    def told(error: ErrorCode) -> ApiMessage:
        return EndTxnResponse(error_code=_error_for_version(END_TXN_KEY, call.version, error))

    name = request.transactional_id
    error = _request_error(node, END_TXN_KEY, name, call)
    if error is not ErrorCode.NONE:
        return ImmediateResponse(told(error))
    who = TransactionOwner(request.producer_id, request.producer_epoch)
    version = 2 if call.version >= BUMPING_END else 1
    found = decide_end(node, name, who, commit=request.committed, version=version, moment=call.moment)

    def done(known: TransactionMetadata) -> ApiMessage:
        if version == 1:
            return EndTxnResponse(error_code=ErrorCode.NONE)
        producer_id, epoch = known.next_owner
        return EndTxnResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=epoch)

    return _answer(node, call, found, told, done)


def describe_transactions(
    node: BrokerNode, request: DescribeTransactionsRequest, call: RequestContext
) -> RequestOutcome:
    """Serve DescribeTransactions."""
    found = [_described(node, name, call) for name in request.transactional_ids]
    return ImmediateResponse(DescribeTransactionsResponse(transaction_states=found))


def _described(node: BrokerNode, name: str, call: RequestContext) -> _State:
    home = coordinator_partition_of(node, internal_topics.TRANSACTIONS, name, call.moment.now)
    known = None if isinstance(home, ErrorCode) else node.transactions.get(home.index, name)
    error = ErrorCode.NONE if known is not None else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if isinstance(home, ErrorCode):
        error = home
    if not is_authorized(node, call, AclOperation.DESCRIBE, name):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if known is None or error is not ErrorCode.NONE:
        return _State(
            error_code=error,
            transactional_id=name,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(known.partitions):
        if node.authorizer.is_allowed(call.client_id, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic):
            topics.setdefault(topic, []).append(index)
    return _State(
        error_code=ErrorCode.NONE,
        transactional_id=name,
        transaction_state=known.state.value,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=[_State.TopicData(topic=topic, partitions=parts) for topic, parts in topics.items()],
    )


def list_transactions(node: BrokerNode, request: ListTransactionsRequest, call: RequestContext) -> RequestOutcome:
    """Serve ListTransactions for the transactions that this node coordinates."""
    names = {state.value for state in TransactionState}
    unknown = [name for name in request.state_filters if name not in names]
    found = [
        ListTransactionsResponse.TransactionState(
            transactional_id=one.transactional_id, producer_id=one.producer_id, transaction_state=one.state.value
        )
        for _, one in node.transactions.all()
        if _matches_filters(node, one, request, call)
    ]
    return ImmediateResponse(
        ListTransactionsResponse(error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=found)
    )


def _matches_filters(
    node: BrokerNode, one: TransactionMetadata, request: ListTransactionsRequest, call: RequestContext
) -> bool:
    by_state = not request.state_filters or one.state.value in request.state_filters
    by_id = not request.producer_id_filters or one.producer_id in request.producer_id_filters
    least = request.duration_filter if call.version >= 1 else -1
    by_age = least < 0 or (one.started_ms >= 0 and call.moment.wall_ms - one.started_ms > least)
    return by_state and by_id and by_age and is_authorized(node, call, AclOperation.DESCRIBE, one.transactional_id)
