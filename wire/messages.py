"""The messages between the router and the shards. They carry references to slices, never payload.

`wire/message_codec.py` encodes them.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from .record_ids import IdRow

ITEMS_MAX: Final = 65_536
"""Most items in one list of a message."""

FIRST: Final = "first"
NARROW: Final = "narrow"
OPEN: Final = "open"


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
