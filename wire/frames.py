"""The local protocol: messages between applications and the daemon on the Unix socket.

A message is a 32-bit big-endian length n, 1 ≤ n ≤ `frame_bytes_max`, then n bytes holding exactly one msgpack array
whose first element is the message's type. `docs/reference/protocol.md` describes every field. The compiled kernel
parses SEND in place; all other messages are small and unpacked in this module under limits.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple, cast

import msgpack

from .errors import FrameError

VERSION: Final = 1
LENGTH: Final = struct.Struct(">I")
FRAME_BYTES_MAX: Final = 1 << 20
CLIENT_ID_CHARS_MAX: Final = 128
_CLIENT_ID_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_SEQUENCE_MAX: Final = (1 << 63) - 1
_UNPACK_ERRORS: Final = (
    ValueError,
    OverflowError,
    RecursionError,
    TypeError,
    UnicodeDecodeError,
    msgpack.UnpackException,
)


class Type(IntEnum):
    """First element of every message."""

    HELLO = 1
    SEND = 2
    FLUSH = 3
    PARTITIONS = 4
    TXN = 5
    BYE = 6
    WELCOME = 129
    ACK = 130
    REFUSED = 131
    DONE = 132


class Level(IntEnum):
    """The acknowledgement level that a client waits for."""

    ACCEPTED = 0
    SPOOLED = 1
    DELIVERED = 2


class Detail(StrEnum):
    """Detail of acks at `delivered`."""

    NONE = "none"
    SLICES = "slices"
    RECORDS = "records"


class Code(StrEnum):
    """Why a frame, some of its records, or a session is refused."""

    BUSY = "busy"
    TOO_LARGE = "too_large"
    BAD_FRAME = "bad_frame"
    BAD_TOPIC = "bad_topic"
    BAD_PARTITION = "bad_partition"
    BAD_TIMESTAMP = "bad_timestamp"
    RESERVED_HEADER = "reserved_header"
    UNKNOWN_TOPIC = "unknown_topic"
    NO_METADATA = "no_metadata"
    NO_SPACE = "no_space"
    REFUSED_BEFORE = "refused_before"
    NOT_SUPPORTED = "not_supported"
    NOT_ALLOWED = "not_allowed"
    LEVEL_UNAVAILABLE = "level_unavailable"
    DRAINING = "draining"
    PARKED = "parked"
    EXPIRED = "expired"
    EXPIRED_MAY_BE_WRITTEN = "expired_may_be_written"
    ABORTED = "aborted"
    PROTOCOL = "protocol"
    VERSION = "version"
    CLIENT_ID_IN_USE_BY_ANOTHER_USER = "client_id_in_use_by_another_user"
    TOO_SLOW = "too_slow"
    ANSWERS_UNREAD = "answers_unread"
    LIMIT = "limit"


FLAG_SINGLE_REPLICA: Final = 1
"""Ack flag: only one broker confirmed the records."""


class Hello(NamedTuple):
    version: int
    client_id: str | None
    detail: Detail
    unanswered_from: int | None


class Flush(NamedTuple):
    seq: int


class Partitions(NamedTuple):
    seq: int
    topic: str


class Txn(NamedTuple):
    seq: int


class Bye(NamedTuple):
    pass


ClientMessage = Hello | Flush | Partitions | Txn | Bye


class Run(NamedTuple):
    """A contiguous run of offsets of one partition, in record order. `offset` -1: written, at an unknown offset."""

    partition: int
    offset: int
    count: int  # type: ignore[assignment]
    timestamp_ms: int


class RefusedRecords(NamedTuple):
    """Records of a frame whose outcome differs from the frame's: indexes `first` … `first + count - 1`."""

    first: int
    count: int  # type: ignore[assignment]
    code: str
    text: str


class Ack(NamedTuple):
    """Response to one frame. `level` None: no record reached it."""

    seq: int
    level: int | None
    runs: Sequence[Run] | None = None
    partitions: Sequence[int] | None = None
    refused: Sequence[RefusedRecords] | None = None
    flags: int = 0


class Welcome(NamedTuple):
    version: int
    high: int
    limits: dict[str, int]
    daemon: str


class Acks(NamedTuple):
    acks: list[Ack]


class Refused(NamedTuple):
    """Refusal of a frame. `seq` None: of the whole session."""

    seq: int | None
    code: str
    text: str
    retry_ms: int | None


class PartitionInfo(NamedTuple):
    """One row of the response to PARTITIONS; node ids, -1 for no leader."""

    partition: int
    leader: int
    replicas: Sequence[int]
    in_sync: Sequence[int]


class Done(NamedTuple):
    """Response to FLUSH (`result` None) or PARTITIONS (`result` a list of `PartitionInfo`)."""

    seq: int
    result: list[PartitionInfo] | None


DaemonMessage = Welcome | Acks | Refused | Done


def pack(message: Sequence[object]) -> bytes:
    """Encode one message: length prefix and msgpack."""
    body = cast("bytes", msgpack.packb(message, use_bin_type=True))
    return LENGTH.pack(len(body)) + body


