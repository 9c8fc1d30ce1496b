"""Modes of a partition in its shard, as a table, and what a pace allows. Rules HO-5 to HO-7 and PRB-6 are in
`docs/design/shard.md`."""

from enum import Enum
from typing import Final, NamedTuple

from ...wire.messages import Anchor
from ..protocol.backoff import Backoff

IMPLICIT: Final = 2
"""The version of transactions from which on a partition joins one with its first batch, under an epoch of the transaction's own."""

WINDOW: Final = 5
"""A broker remembers five batches of a producer id: more may not be unresolved (HO-5)."""


class Mode(Enum):
    """What may be sent of a partition. Values are the words of LOAD."""

    RUNNING = "running"
    CAREFUL = "careful"
    PROBING = "probing"
    WAITING = "waiting"
    GONE = "gone"


NEXT: Final[dict[Mode, frozenset[Mode]]] = {
    # New batches, as many as the pace allows.
    Mode.RUNNING: frozenset({Mode.CAREFUL, Mode.PROBING, Mode.WAITING, Mode.GONE}),
    # One in flight: the oldest unresolved batch, or a new one where there is none.
    Mode.CAREFUL: frozenset({Mode.RUNNING, Mode.PROBING, Mode.WAITING, Mode.GONE}),
    # One in flight: the trials of a backward probe.
    Mode.PROBING: frozenset({Mode.CAREFUL, Mode.WAITING, Mode.GONE}),
    # Nothing: the router has been told why and decides.
    Mode.WAITING: frozenset({Mode.CAREFUL, Mode.GONE}),
    # The lease went back.
    Mode.GONE: frozenset(),
}


class Question(Enum):
    """What a leader is asked; `producer/sender/leader_checks.py` says when."""

    START = "log start"
    END = "epoch end"
    LENGTH = "log end"
    TOPIC = "topic id"


class Limits(NamedTuple):
    """Bounds of a lease, and what it may leave to who granted it. `expiration_ms` is the broker's `producer.id.expiration.ms`."""

    backoff: Backoff
    expiration_ms: int
    unknown_error_attempts: int = 10
    idle_check_s: float = 600.0
    retries: int = (1 << 31) - 1
    """How often a batch without a stamp is sent again."""
    confirms_gaps: bool = False
    """Whoever is told of a gap has it confirmed: one may be told where nothing was acknowledged yet."""
    transactions: int = 0
    """The version of transactions that batches belong to, 0: none. In one a gap or a doubt is not looked into: who is told ends
    the transaction."""


class Here(NamedTuple):
    """Where a batch went: an answer proves something only for this connection and leader epoch (HO-7)."""

    node: int
    incarnation: int
    leader_epoch: int


NOWHERE: Final = Here(-1, 0, -1)


class WallClock:
    """Wall time as the shell last told it: record timestamps are compared with nothing else."""

    def __init__(self) -> None:
        self._offset_ms = 0.0

    def tell(self, wall_ms: int, *, now: float) -> None:
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
