"""Typed interfaces of `kafka.protocol`'s generated classes, which have no annotations, and decoding of responses."""

import sys
from typing import Any, NamedTuple, Protocol, TypeAlias

from .api_versions import DECODE_ERRORS
from .framing import CORRELATION_BYTES, StreamError
from .preload import thread_safe_class


class KafkaResponse(Protocol):
    """A response class and its instances."""

    API_KEY: int

    @property
    def version(self) -> int | None: ...

    @classmethod
    def decode(cls, data: bytes, version: int | None = None, header: bool = False, framed: bool = False) -> Any: ...  # noqa: ANN401


class KafkaRequest(Protocol):
    """A request. `header` exists after `with_header`."""

    API_KEY: int
    API_VERSION: int
    valid_versions: tuple[int, int]
    max_version: int

    @property
    def header(self) -> Any: ...  # noqa: ANN401 - generated fields

    def with_header(self, correlation_id: int = 0, client_id: str = "") -> None: ...

    def expect_response(self) -> bool: ...

    def encode(self, version: int | None = None, header: bool = False, framed: bool = False) -> bytes: ...


class ExpectedResponse(NamedTuple):
    """The class and version to decode a request's response with."""

    response_class: type[KafkaResponse]
    version: int


ResponseOrBytes: TypeAlias = KafkaResponse | bytes
"""A decoded response, or the bytes after the correlation id if the request was sent as bytes."""


def expected_response(request: KafkaRequest) -> ExpectedResponse:
    """The class and version of the request's response. The request's version must be set.

    Thread-safe, unlike `header.get_response_class()`: that method finds lazily created classes by weak references. If
    two threads create a class at the same time, it may permanently keep the one that is garbage-collected.
    """
    name = type(request).__name__.removesuffix("Request") + "Response"
    return ExpectedResponse(
        thread_safe_class(getattr(sys.modules[type(request).__module__], name)), request.API_VERSION
    )


def decode_response(expected: ExpectedResponse | None, answer: bytes) -> ResponseOrBytes:
    """Decode a response, passed without its length. With `expected` None, return the bytes after the correlation id.

    Raises:
        StreamError: the bytes are not the expected response.
    """
    if expected is None:
        return answer[CORRELATION_BYTES:]
    try:
        response: KafkaResponse = expected.response_class.decode(answer, version=expected.version, header=True)
    except DECODE_ERRORS as error:
        raise StreamError(
            f"an answer of {len(answer)} bytes is no {expected.response_class.__name__}: {error}"
        ) from error
    return response
