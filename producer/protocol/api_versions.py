"""ApiVersions, the first exchange on every connection: the versions of each request that the broker supports.

The request has version 4. A broker that does not support it responds with error 35 and a body of version 0. Only the
error code, the first field in every version, decides, because some brokers send an undecodable body.
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
"""Exceptions that `kafka.protocol` raises for bytes that are not the expected message."""

FIRST_VERSION: Final = 4
_FEATURES_FROM: Final = 3
SOFTWARE_NAME: Final = "penstock"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9.-]+")
_UNSUPPORTED_VERSION: Final = 35
_CODE: Final = struct.Struct(">h")
_BODY: Final = 4
"""Offset of the body. The response header is only the correlation id: ApiVersions never has a flexible header."""


class NodeApiVersions(NamedTuple):
    """The versions that the broker supports, and the cluster's features."""

    versions: Mapping[int, tuple[int, int]]
    """Version ranges (least, greatest), by API key."""
    throttle_ms: int
    features: Mapping[str, int] = {}
    """Finalized levels of the cluster's features, by name (KIP-584); reported from version 3 on."""


class ApiVersionsDowngrade(NamedTuple):
    """The broker supports ApiVersions only up to this version: repeat the request with it."""

    version: int


def encode_api_versions_request(version: int, correlation_id: int, client_id: str, software_version: str) -> bytes:
    """The framed request. Versions 3 and later include name and version of the software (KIP-511), restricted to the
    characters that brokers accept: they refuse, for example, a `+` in the version."""
    fit = _UNFIT.sub("-", software_version).strip("-.") or "0"
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=fit, version=version)
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


def decode_api_versions_response(answer: bytes, version: int) -> NodeApiVersions | ApiVersionsDowngrade:
    """Decode the response, without its length, to a request of `version`.

    Raises StreamError if it contains no ranges, or refuses a version that every broker must support.
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
    """The finalized features. An epoch below 0 means that the broker does not know the cluster's state yet: its list is
    then ignored."""
    if response.finalized_features_epoch < 0:
        return {}
    return {str(feature.name): int(feature.max_version_level) for feature in response.finalized_features}


def _own_maximum(answer: bytes) -> int:
    """The broker's greatest version of ApiVersions, from an error body of version 0; 0 if the body does not include
    it."""
    try:
        response = thread_safe_class(ApiVersionsResponse).decode(answer[_BODY:], version=0)
        for api in response.api_keys:
            if api.api_key == ApiVersionsRequest.API_KEY:
                return max(0, int(api.max_version))
    except DECODE_ERRORS:
        return 0
    return 0
