"""What we use of `kafka.protocol`'s generated classes, as types: they carry no annotations of their own."""

from typing import Any, Protocol, TypeAlias

from .handshake import DECODE_ERRORS
from .streams import CORRELATION_BYTES, StreamError


class KafkaResponse(Protocol):
    """A response class, already bound to one version, and its objects."""

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


Answer: TypeAlias = KafkaResponse | bytes
"""What a request gets: its response, or for one sent as bytes those after the correlation id."""


def decode_answer(response_class: type[KafkaResponse] | None, answer: bytes) -> Answer:
    """An answer without its length; None: it is wanted as bytes.

    Raises:
        StreamError: the bytes are not the response.
    """
    if response_class is None:
        return answer[CORRELATION_BYTES:]
    try:
        response: KafkaResponse = response_class.decode(answer, header=True)
    except DECODE_ERRORS as error:
        raise StreamError(f"an answer of {len(answer)} bytes is no {response_class.__name__}: {error}") from error
    return response
