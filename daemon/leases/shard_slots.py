"""The shard slots: which shards are connected, which are expected back, and whose nodes go to others."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ShardSlotState(Enum):
    """State of a shard process, as the router sees it."""

    AWAITED = "awaited"
    """Not connected but expected back: its nodes wait for it."""
    CONNECTED = "connected"
    """Sent HELLO but has not named its journal yet, so it is granted nothing."""
    READY = "ready"
    DYING = "dying"
    """Being killed. The state ends only when the process is reaped."""
    ABSENT = "absent"
    """Did not reconnect in time: its nodes are assigned to other shards."""


SHARD_SLOT_TRANSITIONS: Final[dict[ShardSlotState, frozenset[ShardSlotState]]] = {
    ShardSlotState.AWAITED: frozenset({ShardSlotState.CONNECTED, ShardSlotState.ABSENT}),
    ShardSlotState.CONNECTED: frozenset({ShardSlotState.READY, ShardSlotState.DYING}),
    ShardSlotState.READY: frozenset({ShardSlotState.DYING}),
    ShardSlotState.DYING: frozenset({ShardSlotState.AWAITED}),
    ShardSlotState.ABSENT: frozenset({ShardSlotState.CONNECTED}),
}


@dataclass(slots=True, eq=False)
class ShardSlot:
    """One shard slot. `until`: when an awaited shard counts as absent (CLOCK_MONOTONIC seconds)."""

    number: int
    state: ShardSlotState
    until: float

    def move(self, state: ShardSlotState) -> None:
        assert state in SHARD_SLOT_TRANSITIONS[self.state], (self.number, self.state, state)
        self.state = state


class ShardSlots:
    """All shard slots. At the start each is awaited, so that the first shard to connect does not get every node."""

    def __init__(self, count: int, return_s: float, now: float) -> None:
        self._return_s = return_s
        self._slots = {number: ShardSlot(number, ShardSlotState.AWAITED, now + return_s) for number in range(count)}

    def state(self, number: int) -> ShardSlotState:
        return self._slots[number].state

    def is_ready(self, number: int) -> bool:
        return self._slots[number].state is ShardSlotState.READY

    def present(self) -> list[int]:
        """The slots that nodes are assigned to."""
        return [seat.number for seat in self._slots.values() if seat.state is not ShardSlotState.ABSENT]

    def ready(self) -> list[int]:
        return [seat.number for seat in self._slots.values() if seat.state is ShardSlotState.READY]

    def mark_connected(self, number: int) -> bool:
        """Returns whether the slot was absent, so that nodes must be reassigned."""
        seat = self._slots[number]
        was_absent = seat.state is ShardSlotState.ABSENT
        seat.move(ShardSlotState.CONNECTED)
        return was_absent

    def mark_ready(self, number: int) -> None:
        self._slots[number].move(ShardSlotState.READY)

    def mark_dying(self, number: int) -> bool:
        """The shard is being killed. Returns False if that was known, or if no shard is connected."""
        seat = self._slots[number]
        if seat.state not in {ShardSlotState.CONNECTED, ShardSlotState.READY}:
            return False
        seat.move(ShardSlotState.DYING)
        return True

    def mark_reaped(self, number: int, now: float) -> None:
        seat = self._slots[number]
        _ = self.mark_dying(number)
        seat.move(ShardSlotState.AWAITED)
        seat.until = now + self._return_s

    def expire(self, now: float) -> bool:
        """Mark slots as absent whose shards are overdue. Returns whether there were any."""
        late = [seat for seat in self._slots.values() if seat.state is ShardSlotState.AWAITED and now >= seat.until]
        for seat in late:
            seat.move(ShardSlotState.ABSENT)
        return bool(late)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return min((seat.until for seat in self._slots.values() if seat.state is ShardSlotState.AWAITED), default=None)
