"""Orderly shutdown: refuse new frames, deliver pending records, revoke leases, stop the shards, then the router."""

from collections.abc import Callable
from typing import Final

from ...runtime import logs
from ..leases.bus import Bus
from ..leases.ownership import Leases
from .lifecycle import Lifecycle, RouterPhase

_SHARD_STOP_MS: Final = 2_000


class RouterShutdown:
    """Moves the lifecycle through its phases once a shutdown has started."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        leases: Leases,
        bus: Bus,
        pending: Callable[[], int],
        tell_closing: Callable[[float], bool],
    ) -> None:
        """`pending`: number of client records left. `tell_closing`: called repeatedly once there are none; True while
        closing audit records are still to be delivered."""
        self._lifecycle = lifecycle
        self._leases = leases
        self._bus = bus
        self._pending = pending
        self._publish_closing = tell_closing
        self._stopping_pids: set[int] = set()

    def begin(self, now: float, *, drain: bool) -> bool:
        """Start a shutdown. Returns False when one is already running."""
        if not self._lifecycle.stop(now=now, drain=drain):
            return False
        logs.get().info("router_stopping", pending=self._pending())
        self._leases.flush_all()
        return True

    def step(self, now: float) -> bool:
        """Call it after every round. Returns True when the router may exit."""
        before = self._lifecycle.phase
        if before is RouterPhase.RUNNING:
            return False
        # Stopped shards exit once they know that the leases they returned are written.
        held = len(self._stopping_pids.intersection(self._bus.pids().values())) + (not self._leases.all_returned)
        pending = self._pending()
        if before is RouterPhase.DRAINING and not pending and not self._lifecycle.is_over(now):
            pending = int(self._publish_closing(now))
        phase = self._lifecycle.step(now=now, pending=pending, held=held)
        if phase is RouterPhase.REVOKING and before is not phase:
            self._stopping_pids = set(self._bus.pids().values())
            self._leases.stop(_SHARD_STOP_MS, now)
            self._bus.flush(self._leases.outbox, now)
        return phase is RouterPhase.ENDED
