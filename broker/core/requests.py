"""From the bytes of a request to the bytes of its answer.

A request that does not decode closes its connection, as does one of an API or version that is not offered; only ApiVersions
is answered whatever its version, so that a client can find out what is offered.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from . import nulls
from .admin import alter_configs, create_topics, delete_topics, describe_configs, describe_producers
from .cluster import describe_cluster, find_coordinator, init_producer_id, metadata
from .errors import ErrorCode
from .fetch import fetch, list_offsets, offset_for_leader_epoch
from .groups import offset_commit, offset_fetch
from .node import Node
from .outcomes import Answer, HangUp, Outcome, Wait
from .ports import Moment
from .produce import produce

HEAD: Final = struct.Struct(">hhi")
API_VERSIONS_KEY: Final = 18
DECODE_FAILURES: Final = (ValueError, TypeError, IndexError, OverflowError, MemoryError, struct.error)
"""What kafka-python's decoders raise on bytes that are not a message; MisplacedNullError is a ValueError."""


class Api(NamedTuple):
    """An API and the versions of it that are offered."""

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
    10: Api(FindCoordinatorRequest, 0, 5),
    18: Api(ApiVersionsRequest, 0, 4),
    19: Api(CreateTopicsRequest, 2, 7),
    20: Api(DeleteTopicsRequest, 1, 6),
    22: Api(InitProducerIdRequest, 0, 5),
    23: Api(OffsetForLeaderEpochRequest, 2, 4),
    32: Api(DescribeConfigsRequest, 1, 4),
    44: Api(IncrementalAlterConfigsRequest, 0, 1),
    60: Api(DescribeClusterRequest, 0, 1),
    61: Api(DescribeProducersRequest, 0, 0),
}


class Request(NamedTuple):
    """One request of one connection."""

    api: int
    version: int
    correlation_id: int
    arrived: float
    """Seconds, of the clock that `Moment.now` reads."""

    body: ApiMessage | None
    """None: ApiVersions of a version that is not offered."""


class RequestError(ValueError):
    """The bytes are not a request that this broker serves."""


class Reply(NamedTuple):
    """What goes to the client; no bytes if it wants none."""

    data: bytes
    close: bool = False
    """Close the connection behind them."""

    why: str = ""
    """Why something is kept back."""


def decode(data: bytes, *, arrived: float) -> Request:
    """Read a request, without the four bytes of its length in front.

    Raises:
        RequestError: whatever else the bytes are.
    """
    if len(data) < HEAD.size:
        raise RequestError("shorter than a request header")
    key, version, correlation_id = HEAD.unpack_from(data)
    api = APIS.get(key)
    if api is None:
        raise RequestError(f"API {key} is not offered")
    if not api.lowest <= version <= api.highest:
        if key == API_VERSIONS_KEY:
            return Request(key, 0, correlation_id, arrived, None)
        raise RequestError(f"API {key} version {version} is not offered")
    try:
        body = api.request.decode(data, version=version, header=True)
        nulls.check(body, version)
    except DECODE_FAILURES as error:
        raise RequestError(f"API {key} version {version} does not decode: {error!r}") from error
    return Request(key, version, correlation_id, arrived, body)


def apply(node: Node, request: Request, moment: Moment) -> Reply | Wait:
    """Serve a request, or say until when it waits; a waiting request is given in again, and had no effect."""
    node.refresh(moment)
    outcome = _serve(node, request, moment)
    match outcome:
        case Wait():
            return outcome
        case HangUp(why):
            return Reply(b"", close=True, why=why)
        case Answer(response):
            return _reply(node, request, response)
        case _:
            return Reply(b"")


def _reply(node: Node, request: Request, response: ApiMessage) -> Reply:
    response.API_VERSION = request.version
    response.with_header(request.correlation_id)
    data = response.encode(header=True, framed=True)
    cut = node.faults.for_answer(request.api)
    return Reply(data) if cut is None else Reply(data[: cut.keep], close=cut.close, why="on command")


def _serve(node: Node, request: Request, moment: Moment) -> Outcome:
    version = request.version
    match request.body:
        case None:
            return Answer(_versions(ErrorCode.UNSUPPORTED_VERSION))
        case ProduceRequest() as body:
            return produce(node, body, version, moment)
        case FetchRequest() as body:
            return fetch(node, body, version, request.arrived, moment)
        case MetadataRequest() as body:
            return metadata(node, body, version, moment)
        case ListOffsetsRequest() as body:
            return list_offsets(node, body)
        case InitProducerIdRequest() as body:
            return init_producer_id(node, body)
        case ApiVersionsRequest():
            return Answer(_versions(ErrorCode.NONE))
        case FindCoordinatorRequest() as body:
            return find_coordinator(node, body, version)
        case OffsetForLeaderEpochRequest() as body:
            return offset_for_leader_epoch(node, body)
        case DescribeProducersRequest() as body:
            return describe_producers(node, body)
        case OffsetCommitRequest() as body:
            return offset_commit(node, body)
        case OffsetFetchRequest() as body:
            return offset_fetch(node, body, version)
        case body:
            return _administer(node, body, version, moment)


def _administer(node: Node, body: ApiMessage, version: int, moment: Moment) -> Outcome:
    match body:
        case CreateTopicsRequest():
            return create_topics(node, body, moment)
        case DeleteTopicsRequest():
            return delete_topics(node, body, version, moment)
        case DescribeConfigsRequest():
            return describe_configs(node, body)
        case IncrementalAlterConfigsRequest():
            return alter_configs(node, body, moment)
        case DescribeClusterRequest():
            return describe_cluster(node, body)
        case _:
            raise AssertionError(f"{type(body).__name__} is offered and not served")


def _versions(error: ErrorCode) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.lowest, max_version=api.highest)
            for key, api in APIS.items()
        ],
    )
