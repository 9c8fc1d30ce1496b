"""Modes of a partition in its shard, as a table, and what a pace allows. Rules HO-5 to HO-7 and PRB-6 are in
`docs/design/shard.md`."""

from enum import Enum
from typing import Final, NamedTuple

from ...wire.messages import Anchor
from ..protocol.backoff import Backoff

TRANSACTION_VERSION_2: Final = 2
"""The version of transactions from which on a partition joins one with its first batch, under an epoch of the transaction's own."""

UNRESOLVED_BATCHES_MAX: Final = 5
"""A broker remembers five batches of a producer id: more may not be unresolved (HO-5)."""


class SendMode(Enum):
    """What may be sent of a partition. Values are the words of LOAD."""

    RUNNING = "running"
    ONE_IN_FLIGHT = "careful"
    PROBING = "probing"
    HELD = "waiting"
    REVOKED = "gone"


MODE_TRANSITIONS: Final[dict[SendMode, frozenset[SendMode]]] = {
    # New batches, as many as the pace allows.
    SendMode.RUNNING: frozenset({SendMode.ONE_IN_FLIGHT, SendMode.PROBING, SendMode.HELD, SendMode.REVOKED}),
    # One in flight: the oldest unresolved batch, or a new one where there is none.
    SendMode.ONE_IN_FLIGHT: frozenset({SendMode.RUNNING, SendMode.PROBING, SendMode.HELD, SendMode.REVOKED}),
    # One in flight: the trials of a backward probe.
    SendMode.PROBING: frozenset({SendMode.ONE_IN_FLIGHT, SendMode.HELD, SendMode.REVOKED}),
    # Nothing: the router has been told why and decides.
    SendMode.HELD: frozenset({SendMode.ONE_IN_FLIGHT, SendMode.REVOKED}),
    # The lease went back.
    SendMode.REVOKED: frozenset(),
}


class LeaderCheck(Enum):
    """What a leader is asked; `producer/sender/leader_checks.py` says when."""

    LOG_START = "log start"
    EPOCH_END = "epoch end"
    LOG_END = "log end"
    TOPIC_ID = "topic id"


class SendLimits(NamedTuple):
    """Bounds of a lease, and what it may leave to who granted it. `expiration_ms` is the broker's `producer.id.expiration.ms`."""

    backoff: Backoff
    expiration_ms: int
    unknown_error_attempts: int = 10
    idle_check_s: float = 600.0
    retries: int = (1 << 31) - 1
    """How often a batch without a stamp is sent again."""
    confirms_gaps: bool = False
    """Whoever is told of a gap has it confirmed: one may be told where nothing was acknowledged yet."""
    transaction_version: int = 0
    """The version of transactions that batches belong to, 0: none. In one a gap or a doubt is not looked into: who is told ends
    the transaction."""


class LeaderConnection(NamedTuple):
    """Where a batch went: an answer proves something only for this connection and leader epoch (HO-7)."""

    node: int
    incarnation: int
    leader_epoch: int


NO_LEADER_CONNECTION: Final = LeaderConnection(-1, 0, -1)


class WallClock:
    """Wall time as the shell last told it: record timestamps are compared with nothing else."""

    def __init__(self) -> None:
        self._offset_ms = 0.0

    def set_time(self, wall_ms: int, *, now: float) -> None:
        """It is `wall_ms` (ms since 1970) at `now`."""
        self._offset_ms = wall_ms - now * 1000

    def ms(self, now: float) -> int:
        """Milliseconds since 1970."""
        return int(self._offset_ms + now * 1000)


def is_old(time_ms: int, wall_ms: int, expiration_ms: int) -> bool:
    """A broker may have forgotten a producer whose last batch has this time: half the limit, to be safe."""
    return wall_ms - time_ms >= expiration_ms // 2


def is_anchored(
    anchor: Anchor | None, log_start: int, times_ms: list[int], *, wall_ms: int, expiration_ms: int
) -> bool:
    """Every leader that has what was acknowledged has state for our producer id.

    `log_start` is that of the answer in question, `times_ms` the times of all unresolved batches.
    """
    if anchor is None or not 0 <= log_start <= anchor.base_offset:
        return False
    return not any(is_old(time, wall_ms, expiration_ms) for time in (anchor.acked_wall_ms, anchor.time_ms, *times_ms))
