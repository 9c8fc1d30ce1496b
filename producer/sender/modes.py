"""The modes of a partition, as a transition table, and limits of the sender. Rules HO-5 to HO-7 and PRB-6 are in
`docs/design/shard.md`."""

from enum import Enum
from typing import Final, NamedTuple

from ...wire.messages import Anchor
from ..protocol.backoff import Backoff

TRANSACTION_VERSION_2: Final = 2
"""From this transaction version on, a partition joins a transaction with its first batch, and each transaction has its
own epoch."""

UNRESOLVED_BATCHES_MAX: Final = 5
"""A broker remembers the last five batches of a producer id, so no more may be unresolved (HO-5)."""


class SendMode(Enum):
    """What may be sent of a partition. The values appear in `PartitionLoad`."""

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
    # Nothing: the reason was reported to the router, which decides.
    SendMode.HELD: frozenset({SendMode.ONE_IN_FLIGHT, SendMode.REVOKED}),
    # Nothing: the lease was returned.
    SendMode.REVOKED: frozenset(),
}


class LeaderCheck(Enum):
    """Checks of a leader; `producer/sender/leader_checks.py` explains when each is needed."""

    LOG_START = "log start"
    EPOCH_END = "epoch end"
    LOG_END = "log end"
    TOPIC_ID = "topic id"


class SendLimits(NamedTuple):
    """Limits of a lease, and what its grantor handles. `expiration_ms` is the broker's `producer.id.expiration.ms`."""

    backoff: Backoff
    expiration_ms: int
    unknown_error_attempts: int = 10
    idle_check_s: float = 600.0
    retries: int = (1 << 31) - 1
    """How often a batch without a stamp is sent again."""
    confirms_gaps: bool = False
    """The grantor confirms gaps, so the lease may report one even before anything was acknowledged."""
    transaction_version: int = 0
    """Transaction version of the batches, 0: no transaction. In a transaction gaps and doubts are not investigated: the
    grantor ends the transaction when they are reported."""


class LeaderConnection(NamedTuple):
    """A connection to a leader: a response proves something only for this connection and leader epoch (HO-7)."""

    node: int
    incarnation: int
    leader_epoch: int


NO_LEADER_CONNECTION: Final = LeaderConnection(-1, 0, -1)


class WallClock:
    """Wall time from the shell's last `set_time`. Record timestamps must be compared only with this clock."""

    def __init__(self) -> None:
        self._offset_ms = 0.0

    def set_time(self, wall_ms: int, *, now: float) -> None:
        """Set the wall time at `now` to `wall_ms`, ms since 1970."""
        self._offset_ms = wall_ms - now * 1000

    def ms(self, now: float) -> int:
        """The wall time at `now`, ms since 1970."""
        return int(self._offset_ms + now * 1000)


def is_old(time_ms: int, wall_ms: int, expiration_ms: int) -> bool:
    """Whether a broker may have expired a producer whose last batch has this time. Half the limit is the margin."""
    return wall_ms - time_ms >= expiration_ms // 2


def is_anchored(
    anchor: Anchor | None, log_start: int, times_ms: list[int], *, wall_ms: int, expiration_ms: int
) -> bool:
    """Whether every leader that has the acknowledged batches also has state for our producer id.

    `log_start` is that of the response in question, `times_ms` the times of all unresolved batches.
    """
    if anchor is None or not 0 <= log_start <= anchor.base_offset:
        return False
    return not any(is_old(time, wall_ms, expiration_ms) for time in (anchor.acked_wall_ms, anchor.time_ms, *times_ms))
