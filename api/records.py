"""Records as serializers and interceptors see them."""

from collections.abc import Iterable, MutableSequence
from typing import Final, NamedTuple, SupportsIndex, overload

HeaderValue = bytes | bytearray | memoryview | None
Header = tuple[str, HeaderValue]


class Headers(MutableSequence[Header]):
    """Pairs of a name and a value, in order; names may repeat. Read-only once the record is sent (SND-7)."""

    __slots__ = ("_frozen", "_pairs")

    def __init__(self, pairs: Iterable[Header] | None = None) -> None:
        self._pairs: Final[list[Header]] = [] if pairs is None else list(pairs)
        self._frozen = False

    def add(self, name: str, value: HeaderValue) -> None:
        """Append a header.

        Raises:
            RuntimeError: the record has been sent.
        """
        self.insert(len(self._pairs), (name, value))

    def last(self, name: str) -> HeaderValue:
        """The value of the last header of that name.

        Raises:
            KeyError: no header has that name.
        """
        for own, value in reversed(self._pairs):
            if own == name:
                return value
        raise KeyError(name)

    def named(self, name: str) -> list[HeaderValue]:
        """The values of all headers of that name."""
        return [value for own, value in self._pairs if own == name]

    def freeze(self) -> None:
        """Forbid any further change."""
        self._frozen = True

    def _check(self) -> None:
        if self._frozen:
            raise RuntimeError("the record has been sent: its headers cannot be changed any more")

    def insert(self, index: int, value: Header) -> None:
        self._check()
        self._pairs.insert(index, value)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Header: ...
    @overload
    def __getitem__(self, index: slice) -> "Headers": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Header | Headers":
        return Headers(self._pairs[index]) if isinstance(index, slice) else self._pairs[index]

    @overload
    def __setitem__(self, index: SupportsIndex, value: Header) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[Header]) -> None: ...
    def __setitem__(self, index: SupportsIndex | slice, value: Header | Iterable[Header]) -> None:
        self._check()
        self._pairs[index] = value  # type: ignore[index, assignment]  # pyright: ignore[reportArgumentType, reportCallIssue]

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        self._check()
        del self._pairs[index]

    def __len__(self) -> int:
        return len(self._pairs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self._pairs == other._pairs
        return self._pairs == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Headers({self._pairs!r})"


def reusable_headers(headers: Iterable[Header] | None) -> Iterable[Header] | None:
    """Return headers that can be iterated more than once, because `send` may retry."""
    return headers if headers is None or isinstance(headers, list | tuple | Headers) else list(headers)


class Record(NamedTuple):
    """Arguments of `send`, before serialization. The producer sets `partition` and `timestamp_ms` (since 1970) if
    None."""

    topic: str
    value: object
    key: object
    headers: Headers
    partition: int | None
    timestamp_ms: int | None
