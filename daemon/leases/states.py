"""The states of a lease and of a seat, each as one table, and why a lease is called back.

A lease is one partition's right to be sent; a seat is the place of a shard process. The diagrams in the docs follow `NEXT`
and `NEXT_SEAT`.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from ...wire.messages import Refused


class LeaseState(Enum):
    """Where a partition's lease is."""

    UNPLACED = "unplaced"
    """Nobody holds it; granted as soon as the conditions of LSE-2 hold."""
    HELD = "held"
    RECALLED = "recalled"
    """REVOKE was sent, REVOKED has not come."""
    DYING = "dying"
    """Its holder is being killed, or is dead and its journal not read yet."""
    SETTLING = "settling"
    """Back, and what it was called back for is being written: dead letters, or stamp rows under another producer id."""
    BLOCKED = "blocked"
    """Kept as it is, with an alarm, until a retry time, changed metadata or an operator."""


NEXT: Final[dict[LeaseState, frozenset[LeaseState]]] = {
    LeaseState.UNPLACED: frozenset({LeaseState.HELD, LeaseState.SETTLING, LeaseState.BLOCKED}),
    LeaseState.HELD: frozenset({LeaseState.RECALLED, LeaseState.DYING}),
    LeaseState.RECALLED: frozenset({LeaseState.UNPLACED, LeaseState.SETTLING, LeaseState.BLOCKED, LeaseState.DYING}),
    LeaseState.DYING: frozenset({LeaseState.UNPLACED, LeaseState.SETTLING, LeaseState.BLOCKED}),
    LeaseState.SETTLING: frozenset({LeaseState.UNPLACED}),
    LeaseState.BLOCKED: frozenset({LeaseState.UNPLACED, LeaseState.SETTLING}),
}

HOLDING: Final = frozenset({LeaseState.HELD, LeaseState.RECALLED, LeaseState.DYING})
"""A shard may have the lease in these states: no other may be granted it (HO-4)."""


class SeatState(Enum):
    """Where a shard process is, as the router sees it."""

    AWAITED = "awaited"
    """Not here, expected back: its nodes wait for it."""
    GREETED = "greeted"
    """Said HELLO; its journal is not named yet, so it is granted nothing."""
    READY = "ready"
    DYING = "dying"
    """Being killed; over only when reaped."""
    ABSENT = "absent"
    """Did not come back in time: its nodes are dealt to others."""


NEXT_SEAT: Final[dict[SeatState, frozenset[SeatState]]] = {
    SeatState.AWAITED: frozenset({SeatState.GREETED, SeatState.ABSENT}),
    SeatState.GREETED: frozenset({SeatState.READY, SeatState.DYING}),
    SeatState.READY: frozenset({SeatState.DYING}),
    SeatState.DYING: frozenset({SeatState.AWAITED}),
    SeatState.ABSENT: frozenset({SeatState.GREETED}),
}


class BlockedBy(Enum):
    """Why a partition stands still. The words are what operators and metrics see."""

    REFUSED = "refused"
    """Kafka refuses, and an operator can lift it."""
    AMBIGUOUS = "refused_but_may_be_written"
    GAP = "gap"
    HALTED = "halted"
    EPOCH = "producer_epoch"
    """The broker knows more of our producer id than the spool does."""
    OFFSET = "offset_below_anchor"
    CUTS_UNKNOWN = "cuts_unknown"
    """A power cut or a lost journal took the batches' bounds, and the end of the log cannot be found."""
    UNREADABLE = "unreadable"


class Relocate(NamedTuple):
    """Another shard shall hold it, or its node is gone."""


class Park(NamedTuple):
    """Records were refused for good. `unsure`: an earlier attempt may have written them, and nothing can settle it (ERR-2)."""

    refused: Refused
    unsure: bool


class Block(NamedTuple):
    """Stand still. `retry`: try again after a backoff."""

    why: BlockedBy
    text: str
    first: int
    end: int
    retry: bool

    @property
    def helped_by_leader(self) -> bool:
        """A newer leader is a reason to try again."""
        return self.retry or self.why is BlockedBy.GAP


class Locate(NamedTuple):
    """Try the next place where its log may end."""


class Stand(NamedTuple):
    """The daemon stops."""


Errand = Relocate | Park | Block | Locate | Stand
"""What a lease is called back for."""


class Step(Enum):
    """What is being waited for in SETTLING."""

    LETTER = auto()
    PRODUCER_ID = auto()
