"""Validates and normalises the arguments of the client library."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar, cast

from ..api.errors import PenstockError
from ..api.futures import Future
from ..wire.frames import Level

T = TypeVar("T")
LevelName = Literal["accepted", "spooled", "delivered"]
LEVELS: Final[dict[str, int]] = {"accepted": Level.ACCEPTED, "spooled": Level.SPOOLED, "delivered": Level.DELIVERED}


def level_number(name: str) -> int:
    """Return the wire number of a level.

    Raises:
        ValueError: unknown level.
    """
    try:
        return LEVELS[name]
    except KeyError:
        raise ValueError(f"level {name!r} is not one of {', '.join(LEVELS)}") from None


def as_bytes(given: object, what: str) -> bytes:
    """Return an immutable copy, because the record is sent later.

    Raises:
        TypeError: not bytes-like.
    """
    if not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is {type(given).__name__}, not bytes")
    return bytes(given)


def check_numbers(partition: int | None, timestamp_ms: int | None) -> None:
    """Check a partition and a timestamp.

    Raises:
        TypeError: not an int.
        ValueError: negative, or out of Kafka's range.
    """
    for number, what, limit in ((partition, "partition", 1 << 31), (timestamp_ms, "timestamp_ms", 1 << 63)):
        if number is None:
            continue
        if type(number) is not int:
            raise TypeError(f"{what} is {type(number).__name__}, not int")
        if not 0 <= number < limit:
            raise ValueError(f"{what} {number} is not between 0 and {limit - 1}")


def as_column(given: object) -> object:
    """Return a column as a list or tuple, as on the wire; other sequences become lists.

    Raises:
        TypeError: a single text or bytes value.
    """
    if given is None or isinstance(given, int | list | tuple):
        return cast("object", given)
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise TypeError(f"a column is a list, not {type(given).__name__}")
    return list(cast("Sequence[object]", given))


def call_on_ack(done: Future[T], on_ack: Callable[[T | None, PenstockError | None], None]) -> None:
    """Call `on_ack` with the future's result or error."""
    error = done.exception()
    if error is not None:
        on_ack(None, error)
    else:
        on_ack(done.result(), None)
