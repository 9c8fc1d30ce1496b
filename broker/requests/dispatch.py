"""Decodes requests, dispatches them to their handlers and encodes the responses.

A request that does not decode closes its connection, as does an API or version that the broker does not support. Only
ApiVersions gets a response for any version, so that a client can discover the supported versions.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from ..cluster import nulls
from ..cluster.faults import CutAnswer, DelayAnswer
from ..cluster.node import BrokerNode
from ..cluster.responses import CloseConnection, DelayedResponse, ImmediateResponse, RequestContext, RequestOutcome
from ..log.error_codes import ErrorCode
from ..log.ports import BrokerTime, ControllerUnreachableError
from .admin import alter_configs, create_topics, delete_records, delete_topics, describe_configs
from .coordinator import DelayedWrite as Stored
from .coordinator import try_complete_write as finish_stored
from .describe_producers import describe_producers
from .fetch import fetch, list_offsets, offset_for_leader_epoch
from .group_offsets import offset_commit, offset_fetch, txn_offset_commit
from .join_group import heartbeat, join, leave, sync
from .metadata import describe_cluster, find_coordinator, init_producer_id, metadata
from .produce import DelayedProduce, produce, try_complete_produce
from .transaction_markers import complete_decided_transactions
from .transactions import add_offsets, add_partitions, describe_transactions, end_transaction, list_transactions

HEAD: Final = struct.Struct(">hhi")
API_VERSIONS_KEY: Final = 18
DECODE_FAILURES: Final = (ValueError, TypeError, IndexError, OverflowError, MemoryError, struct.error)
"""Errors of kafka-python's decoders on bytes that are not a message; MisplacedNullError is a ValueError."""


class Api(NamedTuple):
    """An API and its supported versions."""

    request: type[ApiMessage]
    lowest: int
    highest: int


APIS: Final[dict[int, Api]] = {
    0: Api(ProduceRequest, 3, 13),
    1: Api(FetchRequest, 4, 16),
    2: Api(ListOffsetsRequest, 1, 7),
    3: Api(MetadataRequest, 0, 12),
    8: Api(OffsetCommitRequest, 2, 9),
    9: Api(OffsetFetchRequest, 1, 9),
    10: Api(FindCoordinatorRequest, 0, 6),
    11: Api(JoinGroupRequest, 0, 9),
    12: Api(HeartbeatRequest, 0, 4),
    13: Api(LeaveGroupRequest, 0, 5),
    14: Api(SyncGroupRequest, 0, 5),
    18: Api(ApiVersionsRequest, 0, 4),
    19: Api(CreateTopicsRequest, 2, 7),
    20: Api(DeleteTopicsRequest, 1, 6),
    21: Api(DeleteRecordsRequest, 0, 2),
    22: Api(InitProducerIdRequest, 0, 5),
    23: Api(OffsetForLeaderEpochRequest, 2, 4),
    24: Api(AddPartitionsToTxnRequest, 0, 3),
    25: Api(AddOffsetsToTxnRequest, 0, 4),
    26: Api(EndTxnRequest, 0, 5),
    28: Api(TxnOffsetCommitRequest, 0, 5),
    32: Api(DescribeConfigsRequest, 1, 4),
    44: Api(IncrementalAlterConfigsRequest, 0, 1),
    60: Api(DescribeClusterRequest, 0, 1),
    61: Api(DescribeProducersRequest, 0, 0),
    65: Api(DescribeTransactionsRequest, 0, 0),
    66: Api(ListTransactionsRequest, 0, 1),
}

BEFORE_TRANSACTIONS_2: Final = {0: 11, 26: 4, 28: 4}
"""Highest versions on brokers without version 2 of the transaction protocol."""

FEATURE: Final = "transaction.version"
FEATURE_MAX: Final = 2


