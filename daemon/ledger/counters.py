"""The router's counters of records, frames and sessions. Every record is in exactly one term of this equation:

received = refused + pending + delivered + parked + expired + quarantined. The ledger counts pending, independently of
the counters here, so that the equation is a real check. The router's own audit records are counted separately.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

ACK_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of the ack latency histogram. One more bucket takes the rest."""


@dataclass(slots=True)
class AckLatency:
    """Histogram of the time from a frame's arrival to its ack, for one ack level."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(ACK_BUCKETS_MS) + 1))
    sum_ms: int = 0
    count: int = 0

    def add(self, waited_ms: int) -> None:
        self.buckets[bisect_left(ACK_BUCKETS_MS, waited_ms)] += 1
        self.sum_ms += waited_ms
        self.count += 1


@dataclass(slots=True)
class RouterCounters:
    """Totals since the router's start. `recovered`: records found unresolved in the spool at start."""

    recovered: int = 0
    accepted: int = 0
    accepted_frames: int = 0
    accepted_bytes: int = 0
    resent: int = 0
    delivered: int = 0
    parked: int = 0
    expired: int = 0
    quarantined: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    refused_frames: Counter[str] = field(default_factory=Counter[str])
    acks: list[int] = field(default_factory=lambda: [0, 0, 0])
    ack_latency: tuple[AckLatency, AckLatency, AckLatency] = field(
        default_factory=lambda: (AckLatency(), AckLatency(), AckLatency())
    )
    single_replica_acks: int = 0
    sessions_opened: int = 0
    sessions_refused: Counter[str] = field(default_factory=Counter[str])
    sessions_ended: Counter[str] = field(default_factory=Counter[str])
    own_recovered: int = 0
    own_accepted: int = 0
    own_delivered: int = 0
    own_parked: int = 0

    @property
    def received(self) -> int:
        """Records read from clients, or found unresolved in the spool at start."""
        return self.recovered + self.accepted + sum(self.refused.values())

    @property
    def own_pending(self) -> int:
        """The router's own records that are not delivered or parked yet."""
        return self.own_recovered + self.own_accepted - self.own_delivered - self.own_parked

    @property
    def completed(self) -> int:
        """Records that are completed, without refused ones."""
        return self.delivered + self.parked + self.expired + self.quarantined
