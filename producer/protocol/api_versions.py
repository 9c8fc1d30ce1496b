"""ApiVersions, the first exchange on every connection: which versions of which request the broker takes.

Asked with version 4. A broker that does not know it answers error 35 with a body of version 0; the decision rests on the
error code alone, the first field of every version, because some brokers send a body that nobody can decode.
"""

import re
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse

from .framing import StreamError
from .preload import thread_safe_class
from .throttling import should_client_throttle

DECODE_ERRORS: Final = (ValueError, struct.error, IndexError, TypeError, OverflowError, KeyError, EOFError)
"""What `kafka.protocol` raises on bytes that are not the message they should be."""

FIRST_VERSION: Final = 4
_FEATURES_FROM: Final = 3
SOFTWARE_NAME: Final = "penstock"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9.-]+")
_UNSUPPORTED_VERSION: Final = 35
_CODE: Final = struct.Struct(">h")
_BODY: Final = 4
"""The answer's header is the correlation id, in every version: this one answer never has a flexible header."""


class NodeApiVersions(NamedTuple):
    """What the broker takes."""

    versions: Mapping[int, tuple[int, int]]
    """Ranges (least, greatest), by API key."""
    throttle_ms: int
    features: Mapping[str, int] = {}
    """Levels of the features that the whole cluster has turned on, by name (KIP-584): told from version 3 on."""


class ApiVersionsDowngrade(NamedTuple):
    """The broker knows ApiVersions only up to this version."""

    version: int


def encode_api_versions_request(version: int, correlation_id: int, client_id: str, software_version: str) -> bytes:
    """The framed request. Name and version of the software go with version 3 and later (KIP-511), in the letters that
    brokers take: they refuse a client for a `+` in its version."""
    fit = _UNFIT.sub("-", software_version).strip("-.") or "0"
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=fit, version=version)
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


def decode_api_versions_response(answer: bytes, version: int) -> NodeApiVersions | ApiVersionsDowngrade:
    """Judge the answer (without its length) to a request of `version`.

    Raises StreamError where it holds no ranges, or refuses a version that every broker must take.
    """
    if len(answer) < _BODY + _CODE.size:
        raise StreamError("the answer to ApiVersions is cut short")
    (code,) = _CODE.unpack_from(answer, _BODY)
    if code == _UNSUPPORTED_VERSION and version > 0:
        return ApiVersionsDowngrade(min(_own_maximum(answer), version - 1))
    if code != 0:
        raise StreamError(f"ApiVersions version {version} was answered with error {code}")
    try:
        response = thread_safe_class(ApiVersionsResponse).decode(answer[_BODY:], version=version)
        ranges = {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}
        features = _features(response) if version >= _FEATURES_FROM else {}
    except DECODE_ERRORS as error:
        raise StreamError(f"the answer to ApiVersions version {version} cannot be read: {error}") from error
    waits = should_client_throttle(ApiVersionsRequest.API_KEY, version)
    return NodeApiVersions(ranges, int(response.throttle_time_ms or 0) if waits else 0, features)


def _features(response: ApiVersionsResponse) -> dict[str, int]:
    """A broker that does not know the state of the cluster yet says so by an epoch below 0: what it lists means nothing."""
    if response.finalized_features_epoch < 0:
        return {}
    return {str(feature.name): int(feature.max_version_level) for feature in response.finalized_features}


def _own_maximum(answer: bytes) -> int:
    """The broker's greatest version of ApiVersions out of an error body of version 0; 0 where that tells nothing."""
    try:
        response = thread_safe_class(ApiVersionsResponse).decode(answer[_BODY:], version=0)
        for api in response.api_keys:
            if api.api_key == ApiVersionsRequest.API_KEY:
                return max(0, int(api.max_version))
    except DECODE_ERRORS:
        return 0
    return 0
