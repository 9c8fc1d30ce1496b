"""Validates and normalises the arguments of the client library."""

from collections.abc import Sequence
from typing import Final, Literal, cast

from ..wire.frames import Level

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
