"""What we use of `kafka.protocol`'s generated classes, as types: they carry no annotations of their own."""

from typing import Any, Protocol


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