class ReceivedRequest(NamedTuple):
    """One request of one connection."""

    api: int
    version: int
    correlation_id: int
    arrived: float
    """Seconds, of the clock that `BrokerTime.now` reads."""

    body: ApiMessage | None
    """None: an ApiVersions request of an unsupported version."""

    client_id: str = ""
    pending: object = None
    """Progress that the last `DelayedResponse` returned for this request."""


class RequestError(ValueError):
    """The bytes are not a request that this broker supports."""


class RequestReply(NamedTuple):
    """Bytes to send to the client; empty if it expects no response."""

    data: bytes
    close: bool = False
    """Close the connection after sending them."""

    why: str = ""
    """Why the response differs from the normal one; empty if it does not."""

    mute_s: float = 0.0
    """Serve no more requests of this connection for this long (seconds)."""


class InjectedDelay(NamedTuple):
    """A response that a fault rule delays."""

    reply: RequestReply
    until: float
    """When to send it (seconds)."""


def decode(data: bytes, *, arrived: float) -> ReceivedRequest:
    """Decode a request; `data` excludes its four length bytes.

    Raises:
        RequestError: the bytes are not a supported request.
    """
    if len(data) < HEAD.size:
        raise RequestError("shorter than a request header")
    key, version, correlation_id = HEAD.unpack_from(data)
    api = APIS.get(key)
    if api is None:
        raise RequestError(f"API {key} is not offered")
    if not api.lowest <= version <= api.highest:
        if key == API_VERSIONS_KEY:
            return ReceivedRequest(key, 0, correlation_id, arrived, None)
        raise RequestError(f"API {key} version {version} is not offered")
    try:
        body = api.request.decode(data, version=version, header=True)
        nulls.check_nulls(body, version)
    except DECODE_FAILURES as error:
        raise RequestError(f"API {key} version {version} does not decode: {error!r}") from error
    return ReceivedRequest(key, version, correlation_id, arrived, body, body.header.client_id or "")


