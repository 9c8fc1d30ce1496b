"""Encodes the messages of `wire/messages.py` for ZeroMQ.

Every message is one msgpack array: the envelope (protocol version, router start number, shard start number, hop
sequence, hop acknowledgement, type), then the fields of its NamedTuple, in order. Hop sequences run from 0 without gaps
in each direction of each pair. The acknowledgement is the other side's highest *processed* sequence (-1: none); for
DONE and REVOKED this means that the router's own entry is in the spool. A shard's first HELLO has router start number
0.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast, get_origin

import msgpack

from .errors import FrameError
from .messages import (
    ITEMS_MAX,
    Anchor,
    BatchBounds,
    BatchesDone,
    BatchRefused,
    Credit,
    DoneBatch,
    FlushPartitions,
    Grant,
    Move,
    NewLeaderHint,
    Node,
    NodeLoad,
    Nodes,
    Pace,
    PartitionHalted,
    PartitionLoad,
    Ping,
    ProbeRefused,
    RecordError,
    Revoke,
    Revoked,
    RouterMessage,
    ShardFailed,
    ShardHello,
    ShardLoad,
    ShardMessage,
    ShardWelcome,
    SliceRef,
    Slices,
    SliceUnreadable,
    StampRow,
    Stop,
)
from .record_ids import IdRow

VERSION: Final = 1
MESSAGE_BYTES_MAX: Final = 4 << 20

_TYPES: Final[dict[int, type[Any]]] = {
    1: ShardWelcome,
    2: Nodes,
    3: Grant,
    4: Slices,
    5: Pace,
    6: Move,
    7: Revoke,
    8: FlushPartitions,
    9: Stop,
    10: Ping,
    129: ShardHello,
    130: Credit,
    131: BatchesDone,
    132: BatchRefused,
    133: NewLeaderHint,
    134: Revoked,
    135: ProbeRefused,
    136: PartitionHalted,
    137: ShardLoad,
    138: SliceUnreadable,
    139: ShardFailed,
}
_NUMBERS: Final[dict[type[Any], int]] = {kind: number for number, kind in _TYPES.items()}
_NESTED: Final[dict[tuple[type[Any], str], type[Any]]] = {
    (Nodes, "nodes"): Node,
    (Grant, "rows"): StampRow,
    (Grant, "cuts"): BatchBounds,
    (Grant, "id_rows"): IdRow,
    (Slices, "refs"): SliceRef,
    (BatchesDone, "items"): DoneBatch,
    (BatchRefused, "record_errors"): RecordError,
    (Revoked, "cuts"): BatchBounds,
    (ShardLoad, "nodes"): NodeLoad,
    (ShardLoad, "partitions"): PartitionLoad,
}
_OPTIONAL: Final[dict[tuple[type[Any], str], type[Any]]] = {(Grant, "anchor"): Anchor, (Pace, "anchor"): Anchor}


def _fields_of(kind: type[Any]) -> list[tuple[int, type[Any]]]:
    found: list[tuple[int, type[Any]]] = []
    for place, name in enumerate(kind._fields):
        hint = kind.__annotations__[name]
        origin: Any = get_origin(hint) or hint
        found.append((place, list if origin is Sequence else origin))
    return found


_FROM_SHARDS: Final = 128
_CHECKED: Final[dict[type[Any], list[tuple[int, type[Any]]]]] = {
    kind: _fields_of(kind)
    for kind in (
        *(kind for number, kind in _TYPES.items() if number > _FROM_SHARDS),
        *(nested for (kind, _), nested in _NESTED.items() if _NUMBERS[kind] > _FROM_SHARDS),
    )
}
"""The router checks every field of a shard's message: no message, however malformed, may crash the router."""


class Envelope(NamedTuple):
    """Sequence and acknowledgement of this hop, with the start numbers of both sides."""

    router_start: int
    shard_start: int
    seq: int
    ack: int


def encode(envelope: Envelope, message: RouterMessage | ShardMessage) -> bytes:
    """Encode one message as the bytes of one ZeroMQ frame."""
    packed = msgpack.packb((VERSION, *envelope, _NUMBERS[type(message)], *message), use_bin_type=True)
    return cast("bytes", packed)


def decode(data: bytes | memoryview) -> tuple[Envelope, RouterMessage | ShardMessage]:
    """Decode the envelope and the message. Raise FrameError: another version, too large, or a wrong shape."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise FrameError(f"a message of {len(data)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    try:
        fields = msgpack.unpackb(data, raw=False, max_array_len=ITEMS_MAX, max_map_len=1024, max_ext_len=0)
    except (ValueError, OverflowError, RecursionError, TypeError, msgpack.UnpackException) as error:
        raise FrameError(f"not a message: {type(error).__name__}") from error
    if not isinstance(fields, list) or len(cast("list[object]", fields)) < 6:
        raise FrameError("not an enveloped message")
    parts = cast("list[Any]", fields)
    if parts[0] != VERSION:
        raise FrameError(f"bus protocol version {parts[0]!r}, not {VERSION}")
    if not all(type(number) is int for number in parts[1:6]):
        raise FrameError("the envelope holds something that is not a number")
    kind = _TYPES.get(parts[5])
    if kind is None:
        raise FrameError(f"message type {parts[5]} is not known")
    return Envelope(*parts[1:5]), _build(kind, parts[6:])


def _build(kind: type[Any], values: list[Any]) -> Any:  # noqa: ANN401 - one of the types in the table
    names: tuple[str, ...] = kind._fields
    if len(values) != len(names):
        raise FrameError(f"{kind.__name__} has {len(values)} fields, not {len(names)}")
    try:
        _check(kind, values)
        for place, name in enumerate(names):
            nested = _NESTED.get((kind, name))
            if nested is not None:
                values[place] = [nested(*item) for item in values[place]]
                if nested in _CHECKED:
                    for item in values[place]:
                        _check(nested, item)
            optional = _OPTIONAL.get((kind, name))
            if optional is not None and values[place] is not None:
                values[place] = optional(*values[place])
    except TypeError as error:
        raise FrameError(f"{kind.__name__} has a wrong shape: {error}") from error
    return kind(*values)


def _check(kind: type[Any], values: Sequence[Any]) -> None:
    for place, expected in _CHECKED.get(kind, ()):
        if type(values[place]) is not expected:
            raise FrameError(f"{kind.__name__}.{kind._fields[place]} is a {type(values[place]).__name__}")
