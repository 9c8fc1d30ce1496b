"""The messages between the router and the shards over ZeroMQ. They carry references to slices, never payload.

Every message is one msgpack array: the envelope (protocol version, router start number, shard start number, hop
sequence, hop acknowledgement, type), then the fields of its NamedTuple below, in order. Hop sequences run from 0
without gaps in each direction of each pair. The acknowledgement is the other side's highest *processed* sequence (-1:
none); for DONE and REVOKED this means that the router's own entry is in the spool. A shard's first HELLO has router
start number 0.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast, get_origin

import msgpack

from .errors import FrameError
from .record_ids import IdRow

VERSION: Final = 1
MESSAGE_BYTES_MAX: Final = 4 << 20
ITEMS_MAX: Final = 65_536

FIRST: Final = "first"
NARROW: Final = "narrow"
OPEN: Final = "open"
PACES: Final = (FIRST, NARROW, OPEN)

EVERY_PARTITION: Final = -1


class BatchBounds(NamedTuple):
    """A batch that may have been sent and is unresolved."""

    first: int
    count: int  # type: ignore[assignment]
    epoch: int


class StampRow(NamedTuple):
    """From ordinal `start` on, base sequence = (first ordinal - base) mod 2^31 under this producer id and epoch. Two
    consecutive rows with the same id and epoch have a hole right before the later one (`holes_between`)."""

    producer_id: int
    epoch: int
    start: int
    base: int


def holes_between(rows: list[StampRow]) -> list[tuple[int, int]]:
    """Return the ordinal ranges [first, end) that are never sent, ascending. A later row's base is higher by the number
    of ordinals left out, so sequences continue without a gap. A hole may begin and end inside a slice."""
    found: list[tuple[int, int]] = []
    for before, after in pairwise(rows):
        left_out = after.base - before.base
        if (before.producer_id, before.epoch) == (after.producer_id, after.epoch) and left_out > 0:
            found.append((after.start - left_out, after.start))
    return found


class Anchor(NamedTuple):
    """The last acknowledged batch under the current producer id. `time_ms` is its largest record timestamp (or
    log-append time), `acked_wall_ms` the wall time of its acknowledgement, both in ms since 1970."""

    base_offset: int
    time_ms: int
    acked_wall_ms: int
    leader_epoch: int


class Node(NamedTuple):
    node: int
    host: str
    port: int
    rack: str
    budget_bytes: int


class ShardWelcome(NamedTuple):
    """Response to HELLO. Before anything else, the shard opens a pidfd of the router and creates its journal."""

    router_pid: int
    shard_id: int
    settings_digest: str
    spool_id: str
    producer_id_expiration_ms: int


class Nodes(NamedTuple):
    """The nodes this shard serves. The shard closes its connections to all other nodes."""

    nodes: list[Node]


class Grant(NamedTuple):
    """A lease. `cuts` are the inherited batches, oldest first. SLICE references follow from `next_ordinal` on (the
    first cut's `first`, or the ack mark). `log_start` -1: not known. `expiration_ms`: how long brokers remember a
    producer, as currently known; 0: the value from WELCOME. `id_rows`: the incarnations of its ordinals, future ones
    included, ascending. They are constant: a new incarnation is only made before anything is granted."""

    partition: int
    topic: str
    topic_id: bytes | None
    index: int  # type: ignore[assignment]
    generation: int
    node: int
    leader_epoch: int
    rows: list[StampRow]
    next_ordinal: int
    cuts: list[BatchBounds]
    pace: str
    anchor: Anchor | None
    log_start: int
    expiration_ms: int = 0
    id_rows: Sequence[IdRow] = ()


class SliceRef(NamedTuple):
    """Location of a slice in the spool. `created_ms` is the router's CLOCK_MONOTONIC when it accepted the frame."""

    partition: int
    generation: int
    segment: int
    offset: int
    length: int
    first: int
    count: int  # type: ignore[assignment]
    created_ms: int
    max_ts: int


class Slices(NamedTuple):
    refs: list[SliceRef]


class Pace(NamedTuple):
    """The partition's new pace, with the anchor that allows it."""

    partition: int
    generation: int
    pace: str
    anchor: Anchor | None
    log_start: int


class Move(NamedTuple):
    partition: int
    generation: int
    node: int
    leader_epoch: int


class Revoke(NamedTuple):
    partition: int
    generation: int


class FlushPartitions(NamedTuple):
    """Do not linger for what was handed out so far; `through` holds (partition, last ordinal) pairs."""

    through: list[tuple[int, int]]


class Stop(NamedTuple):
    """Send nothing new, return all leases within `deadline_ms` (a duration), and exit."""

    deadline_ms: int


class Ping(NamedTuple):
    """Carries only the envelope's acknowledgement."""


class ShardHello(NamedTuple):
    """Sent with `journal` "" before WELCOME, then with the journal's file name once that is created and locked."""

    shard_id: int
    pid: int
    journal: str
    settings_digest: str


class Credit(NamedTuple):
    """Running total, since HELLO, of payload bytes the shard accepts references to, for one node."""

    node: int
    total_bytes: int


class DoneBatch(NamedTuple):
    """Success of a batch under acks=all; covers all older batches of the partition. -1 where a value is not known."""

    partition: int
    generation: int
    first: int
    count: int  # type: ignore[assignment]
    base_offset: int
    time_ms: int
    log_append_ms: int
    log_start: int
    leader_epoch: int
    attempts: int


class BatchesDone(NamedTuple):
    items: list[DoneBatch]


class RecordError(NamedTuple):
    """One record that made a broker refuse its batch: its index in the batch, and the broker's message."""

    place: int
    text: str


class BatchRefused(NamedTuple):
    """The broker refused the oldest unresolved batch. `code` is Kafka's error code; `record_errors` name the records at
    fault; `ambiguous`: an earlier attempt of the same cut ended without a known outcome."""

    partition: int
    generation: int
    first: int
    count: int  # type: ignore[assignment]
    code: int
    message: str
    record_errors: Sequence[tuple[int, str]]
    """`RecordError`s, once decoded."""
    ambiguous: bool


class NewLeaderHint(NamedTuple):
    """A newer leader, from a response (KIP-951). `leader` -1: only that the metadata is stale."""

    partition: int
    generation: int
    leader: int
    leader_epoch: int


class Revoked(NamedTuple):
    """The lease is returned. `cuts`: all batches that may have been sent and are unresolved, oldest first."""

    partition: int
    generation: int
    cuts: list[BatchBounds]


class ProbeRefused(NamedTuple):
    """The broker refused a whole backward probe."""

    partition: int
    generation: int
    leader_epoch: int
    error: str


class PartitionHalted(NamedTuple):
    """The partition cannot continue and waits. `code`: Kafka's error code, or -1."""

    partition: int
    generation: int
    code: int
    message: str


class NodeLoad(NamedTuple):
    """State of one broker connection. `state`: name of a `ConnectionState`, in lower case. `send_blocked_ms`: how long
    something has been ready for the node without being sent; 0: records go out as they arrive, or there are none."""

    node: int
    state: str
    in_flight: int
    queued_batches: int
    round_trip_us: int
    throttle_ms: int
    last_error: str
    send_blocked_ms: int


class PartitionLoad(NamedTuple):
    partition: int
    queued_batches: int
    open_batch_has_room: bool
    mode: str
    attempts: int
    last_error: str


class ShardLoad(NamedTuple):
    """Input for adaptive partitioning, `/stats` and metrics, sent at most once a second; nothing depends on its
    arrival. `counters` are running totals by name since the shard's start."""

    nodes: list[NodeLoad]
    partitions: list[PartitionLoad]
    counters: dict[str, int]


class SliceUnreadable(NamedTuple):
    """A slice that could not be read, or has a wrong checksum. The partition stops there."""

    partition: int
    generation: int
    segment: int
    offset: int
    first: int
    count: int  # type: ignore[assignment]
    what: str


class ShardFailed(NamedTuple):
    """Last message before the shard exits."""

    what: str


RouterMessage = ShardWelcome | Nodes | Grant | Slices | Pace | Move | Revoke | FlushPartitions | Stop | Ping
ShardMessage = (
    ShardHello
    | Credit
    | BatchesDone
    | BatchRefused
    | NewLeaderHint
    | Revoked
    | ProbeRefused
    | PartitionHalted
    | ShardLoad
    | SliceUnreadable
    | ShardFailed
    | Ping
)

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
