"""Records as columns, and columns as the bytes of a SEND.

A SEND's body consists of its head (16 bytes: length, array of nine, type, sequence, level) and the rest (topic and
columns). The rest is packed once. The head is packed when the sequence is known, which for a durable client id is after
the daemon's WELCOME.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, cast

import msgpack

from ...wire.errors import FrameError
from ...wire.frames import LENGTH, Type

Key = bytes | bytearray | memoryview | None
Value = bytes | bytearray | memoryview | None
Headers = Iterable[tuple[str, bytes | bytearray | memoryview | None]] | None

_HEAD: Final = struct.Struct(">IBBBQB")
HEAD_BYTES: Final = _HEAD.size - LENGTH.size
_ARRAY_OF_NINE: Final = 0x99
_UINT64: Final = 0xCF
RECORD_OVERHEAD_BYTES: Final = 24
"""Most that msgpack adds to one record's key and value, including partition and timestamp."""
HEADER_OVERHEAD_BYTES: Final = 10
TOPIC_CHARS_MAX: Final = 249
FRAME_OVERHEAD_BYTES: Final = 512
"""Most bytes of a frame besides its records: head, topic, column heads."""
_TOPIC_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def check_topic(topic: str) -> None:
    """Check the topic name.

    Raises:
        ValueError: the name is invalid in Kafka.
    """
    if not 1 <= len(topic) <= TOPIC_CHARS_MAX or topic in {".", ".."} or not _TOPIC_ALPHABET.issuperset(topic):
        raise ValueError(f"{topic!r} is not a topic: 1 to {TOPIC_CHARS_MAX} characters of A-Z a-z 0-9 . _ -")


def flatten(headers: Headers) -> list[object] | None:
    """Return headers in the protocol's form: name, value, name, value …

    Raises:
        TypeError: a name is not text, or a value neither bytes nor None.
    """
    if headers is None:
        return None
    flat: list[object] = []
    for name, value in headers:
        if not isinstance(cast("object", name), str):
            raise TypeError(f"the header name {name!r} is {type(name).__name__}, not str")
        _ = name.encode()
        if value is not None and not isinstance(cast("object", value), bytes | bytearray | memoryview):
            raise TypeError(f"the value of header {name!r} is {type(value).__name__}, not bytes or None")
        flat += (name, value)
    return flat or None


