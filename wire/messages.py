"""What router and shards say to each other over ZeroMQ. References travel, never payload.

Every message is one msgpack array: the envelope (protocol version, router start number, shard start number, hop sequence,
hop acknowledgement, type), then the fields of its NamedTuple below, in order. Hop sequences run from 0 without gaps in each
direction of each pair; the acknowledgement is the highest sequence of the other side that was *processed* (-1: none), and for
DONE and REVOKED that means: the router's own entry is written to the spool. A shard's first HELLO has router start number 0.
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
    """A batch that may have been sent and is not resolved."""

    first: int
    count: int  # type: ignore[assignment]
    epoch: int


class StampRow(NamedTuple):
    """A stamp row: from ordinal `start` on, base sequence = (first ordinal - base) mod 2^31 under this id and epoch. Where two
    rows of one id and epoch follow each other there is a hole right before the later one (`holes_between`)."""

    producer_id: int
    epoch: int
    start: int
    base: int


def holes_between(rows: list[StampRow]) -> list[tuple[int, int]]:
    """Ordinals [first, end) that are never sent, ascending: a later base stands higher by as many as are left out, so that
    sequences go on without a gap. A hole may begin and end inside a slice."""
    found: list[tuple[int, int]] = []
    for before, after in pairwise(rows):
        left_out = after.base - before.base
        if (before.producer_id, before.epoch) == (after.producer_id, after.epoch) and left_out > 0:
            found.append((after.start - left_out, after.start))
    return found


class Anchor(NamedTuple):
    """The last acknowledged batch under the producer id in force. `time_ms` is its largest record timestamp (or log-append
    time), `acked_wall_ms` the wall time of its acknowledgement, both ms since 1970."""

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


# --- router to shard -------------------------------------------------------------------------------------------------


class ShardWelcome(NamedTuple):
    """Answers HELLO. The shard opens a pidfd of the router and creates its journal before anything else."""

    router_pid: int
    shard_id: int
    settings_digest: str
    spool_id: str
    producer_id_expiration_ms: int


class Nodes(NamedTuple):
    """The nodes this shard serves; connections to others are closed."""

    nodes: list[Node]


class Grant(NamedTuple):
    """A lease. `cuts` are inherited, oldest first; SLICE references follow from `next_ordinal` (= first cut's first, or
    the ack mark) on. `log_start` -1: not known. `expiration_ms`: how long brokers remember a producer, as known by now; 0: as
    told in WELCOME. `id_rows`: the incarnations of its ordinals, those to come included, ascending; constant, as a new
    incarnation is only made before anything is granted."""

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
    """Where a slice lies. `created_ms` is the router's CLOCK_MONOTONIC when the frame was taken."""

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
    """With the anchor that allows it."""

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
    """No linger for what was handed out up to now; (partition, through ordinal) pairs."""

    through: list[tuple[int, int]]


class Stop(NamedTuple):
    """Send nothing new, give everything back within `deadline_ms` (a duration), exit."""

    deadline_ms: int


class Ping(NamedTuple):
    """Carries only the envelope's acknowledgement."""


# --- shard to router -------------------------------------------------------------------------------------------------


class ShardHello(NamedTuple):
    """First with `journal` "" (before WELCOME), again with the journal's file name once it is created and locked."""

    shard_id: int
    pid: int
    journal: str
    settings_digest: str


class Credit(NamedTuple):
    """Running total of payload bytes the shard will accept references to, for one node, since its HELLO."""

    node: int
    total_bytes: int


class DoneBatch(NamedTuple):
    """acks=all success; covers everything older of the partition. -1 where not known."""

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
    """One record that made a broker refuse its batch: the index in the batch, and the broker's words."""

    place: int
    text: str


class BatchRefused(NamedTuple):
    """The oldest unresolved batch was refused. `code` is Kafka's error code; `record_errors` name the records at fault;
    `ambiguous`: an earlier attempt of the same cut ended without a verdict."""

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
    """A newer leader, from an answer (KIP-951). `leader` -1: only that metadata is stale."""

    partition: int
    generation: int
    leader: int
    leader_epoch: int


class Revoked(NamedTuple):
    """Lease returned. `cuts`: all that may have been sent and is unresolved, oldest first."""

    partition: int
    generation: int
    cuts: list[BatchBounds]


class ProbeRefused(NamedTuple):
    """A whole backward probe was refused."""

    partition: int
    generation: int
    leader_epoch: int
    error: str


class PartitionHalted(NamedTuple):
    """Cannot go on; waits. `code` Kafka's error code or -1."""

    partition: int
    generation: int
    code: int
    message: str


class NodeLoad(NamedTuple):
    """State of one connection. `state` is a word of `producer.core.connections`; `send_blocked_ms`: for how long something has
    been ready for the node and could not be sent; 0: it goes out when it comes, or there is nothing."""

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
    """For adaptive partitioning, `/stats` and metrics; at most once a second; carries no duty. `counters` are running totals
    by name since the shard's start."""

    nodes: list[NodeLoad]
    partitions: list[PartitionLoad]
    counters: dict[str, int]


class SliceUnreadable(NamedTuple):
    """Read error or wrong checksum of a slice; the partition stops there."""

    partition: int
    generation: int
    segment: int
    offset: int
    first: int
    count: int  # type: ignore[assignment]
    what: str


class ShardFailed(NamedTuple):
    """Last message before exit."""

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
"""What a shard says is checked field by field: whatever it is made to say, it must not take the router with it."""


class Envelope(NamedTuple):
    """The hop's own numbers."""

    router_start: int
    shard_start: int
    seq: int
    ack: int


def encode(envelope: Envelope, message: RouterMessage | ShardMessage) -> bytes:
    """One message as bytes for one ZeroMQ frame."""
    packed = msgpack.packb((VERSION, *envelope, _NUMBERS[type(message)], *message), use_bin_type=True)
    return cast("bytes", packed)


def decode(data: bytes | memoryview) -> tuple[Envelope, RouterMessage | ShardMessage]:
    """The envelope and the message.

    Raises:
        FrameError: not a message of this version, too large, or of a wrong shape.
    """
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