def apply(node: BrokerNode, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
    """Serve a request, or return how long it waits; the caller then passes it in again (see `with_pending`)."""
    if isinstance(request.pending, InjectedDelay):
        kept = request.pending
        return kept.reply if moment.now >= kept.until else DelayedResponse(kept.until, kept)
    node.refresh(moment)
    if request.body is not None and request.version > highest(node, request.api):
        return RequestReply(b"", close=True, why=f"API {request.api} version {request.version} is not offered")
    try:
        outcome = _serve(node, request, moment)
    except ControllerUnreachableError:
        # As a real broker: it forwards the request and gets no response until the controller is reachable again.
        return DelayedResponse(math.inf)
    # The response is built before the transaction ends in its partitions.
    complete_decided_transactions(node, moment)
    match outcome:
        case DelayedResponse():
            return outcome
        case CloseConnection(why):
            return RequestReply(b"", close=True, why=why)
        case ImmediateResponse(response, mute_s):
            return _reply(node, request, response, moment, mute_s)
        case _:
            return RequestReply(b"")


def with_pending(request: ReceivedRequest, wait: DelayedResponse) -> ReceivedRequest:
    """Return the request to pass to the next `apply`, with the progress in `wait`."""
    return request._replace(pending=wait.pending)


def _reply(
    node: BrokerNode, request: ReceivedRequest, response: ApiMessage, moment: BrokerTime, mute_s: float
) -> RequestReply | DelayedResponse:
    response.API_VERSION = request.version
    response.with_header(request.correlation_id)
    data = response.encode(header=True, framed=True)
    match node.faults.for_answer(request.api):
        case None:
            return RequestReply(data, mute_s=mute_s)
        case CutAnswer() as cut:
            return RequestReply(data[: cut.keep], close=cut.close, why="on command")
        case DelayAnswer() as delay:
            until = moment.now + delay.seconds
            return DelayedResponse(until, InjectedDelay(RequestReply(data, mute_s=mute_s), until))
        case _:
            return RequestReply(data * 2, why="on command, twice", mute_s=mute_s)


def _serve(node: BrokerNode, request: ReceivedRequest, moment: BrokerTime) -> RequestOutcome:
    call = RequestContext(request.version, request.client_id, request.arrived, moment)
    if isinstance(request.pending, Stored):
        return finish_stored(node, call, request.pending)
    match request.body:
        case None:
            return ImmediateResponse(_versions(node, ErrorCode.UNSUPPORTED_VERSION))
        case ProduceRequest() as body:
            written = request.pending
            return (
                try_complete_produce(node, body, call, written)
                if isinstance(written, DelayedProduce)
                else produce(node, body, call)
            )
        case FetchRequest() as body:
            return fetch(node, body, call)
        case MetadataRequest() as body:
            return metadata(node, body, call)
        case ListOffsetsRequest() as body:
            return list_offsets(node, body, call)
        case InitProducerIdRequest() as body:
            return init_producer_id(node, body, call)
        case ApiVersionsRequest():
            return ImmediateResponse(_versions(node, ErrorCode.NONE))
        case FindCoordinatorRequest() as body:
            return find_coordinator(node, body, call)
        case OffsetForLeaderEpochRequest() as body:
            return offset_for_leader_epoch(node, body, call)
        case DescribeProducersRequest() as body:
            return describe_producers(node, body, call)
        case OffsetCommitRequest() as body:
            return offset_commit(node, body, call)
        case OffsetFetchRequest() as body:
            return offset_fetch(node, body, call)
        case body:
            return _coordinate(node, body, call, request.pending)


def _coordinate(node: BrokerNode, body: ApiMessage, call: RequestContext, pending: object) -> RequestOutcome:
    match body:
        case JoinGroupRequest():
            return join(node, body, call, pending)
        case SyncGroupRequest():
            return sync(node, body, call)
        case HeartbeatRequest():
            return heartbeat(node, body, call)
        case LeaveGroupRequest():
            return leave(node, body, call)
        case AddPartitionsToTxnRequest():
            return add_partitions(node, body, call)
        case AddOffsetsToTxnRequest():
            return add_offsets(node, body, call)
        case EndTxnRequest():
            return end_transaction(node, body, call)
        case TxnOffsetCommitRequest():
            return txn_offset_commit(node, body, call)
        case DescribeTransactionsRequest():
            return describe_transactions(node, body, call)
        case ListTransactionsRequest():
            return list_transactions(node, body, call)
        case _:
            return _administer(node, body, call)


def _administer(node: BrokerNode, body: ApiMessage, call: RequestContext) -> RequestOutcome:
    match body:
        case CreateTopicsRequest():
            return create_topics(node, body, call)
        case DeleteTopicsRequest():
            return delete_topics(node, body, call)
        case DeleteRecordsRequest():
            return delete_records(node, body, call)
        case DescribeConfigsRequest():
            return describe_configs(node, body, call)
        case IncrementalAlterConfigsRequest():
            return alter_configs(node, body, call)
        case DescribeClusterRequest():
            return describe_cluster(node, body)
        case _:
            raise AssertionError(f"{type(body).__name__} is offered and not served")


def highest(node: BrokerNode, key: int) -> int:
    """Return the highest version of an API that a node supports."""
    offered = APIS[key].highest
    return offered if node.limits.transaction_version else min(offered, BEFORE_TRANSACTIONS_2.get(key, offered))


def _versions(node: BrokerNode, error: ErrorCode) -> ApiVersionsResponse:
    answer = ApiVersionsResponse(
        error_code=error,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.lowest, max_version=highest(node, key))
            for key, api in APIS.items()
        ],
    )
    level = node.limits.transaction_version
    if level:
        supported = ApiVersionsResponse.SupportedFeatureKey(name=FEATURE, min_version=0, max_version=FEATURE_MAX)
        final = ApiVersionsResponse.FinalizedFeatureKey(name=FEATURE, max_version_level=level, min_version_level=level)
        answer.supported_features = [supported]
        answer.finalized_features_epoch = 1
        answer.finalized_features = [final]
    return answer
