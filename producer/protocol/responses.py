"""What we use of `kafka.protocol`'s generated classes, as types: they carry no annotations of their own."""

import sys
from typing import Any, NamedTuple, Protocol, TypeAlias

from .api_versions import DECODE_ERRORS
from .framing import CORRELATION_BYTES, StreamError
from .preload import thread_safe_class


class KafkaResponse(Protocol):
    """A response class, and its objects."""

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
    """What answers a request."""

    response_class: type[KafkaResponse]
    version: int


ResponseOrBytes: TypeAlias = KafkaResponse | bytes
"""What a request gets: its response, or for one sent as bytes those after the correlation id."""


def expected_response(request: KafkaRequest) -> ExpectedResponse:
    """What the request's answer is to be read as; its version has been chosen.

    Any number of threads may ask. `header.get_response_class()` bears only one: it finds classes that are made when they are
    first wanted, by weak references, and of two made at once it may keep the one that dies, for everybody and for good.
    """
    name = type(request).__name__.removesuffix("Request") + "Response"
    return ExpectedResponse(
        thread_safe_class(getattr(sys.modules[type(request).__module__], name)), request.API_VERSION
    )


def decode_response(expected: ExpectedResponse | None, answer: bytes) -> ResponseOrBytes:
    """An answer without its length; None: it is wanted as bytes.

    Raises:
        StreamError: the bytes are not the response.
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
