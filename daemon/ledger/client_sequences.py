"""Accepted, refused and pending sequences of each durable client id. With them, resends are not accepted twice.

Anonymous clients have no state here. The state is restored from the FRAME entries (each contains the previously
accepted sequence, so a refused sequence shows as a gap) and from the SESSION entries of checkpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from ...wire.frames import Code, RefusedRecords
from .entries import FrameEntry, SessionEntry
from .slices import PendingFrame

NOTHING_TAKEN: Final = -1
KEPT_AFTER_START_MS: Final = 3_600_000
"""How long a client id is kept after a start, whatever its age by the wall clock: the clock may have jumped."""


class SequenceState(Enum):
    """State of a sequence that a client sends."""

    NEW = auto()
    """Never accepted."""
    PENDING = auto()
    """Accepted; its outcome or its ack is outstanding."""
    DELIVERED = auto()
    """Accepted and delivered; none of its slices is pending."""
    REFUSED_BEFORE = auto()
    """Refused on first arrival: none of its records was stored."""
    PARKED = auto()
    """Accepted and completed; some of its records are in dead letters."""
    GAP_LIMIT = auto()
    """Accepting it would exceed `gaps_max`: the client must send HELLO again, with `unanswered_from`."""


class SequenceCheck(NamedTuple):
    """Result of `ClientStates.check`. `frame` is set for PENDING, `refused` for PARKED."""

    state: SequenceState
    frame: PendingFrame | None = None
    refused: tuple[RefusedRecords, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientStateLimits:
    """`gaps_max`: ranges of refused sequences kept per client id. `retention_ms`: a client id with nothing pending is
    removed after being disconnected for this long."""

    clients_max: int = 100_000
    gaps_max: int = 65_536
    retention_ms: int = 7 * 86_400_000


@dataclass(slots=True, eq=False)
class ClientState:
    """One durable client id. `high`: the highest accepted sequence. `gaps`: inclusive ranges below `high` that were not
    accepted, ascending. `last_seen_ms`: CLOCK_MONOTONIC of this boot, negative if before the boot."""

    client_id: str
    uid: int
    last_seen_ms: int
    high: int = NOTHING_TAKEN
    gaps: list[tuple[int, int]] = field(default_factory=list)
    pending: dict[int, PendingFrame] = field(default_factory=dict)
    connected: bool = False


def _nothing_parked(_client_id: str, _seq: int) -> tuple[RefusedRecords, ...]:
    return ()


class ClientStates:
    """All durable client ids. `parked(client_id, seq)` returns the records of a frame that are in dead letters."""

    def __init__(
        self,
        limits: ClientStateLimits | None = None,
        *,
        parked: Callable[[str, int], tuple[RefusedRecords, ...]] = _nothing_parked,
    ) -> None:
        self._limits = limits or ClientStateLimits()
        self.parked = parked
        self.by_id: dict[str, ClientState] = {}

    def connect(self, client_id: str, uid: int, unanswered_from: int | None, *, now_ms: int) -> ClientState | Code:
        """Return the state of a client id that connects, or the code with which to refuse it. Gaps below
        `unanswered_from` are dropped, because the client has acks for those. Without `unanswered_from`, a client whose
        gaps are at their limit keeps only the newer half of them."""
        state = self.by_id.get(client_id)
        if state is None:
            if len(self.by_id) >= self._limits.clients_max:
                return Code.LIMIT
            state = self.by_id[client_id] = ClientState(client_id, uid, now_ms)
        if state.uid != uid:
            return Code.CLIENT_ID_IN_USE_BY_ANOTHER_USER
        state.last_seen_ms = now_ms
        state.connected = True
        if unanswered_from is not None:
            state.gaps = [(max(first, unanswered_from), last) for first, last in state.gaps if last >= unanswered_from]
        elif len(state.gaps) >= self._limits.gaps_max:
            state.gaps = state.gaps[len(state.gaps) // 2 + 1 :]
        return state

    def disconnect(self, state: ClientState, *, now_ms: int) -> None:
        """Record that the client id's connection ended. Not called if another connection took over."""
        state.connected = False
        state.last_seen_ms = now_ms

    def check(self, state: ClientState, seq: int) -> SequenceCheck:
        """Return the state of a sequence, which decides how its frame is treated (SES-3)."""
        if seq > state.high:
            if seq > state.high + 1 and len(state.gaps) >= self._limits.gaps_max:
                return SequenceCheck(SequenceState.GAP_LIMIT)
            return SequenceCheck(SequenceState.NEW)
        frame = state.pending.get(seq)
        if frame is not None:
            return SequenceCheck(SequenceState.PENDING, frame)
        if _in_ranges(state.gaps, seq):
            return SequenceCheck(SequenceState.REFUSED_BEFORE)
        refused = self.parked(state.client_id, seq)
        return SequenceCheck(SequenceState.PARKED, None, refused) if refused else SequenceCheck(SequenceState.DELIVERED)

    def accept(self, state: ClientState, frame: PendingFrame, previous: int) -> None:
        """Add a NEW frame as pending, after its entry was appended to the log. `previous`: the field of that entry."""
        assert previous == state.high, f"frame after {previous}, but {state.high} was taken last"
        assert frame.seq > state.high, f"sequence {frame.seq} of {state.client_id} is not new"
        _raise_high(state, frame.seq)
        state.pending[frame.seq] = frame

    def complete(self, frame: PendingFrame) -> None:
        """Remove a completed frame from `pending`. A resend is answered from `gaps` and the parked records."""
        if frame.client_id is not None:
            ended = self.by_id[frame.client_id].pending.pop(frame.seq, None)
            assert ended is frame, f"frame {frame.seq} of {frame.client_id} was not pending"

    def expire(self, *, now_ms: int) -> list[SessionEntry]:
        """Remove client ids that were disconnected for too long (SES-7). The caller appends the returned entries to the
        log, so that a replay removes them too."""
        over = now_ms - self._limits.retention_ms
        gone = [
            state
            for state in self.by_id.values()
            if state.last_seen_ms <= over and not state.pending and not state.connected
        ]
        for state in gone:
            del self.by_id[state.client_id]
        return [SessionEntry(state.client_id, state.uid, NOTHING_TAKEN, [], 0) for state in gone]

    def apply(self, entry: FrameEntry | SessionEntry, *, now_ms: int, wall_ms: int) -> None:
        """During recovery: apply an entry. `restore` adds the pending frames once the unresolved ones are known."""
        if isinstance(entry, SessionEntry):
            self._apply_session(entry, now_ms=now_ms, wall_ms=wall_ms)
        elif entry.client_id is not None:
            state = self.by_id.get(entry.client_id)
            if state is None:
                state = ClientState(entry.client_id, entry.uid, self._monotonic_ms(entry.wall_ms, now_ms, wall_ms))
                self.by_id[entry.client_id] = state
            if entry.seq > state.high:
                state.high = max(state.high, entry.previous)
                _raise_high(state, entry.seq)
                state.last_seen_ms = max(state.last_seen_ms, self._monotonic_ms(entry.wall_ms, now_ms, wall_ms))

    def restore(self, frame: PendingFrame) -> None:
        """During recovery: add an unresolved frame as pending."""
        if frame.client_id is not None:
            self.by_id[frame.client_id].pending[frame.seq] = frame

    def snapshot(self, *, now_ms: int, wall_ms: int) -> list[SessionEntry]:
        """Return all client ids with an accepted frame, for a checkpoint."""
        return [
            SessionEntry(
                state.client_id,
                state.uid,
                state.high,
                list(state.gaps),
                wall_ms - (0 if state.connected else now_ms - state.last_seen_ms),
            )
            for state in self.by_id.values()
            if state.high != NOTHING_TAKEN
        ]

    def _apply_session(self, entry: SessionEntry, *, now_ms: int, wall_ms: int) -> None:
        if entry.high == NOTHING_TAKEN:
            self.by_id.pop(entry.client_id, None)
            return
        seen = self._monotonic_ms(entry.last_seen_ms, now_ms, wall_ms)
        self.by_id[entry.client_id] = ClientState(
            entry.client_id, entry.uid, seen, entry.high, [(first, last) for first, last in entry.gaps]
        )

    def _monotonic_ms(self, seen_wall_ms: int, now_ms: int, wall_ms: int) -> int:
        """Convert a past wall time to CLOCK_MONOTONIC. The age is limited to 0 … retention less `KEPT_AFTER_START_MS`,
        in case the wall clock has jumped."""
        longest = max(self._limits.retention_ms - KEPT_AFTER_START_MS, 0)
        return now_ms - min(max(wall_ms - seen_wall_ms, 0), longest)


def _raise_high(state: ClientState, seq: int) -> None:
    if seq > state.high + 1:
        state.gaps.append((state.high + 1, seq - 1))
    state.high = seq


def _in_ranges(ranges: list[tuple[int, int]], seq: int) -> bool:
    """Whether one of the ascending inclusive ranges contains the sequence."""
    low, high = 0, len(ranges)
    while low < high:
        middle = (low + high) // 2
        if ranges[middle][1] < seq:
            low = middle + 1
        else:
            high = middle
    return low < len(ranges) and ranges[low][0] <= seq
