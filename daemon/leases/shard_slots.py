"""The seats of the shard processes: who is here, who is expected back, whose nodes others take over."""

from dataclasses import dataclass

from .states import NEXT_SEAT, SeatState


@dataclass(slots=True, eq=False)
class Seat:
    """`until`: when an awaited shard counts as absent (CLOCK_MONOTONIC seconds)."""

    number: int
    state: SeatState
    until: float

    def move(self, state: SeatState) -> None:
        assert state in NEXT_SEAT[self.state], (self.number, self.state, state)
        self.state = state


class Seats:
    """All of them. At the start each is awaited, so that the first shard to come is not dealt everything."""

    def __init__(self, count: int, return_s: float, now: float) -> None:
        self._return_s = return_s
        self._seats = {number: Seat(number, SeatState.AWAITED, now + return_s) for number in range(count)}

    def state(self, number: int) -> SeatState:
        return self._seats[number].state

    def is_ready(self, number: int) -> bool:
        return self._seats[number].state is SeatState.READY

    def present(self) -> list[int]:
        """Seats that nodes are dealt to."""
        return [seat.number for seat in self._seats.values() if seat.state is not SeatState.ABSENT]

    def ready(self) -> list[int]:
        return [seat.number for seat in self._seats.values() if seat.state is SeatState.READY]

    def greeted(self, number: int) -> bool:
        """Returns whether the seat was absent, so that nodes are to be dealt anew."""
        seat = self._seats[number]
        was_absent = seat.state is SeatState.ABSENT
        seat.move(SeatState.GREETED)
        return was_absent

    def named_journal(self, number: int) -> None:
        self._seats[number].move(SeatState.READY)

    def failing(self, number: int) -> bool:
        """It is being killed. Returns False when that was known, or nobody is there."""
        seat = self._seats[number]
        if seat.state not in {SeatState.GREETED, SeatState.READY}:
            return False
        seat.move(SeatState.DYING)
        return True

    def reaped(self, number: int, now: float) -> None:
        seat = self._seats[number]
        _ = self.failing(number)
        seat.move(SeatState.AWAITED)
        seat.until = now + self._return_s

    def expire(self, now: float) -> bool:
        """Those awaited for too long are absent. Returns whether there was one."""
        late = [seat for seat in self._seats.values() if seat.state is SeatState.AWAITED and now >= seat.until]
        for seat in late:
            seat.move(SeatState.ABSENT)
        return bool(late)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return min((seat.until for seat in self._seats.values() if seat.state is SeatState.AWAITED), default=None)