def flat_bytes(flat: Sequence[Any] | None) -> int:
    """Most bytes that a record's headers take in a frame."""
    if flat is None:
        return 0
    sizes = (0 if part is None else len(part.encode()) if isinstance(part, str) else len(part) for part in flat)
    return sum(sizes) + HEADER_OVERHEAD_BYTES * (len(flat) // 2 + 1)


class Packer(Protocol):
    """msgpack's packer, which accumulates output until it is reset."""

    def pack(self, obj: object) -> object: ...
    def bytes(self) -> bytes: ...
    def reset(self) -> None: ...


class Columns:
    """Buffered records of one topic and level. Columns without any value are nil on the wire."""

    __slots__ = ("has_keys", "headers", "keys", "partitions", "plain", "timestamps", "values")

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.keys: list[Key] = []
        self.has_keys = False
        self.plain = True
        self.partitions: list[int | None] | None = None
        self.headers: list[list[object] | None] | None = None
        self.timestamps: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def append(self, key: Key, value: Value) -> None:
        """Append a record without partition, headers or timestamp."""
        self.keys.append(key)
        self.values.append(value)
        if key is not None:
            self.has_keys = True
        if self.plain:
            return
        if self.partitions is not None:
            self.partitions.append(None)
        if self.headers is not None:
            self.headers.append(None)
        if self.timestamps is not None:
            self.timestamps.append(None)

    def append_full(
        self, key: Key, value: Value, partition: int | None, headers: list[object] | None, timestamp_ms: int | None
    ) -> None:
        """Append a record with a partition, headers or a timestamp."""
        count = len(self.values)
        self.append(key, value)
        self.plain = False
        if partition is not None:
            partitions = self.partitions = self.partitions or _nils(count + 1)
            partitions[count] = partition
        if headers is not None:
            every = self.headers = self.headers or _nils(count + 1)
            every[count] = headers
        if timestamp_ms is not None:
            stamps = self.timestamps = self.timestamps or _nils(count + 1)
            stamps[count] = timestamp_ms

    def pack(self, packer: Packer, topic: str) -> bytes:
        """Return topic and columns as msgpack."""
        keys = self.keys if self.has_keys else None
        return pack(packer, topic, self.partitions, keys, self.values, self.headers, self.timestamps)


def pack(packer: Packer, topic: str, *columns: object) -> bytes:
    """Return topic and columns as msgpack, without the head.

    Raises:
        TypeError, ValueError, OverflowError: the protocol cannot encode a value in the columns.
    """
    try:
        for item in (topic, *columns):
            _ = packer.pack(item)
        return packer.bytes()
    finally:
        packer.reset()


def new_packer() -> Packer:
    """Create a packer. Each thread or lock needs its own, because it keeps a buffer."""
    return cast("Packer", msgpack.Packer(use_bin_type=True, autoreset=False))


def _nils(count: int) -> list[Any]:
    return [None] * count


def pack_head(rest: bytes, seq: int, level: int) -> bytes:
    """Return the head of a SEND, length prefix included."""
    return _HEAD.pack(HEAD_BYTES + len(rest), _ARRAY_OF_NINE, Type.SEND, _UINT64, seq, level)


def record_count(columns: Sequence[Any]) -> int:
    """Number of records in whole columns: the length of the values column, which is third.

    Raises:
        ValueError: another column has another length, or there are no records.
    """
    count = len(columns[2])
    if count == 0:
        raise ValueError("there is no record")
    for name, column in zip(("partitions", "keys", "values", "headers", "timestamps"), columns, strict=True):
        if isinstance(column, list | tuple) and len(column) != count:
            raise ValueError(f"{name} has {len(column)} items for {count} values")
    return count


def cut(columns: Sequence[Any], start: int, end: int) -> list[Any]:
    """Return the columns of records `start` … `end - 1`; a single value for all records stays single."""
    return [column[start:end] if isinstance(column, list | tuple) else column for column in columns]


def pack_many(
    packer: Packer, topic: str, columns: Sequence[Any], count: int, *, bytes_max: int, bytes_wanted: int
) -> list[tuple[int, bytes]]:
    """Pack whole columns as the rest of one or several SENDs, each of at most `bytes_max` and around `bytes_wanted`
    bytes. Returns (record count, bytes) for each.

    Raises:
        FrameError: a single record is too large; the text names it.
        TypeError, ValueError, OverflowError: the protocol cannot encode a value in the columns.
    """
    whole_max = min(bytes_max, 2 * bytes_wanted)
    about = count * _first_bytes(columns)
    if about <= whole_max:
        whole = pack(packer, topic, *columns)
        about = len(whole)
        if about + HEAD_BYTES <= whole_max:
            return [(count, whole)]
    size = -(-count // -(-about // bytes_wanted))
    parts: list[tuple[int, bytes]] = []
    for start in range(0, count, size):
        end = min(count, start + size)
        parts += _pack_part(packer, topic, columns, start, end, bytes_max)
    return parts


def _first_bytes(columns: Sequence[Any]) -> int:
    """Bytes of the first record's key and value, an early sign that columns need several frames."""
    firsts = [column[0] for column in columns[1:3] if isinstance(column, list | tuple)]
    return sum(len(first) for first in firsts if isinstance(first, bytes | bytearray))


def _pack_part(
    packer: Packer, topic: str, columns: Sequence[Any], start: int, end: int, bytes_max: int
) -> list[tuple[int, bytes]]:
    rest = pack(packer, topic, *cut(columns, start, end))
    if len(rest) + HEAD_BYTES <= bytes_max:
        return [(end - start, rest)]
    if end - start == 1:
        raise FrameError(
            f"record {start} takes {len(rest) + HEAD_BYTES} bytes, over the limit of {bytes_max}", code="too_large"
        )
    middle = (start + end) // 2
    return _pack_part(packer, topic, columns, start, middle, bytes_max) + _pack_part(
        packer, topic, columns, middle, end, bytes_max
    )
