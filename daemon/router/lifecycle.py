"""The phases of the router, as one table, and the deadline of each.

A shutdown drains first: shards may finish their slices, for at most `drain_ms`. Then every lease is revoked, so the
next start knows all batch bounds for certain, as the clean mark records. Undelivered records stay in the spool.
"""

from enum import Enum
from typing import Final


class RouterPhase(Enum):
    """Phase of the router."""

    RECOVERING = "recovering"
    """The spool and the journals of dead shards are read; no client is served."""
    RUNNING = "running"
    DRAINING = "draining"
    """No new frames are accepted; pending records are delivered."""
    REVOKING = "revoking"
    """Every lease is revoked; shards are stopped."""
    ENDED = "ended"


PHASE_TRANSITIONS: Final[dict[RouterPhase, frozenset[RouterPhase]]] = {
    RouterPhase.RECOVERING: frozenset({RouterPhase.RUNNING}),
    RouterPhase.RUNNING: frozenset({RouterPhase.DRAINING}),
    RouterPhase.DRAINING: frozenset({RouterPhase.REVOKING}),
    RouterPhase.REVOKING: frozenset({RouterPhase.ENDED}),
    RouterPhase.ENDED: frozenset(),
}

REVOKE_S: Final = 3.0
"""Shards answer a REVOKE at once, whatever brokers do. A shard that does not answer ends with the router."""


class Lifecycle:
    """Moves the router through its phases. `drain_s` comes from the settings. `now` is CLOCK_MONOTONIC seconds."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._until: float | None = None
        self.phase = RouterPhase.RECOVERING

    def move(self, phase: RouterPhase) -> None:
        assert phase in PHASE_TRANSITIONS[self.phase], f"{self.phase} does not lead to {phase}"
        self.phase = phase

    def set_drain_timeout(self, drain_s: float) -> None:
        """Apply another drain limit, for the next shutdown."""
        self._drain_s = drain_s

    def recovered(self) -> None:
        self.move(RouterPhase.RUNNING)

    def stop(self, *, now: float, drain: bool) -> bool:
        """Start a shutdown. Returns False when one is already running; then `drain=False` ends its drain."""
        if self.phase is RouterPhase.RUNNING:
            self.move(RouterPhase.DRAINING)
            self._until = now + (self._drain_s if drain else 0.0)
            return True
        if self.phase is RouterPhase.DRAINING and not drain:
            self._until = now
        return False

    def step(self, *, now: float, pending: int, held: int) -> RouterPhase:
        """Check what is left (`pending` records; `held` shards and leases) and move to the next phase when due."""
        if self.phase is RouterPhase.DRAINING and (pending == 0 or self.is_over(now)):
            self.move(RouterPhase.REVOKING)
            self._until = now + REVOKE_S
        elif self.phase is RouterPhase.REVOKING and (held == 0 or self.is_over(now)):
            self.move(RouterPhase.ENDED)
            self._until = None
        return self.phase

    def next_deadline(self) -> float | None:
        return self._until

    def is_over(self, now: float) -> bool:
        """Whether the phase has reached its deadline."""
        return self._until is not None and now >= self._until