def hello(client_id: str | None, *, detail: Detail = Detail.SLICES, unanswered_from: int | None = None) -> bytes:
    options: dict[str, object] = {"detail": str(detail)}
    if unanswered_from is not None:
        options["unanswered_from"] = unanswered_from
    return pack((Type.HELLO, VERSION, client_id, options))


def welcome(high: int, limits: dict[str, int], daemon: str) -> bytes:
    return pack((Type.WELCOME, VERSION, high, limits, daemon))


def acks(items: Sequence[Ack]) -> bytes:
    return pack((Type.ACK, items))


def refused(seq: int | None, code: Code, text: str, retry_ms: int | None = None) -> bytes:
    return pack((Type.REFUSED, seq, str(code), text, retry_ms))


def done(seq: int, result: Sequence[PartitionInfo] | None = None) -> bytes:
    return pack((Type.DONE, seq, result))


def valid_client_id(text: str) -> bool:
    return 1 <= len(text) <= CLIENT_ID_CHARS_MAX and _CLIENT_ID_ALPHABET.issuperset(text)


def decode_client(body: bytes | bytearray | memoryview) -> ClientMessage:
    """Decode any client message except SEND.

    Raises:
        FrameError: not one msgpack array, an unknown type, or a wrong shape.
    """
    fields = _unpack(body, arrays=8, maps=8)
    kind = fields[0]
    if kind == Type.HELLO:
        return _hello(fields)
    if kind == Type.FLUSH:
        return Flush(_sequence(_shape(fields, 2, "FLUSH")[1]))
    if kind == Type.PARTITIONS:
        _shape(fields, 3, "PARTITIONS")
        return Partitions(_sequence(fields[1]), _text(fields[2], "topic"))
    if kind == Type.TXN:
        return Txn(_sequence(_shape(fields, 4, "TXN")[1]))
    if kind == Type.BYE:
        _shape(fields, 1, "BYE")
        return Bye()
    raise FrameError(f"message type {kind!r} is not known")


def decode_daemon(body: bytes | bytearray | memoryview) -> DaemonMessage:
    """Decode any message of the daemon.

    Raises:
        FrameError: not a message of this protocol.
    """
    fields = _unpack(body, arrays=1 << 20, maps=64)
    kind = fields[0]
    try:
        if kind == Type.WELCOME:
            return Welcome(int(fields[1]), int(fields[2]), dict(fields[3]), str(fields[4]))
        if kind == Type.ACK:
            return Acks([_ack(item) for item in fields[1]])
        if kind == Type.REFUSED:
            return Refused(fields[1], str(fields[2]), str(fields[3]), fields[4])
        if kind == Type.DONE:
            result = fields[2]
            return Done(int(fields[1]), None if result is None else [PartitionInfo(*row) for row in result])
    except (IndexError, TypeError, ValueError) as error:
        raise FrameError(f"message of type {kind!r} has a wrong shape: {error}") from error
    raise FrameError(f"message type {kind!r} is not known")


def _ack(item: Sequence[Any]) -> Ack:
    seq, level, runs, partitions, refused_records, flags = item
    return Ack(
        int(seq),
        None if level is None else int(level),
        None if runs is None else [Run(*run) for run in runs],
        partitions,
        None if refused_records is None else [RefusedRecords(*entry) for entry in refused_records],
        int(flags),
    )


def _unpack(body: bytes | bytearray | memoryview, *, arrays: int, maps: int) -> list[Any]:
    try:
        fields = msgpack.unpackb(body, raw=False, max_array_len=arrays, max_map_len=maps, max_ext_len=0)
    except _UNPACK_ERRORS as error:
        raise FrameError(f"not one msgpack array: {type(error).__name__}") from error
    if not isinstance(fields, list) or not fields:
        raise FrameError("a message is a msgpack array that begins with its type")
    return cast("list[Any]", fields)


def _shape(fields: list[Any], length: int, name: str) -> list[Any]:
    if len(fields) != length:
        raise FrameError(f"{name} has {len(fields)} elements, not {length}")
    return fields


def _sequence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _SEQUENCE_MAX:
        raise FrameError("seq is not a whole number from 0 to 2^63 - 1")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise FrameError(f"{name} is not text")
    return value


def _hello(fields: list[Any]) -> Hello:
    _, version, client_id, options = _shape(fields, 4, "HELLO")
    if isinstance(version, bool) or not isinstance(version, int):
        raise FrameError("version is not a number")
    if version != VERSION:
        raise FrameError(f"version {version} is not spoken here, version {VERSION} is", code=Code.VERSION)
    if client_id is not None and not (isinstance(client_id, str) and valid_client_id(client_id)):
        raise FrameError(f"client_id is not 1 to {CLIENT_ID_CHARS_MAX} characters of A-Z a-z 0-9 . _ -")
    if not isinstance(options, dict):
        raise FrameError("options is not a map")
    settings = cast("dict[object, object]", options)
    detail = settings.get("detail", Detail.SLICES)
    if detail not in tuple(Detail):
        raise FrameError('detail is not "none", "slices" or "records"')
    unanswered_from = settings.get("unanswered_from")
    return Hello(
        version, client_id, Detail(str(detail)), None if unanswered_from is None else _sequence(unanswered_from)
    )
