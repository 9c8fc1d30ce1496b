"""States of a lease as one table, and the reasons to revoke one. `LeaseTable` makes the transitions.

A lease is the right to send one partition. The diagram in the docs follows `LEASE_TRANSITIONS`.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from ...wire.messages import BatchRefused


class LeaseState(Enum):
    """State of a partition's lease."""

    UNASSIGNED = "unassigned"
    """No shard holds it. It is granted as soon as the conditions of LSE-2 hold."""
    HELD = "held"
    REVOKING = "revoking"
    """REVOKE was sent; REVOKED has not arrived."""
    FENCING = "fencing"
    """Its holder is being killed, or is dead and its journal is not read yet."""
    SETTLING = "settling"
    """Returned, while the result is being written: dead letters, or stamp rows under another producer id."""
    BLOCKED = "blocked"
    """Unchanged, with an alarm, until a retry time, changed metadata or an operator."""


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
"""A shard may hold the lease in these states: no other shard may be granted it (HO-4)."""


class BlockReason(Enum):
    """Why a partition is blocked. Operators and metrics see the values."""

    REFUSED = "refused"
    """Kafka refuses the records, and an operator can fix the cause."""
    AMBIGUOUS = "refused_but_may_be_written"
    GAP = "gap"
    HALTED = "halted"
    EPOCH = "producer_epoch"
    """The broker has newer state for our producer id than the spool."""
    OFFSET = "offset_below_anchor"
    BATCH_BOUNDS_UNKNOWN = "batch_bounds_unknown"
    """A power cut or a lost journal destroyed the batch bounds, and the end of the log cannot be found."""
    UNREADABLE = "unreadable"


class Relocate(NamedTuple):
    """Another shard must hold the lease, or its node is gone."""


class DeadLetterBatch(NamedTuple):
    """Records were refused permanently. `may_be_written`: an earlier attempt may have written them, which nothing can
    decide (ERR-2)."""

    refused: BatchRefused
    may_be_written: bool


class Block(NamedTuple):
    """Block the partition. `retry`: retry after a backoff."""

    why: BlockReason
    text: str
    first: int
    end: int
    retry: bool

    @property
    def retry_on_new_leader(self) -> bool:
        """Whether a newer leader is a reason to retry."""
        return self.retry or self.why is BlockReason.GAP


class ContinueLogEndSearch(NamedTuple):
    """Try the next possible end of the partition's log."""


class ShutDown(NamedTuple):
    """The daemon is shutting down."""


RevokeReason = Relocate | DeadLetterBatch | Block | ContinueLogEndSearch | ShutDown
"""Why a lease is revoked."""


class SettlingStep(Enum):
    """The event that a lease in SETTLING waits for."""

    DEAD_LETTER = auto()
    PRODUCER_ID = auto()
