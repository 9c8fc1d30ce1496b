"""The phases of the router's life, as one table, and when each is over.

A stop drains first: shards may finish what they were handed, for at most `drain_ms`. Then every lease is called back, so that
the next start knows all cuts for certain, and the clean mark says so. What is not delivered stays in the spool.
"""

from enum import Enum
from typing import Final


class RouterPhase(Enum):
    """Where the router is."""

    RECOVERING = "recovering"
    """The spool is read, journals of dead shards too; nobody is served."""
    RUNNING = "running"
    DRAINING = "draining"
    """No new frames; what there is goes out."""
    REVOKING = "revoking"
    """Every lease is called back; shards are told to stop."""
    ENDED = "ended"


PHASE_TRANSITIONS: Final[dict[RouterPhase, frozenset[RouterPhase]]] = {
    RouterPhase.RECOVERING: frozenset({RouterPhase.RUNNING}),
    RouterPhase.RUNNING: frozenset({RouterPhase.DRAINING}),
    RouterPhase.DRAINING: frozenset({RouterPhase.REVOKING}),
    RouterPhase.REVOKING: frozenset({RouterPhase.ENDED}),
    RouterPhase.ENDED: frozenset(),
}

REVOKE_S: Final = 3.0
"""Shards answer a call-back at once, whatever brokers do; one that does not is left to end with the router."""


class Lifecycle:
    """`drain_s` from the settings. `now` is CLOCK_MONOTONIC seconds."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._until: float | None = None
        self.phase = RouterPhase.RECOVERING

    def move(self, phase: RouterPhase) -> None:
        assert phase in PHASE_TRANSITIONS[self.phase], f"{self.phase} does not lead to {phase}"
        self.phase = phase

    def set_drain_timeout(self, drain_s: float) -> None:
        """Another limit, for the next stop."""
        self._drain_s = drain_s

    def recovered(self) -> None:
        self.move(RouterPhase.RUNNING)

    def stop(self, *, now: float, drain: bool) -> bool:
        """A stop was asked for. False when one is under way already; then an impatient one ends the drain."""
        if self.phase is RouterPhase.RUNNING:
            self.move(RouterPhase.DRAINING)
            self._until = now + (self._drain_s if drain else 0.0)
            return True
        if self.phase is RouterPhase.DRAINING and not drain:
            self._until = now
        return False

    def step(self, *, now: float, pending: int, held: int) -> RouterPhase:
        """Look at what is left (records; shards and what they hold) and go on to the next phase where that is due."""
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
        """Whether the time of the phase is used up."""
        return self._until is not None and now >= self._until
