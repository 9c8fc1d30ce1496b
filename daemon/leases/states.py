"""The states of a lease and of a seat, each as one table, and why a lease is called back.

A lease is one partition's right to be sent; a seat is the place of a shard process. The diagrams in the docs follow `LEASE_TRANSITIONS`
and `SHARD_SLOT_TRANSITIONS`.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from ...wire.messages import BatchRefused


class LeaseState(Enum):
    """Where a partition's lease is."""

    UNASSIGNED = "unassigned"
    """Nobody holds it; granted as soon as the conditions of LSE-2 hold."""
    HELD = "held"
    REVOKING = "revoking"
    """REVOKE was sent, REVOKED has not come."""
    FENCING = "fencing"
    """Its holder is being killed, or is dead and its journal not read yet."""
    SETTLING = "settling"
    """Back, and what it was called back for is being written: dead letters, or stamp rows under another producer id."""
    BLOCKED = "blocked"
    """Kept as it is, with an alarm, until a retry time, changed metadata or an operator."""


LEASE_TRANSITIONS: Final[dict[LeaseState, frozenset[LeaseState]]] = {
    LeaseState.UNASSIGNED: frozenset({LeaseState.HELD, LeaseState.SETTLING, LeaseState.BLOCKED}),
    LeaseState.HELD: frozenset({LeaseState.REVOKING, LeaseState.FENCING}),
    LeaseState.REVOKING: frozenset(
        {LeaseState.UNASSIGNED, LeaseState.SETTLING, LeaseState.BLOCKED, LeaseState.FENCING}
    ),
    LeaseState.FENCING: frozenset({LeaseState.UNASSIGNED, LeaseState.SETTLING, LeaseState.BLOCKED}),
    LeaseState.SETTLING: frozenset({LeaseState.UNASSIGNED}),
    LeaseState.BLOCKED: frozenset({LeaseState.UNASSIGNED, LeaseState.SETTLING}),
}

POSSIBLY_HELD: Final = frozenset({LeaseState.HELD, LeaseState.REVOKING, LeaseState.FENCING})
"""A shard may have the lease in these states: no other may be granted it (HO-4)."""


class ShardSlotState(Enum):
    """Where a shard process is, as the router sees it."""

    AWAITED = "awaited"
    """Not here, expected back: its nodes wait for it."""
    CONNECTED = "connected"
    """Said HELLO; its journal is not named yet, so it is granted nothing."""
    READY = "ready"
    DYING = "dying"
    """Being killed; over only when reaped."""
    ABSENT = "absent"
    """Did not come back in time: its nodes are dealt to others."""


SHARD_SLOT_TRANSITIONS: Final[dict[ShardSlotState, frozenset[ShardSlotState]]] = {
    ShardSlotState.AWAITED: frozenset({ShardSlotState.CONNECTED, ShardSlotState.ABSENT}),
    ShardSlotState.CONNECTED: frozenset({ShardSlotState.READY, ShardSlotState.DYING}),
    ShardSlotState.READY: frozenset({ShardSlotState.DYING}),
    ShardSlotState.DYING: frozenset({ShardSlotState.AWAITED}),
    ShardSlotState.ABSENT: frozenset({ShardSlotState.CONNECTED}),
}


class BlockReason(Enum):
    """Why a partition stands still. The words are what operators and metrics see."""

    REFUSED = "refused"
    """Kafka refuses, and an operator can lift it."""
    AMBIGUOUS = "refused_but_may_be_written"
    GAP = "gap"
    HALTED = "halted"
    EPOCH = "producer_epoch"
    """The broker knows more of our producer id than the spool does."""
    OFFSET = "offset_below_anchor"
    BATCH_BOUNDS_UNKNOWN = "batch_bounds_unknown"
    """A power cut or a lost journal took the batches' bounds, and the end of the log cannot be found."""
    UNREADABLE = "unreadable"


class Relocate(NamedTuple):
    """Another shard shall hold it, or its node is gone."""


class DeadLetterBatch(NamedTuple):
    """Records were refused for good. `may_be_written`: an earlier attempt may have written them, and nothing can settle it (ERR-2)."""

    refused: BatchRefused
    may_be_written: bool


class Block(NamedTuple):
    """Stand still. `retry`: try again after a backoff."""

    why: BlockReason
    text: str
    first: int
    end: int
    retry: bool

    @property
    def retry_on_new_leader(self) -> bool:
        """A newer leader is a reason to try again."""
        return self.retry or self.why is BlockReason.GAP


class ContinueLogEndSearch(NamedTuple):
    """Try the next place where its log may end."""


class ShutDown(NamedTuple):
    """The daemon stops."""


RevokeReason = Relocate | DeadLetterBatch | Block | ContinueLogEndSearch | ShutDown
"""What a lease is called back for."""


class SettlingStep(Enum):
    """What is being waited for in SETTLING."""

    DEAD_LETTER = auto()
    PRODUCER_ID = auto()
