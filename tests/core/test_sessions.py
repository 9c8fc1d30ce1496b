"""Which sequences a client id may use, and what a resend is told."""

import pytest
from penstock.daemon.ledger.client_sequences import (
    KEPT_AFTER_START_MS,
    ClientState,
    ClientStateLimits,
    ClientStates,
    SequenceState,
)
from penstock.daemon.ledger.entries import FrameEntry, Lsn, SessionEntry, SliceEntry
from penstock.daemon.ledger.slices import PendingFrame
from penstock.wire.frames import Code, RefusedRecords


def greet(
    sessions: ClientStates, client_id: str = "a", *, unanswered_from: int | None = None, now_ms: int = 0
) -> ClientState:
    state = sessions.connect(client_id, 7, unanswered_from, now_ms=now_ms)
    assert isinstance(state, ClientState)
    return state


def take(sessions: ClientStates, state: ClientState, seq: int) -> PendingFrame:
    frame = PendingFrame(state.client_id, state.uid, seq, 2, 1, 10, Lsn(1), 0, None, 1)
    assert sessions.check(state, seq).state is SequenceState.NEW
    sessions.accept(state, frame, state.high)
    return frame


def taken(client_id: str, seq: int, previous: int) -> FrameEntry:
    return FrameEntry(client_id, 7, seq, previous, 2, 1, 1, None, [SliceEntry(0, 0, 1, 1, 0, 10)])


def test_a_new_client_id_has_taken_nothing() -> None:
    state = greet(ClientStates())
    assert (state.high, state.gaps, state.pending) == (-1, [], {})


def test_a_client_id_belongs_to_the_user_who_used_it_first() -> None:
    sessions = ClientStates()
    greet(sessions)
    assert sessions.connect("a", 8, None, now_ms=0) is Code.CLIENT_ID_IN_USE_BY_ANOTHER_USER


def test_a_resend_meets_the_pending_frame_and_after_its_end_only_that_it_was_delivered() -> None:
    sessions = ClientStates()
    state = greet(sessions)
    frame = take(sessions, state, 0)
    verdict = sessions.check(state, 0)
    assert (verdict.state, verdict.frame) == (SequenceState.PENDING, frame)
    sessions.complete(frame)
    assert sessions.check(state, 0).state is SequenceState.DELIVERED


def test_a_sequence_that_was_passed_over_was_refused() -> None:
    sessions = ClientStates()
    state = greet(sessions)
    for seq in (2, 3, 7):
        take(sessions, state, seq)
    assert state.gaps == [(0, 1), (4, 6)]
    found = [sessions.check(state, seq).state for seq in range(9)]
    refused, pending, new = SequenceState.REFUSED_BEFORE, SequenceState.PENDING, SequenceState.NEW
    assert found == [refused, refused, pending, pending, refused, refused, refused, pending, new]


def test_a_resend_of_a_parked_frame_is_told_which_records() -> None:
    refused = (RefusedRecords(0, 1, "parked", "too large"),)
    sessions = ClientStates(parked=lambda client_id, seq: refused if (client_id, seq) == ("a", 1) else ())
    state = greet(sessions)
    for seq in (0, 1):
        sessions.complete(take(sessions, state, seq))
    assert sessions.check(state, 0).state is SequenceState.DELIVERED
    assert sessions.check(state, 1) == (SequenceState.PARKED, None, refused)


def test_gaps_below_what_the_client_may_still_resend_are_forgotten() -> None:
    sessions = ClientStates()
    state = greet(sessions)
    for seq in (2, 5, 9):
        take(sessions, state, seq)
    greet(sessions, unanswered_from=4)
    assert state.gaps == [(4, 4), (6, 8)]
    greet(sessions, unanswered_from=None)
    assert state.gaps == [(4, 4), (6, 8)]


def test_a_frame_that_would_make_one_gap_too_many_is_put_off_until_the_client_greets_again() -> None:
    sessions = ClientStates(ClientStateLimits(gaps_max=2))
    state = greet(sessions)
    for seq in (1, 3):
        take(sessions, state, seq)
    assert sessions.check(state, 5).state is SequenceState.GAP_LIMIT
    assert sessions.check(state, 4).state is SequenceState.NEW
    greet(sessions, unanswered_from=3)
    assert sessions.check(state, 5).state is SequenceState.NEW


def test_a_client_that_never_says_what_it_resends_keeps_its_newest_gaps() -> None:
    sessions = ClientStates(ClientStateLimits(gaps_max=4))
    state = greet(sessions)
    for seq in (1, 3, 5, 7):
        take(sessions, state, seq)
    greet(sessions)
    assert state.gaps == [(6, 6)]
    assert sessions.check(state, 9).state is SequenceState.NEW


def test_one_client_id_too_many_is_refused_and_known_ones_are_not() -> None:
    sessions = ClientStates(ClientStateLimits(clients_max=1))
    greet(sessions, "a")
    assert sessions.connect("b", 7, None, now_ms=0) is Code.LIMIT
    greet(sessions, "a")


@pytest.mark.parametrize(("away_ms", "kept"), [(99, True), (100, False)])
def test_a_client_id_is_forgotten_after_its_retention(away_ms: int, *, kept: bool) -> None:
    sessions = ClientStates(ClientStateLimits(retention_ms=100))
    state = greet(sessions, now_ms=1000)
    sessions.complete(take(sessions, state, 5))
    sessions.disconnect(state, now_ms=1000)
    forgotten = sessions.expire(now_ms=1000 + away_ms)
    assert ("a" in sessions.by_id) is kept
    assert forgotten == ([] if kept else [SessionEntry("a", 7, -1, [], 0)])


def test_a_client_id_with_something_pending_or_a_connection_is_not_forgotten() -> None:
    sessions = ClientStates(ClientStateLimits(retention_ms=100))
    connected, waiting = greet(sessions, "connected"), greet(sessions, "waiting")
    take(sessions, waiting, 0)
    sessions.disconnect(waiting, now_ms=0)
    assert sessions.expire(now_ms=10_000) == []
    sessions.disconnect(connected, now_ms=10_000)
    assert len(sessions.expire(now_ms=20_000)) == 1
    assert list(sessions.by_id) == ["waiting"]


def test_recovery_finds_what_was_taken_and_the_gaps_between() -> None:
    sessions = ClientStates()
    for seq, previous in [(0, -1), (1, 0), (4, 1)]:
        sessions.apply(taken("a", seq, previous), now_ms=50, wall_ms=60)
    state = sessions.by_id["a"]
    assert (state.uid, state.high, state.gaps) == (7, 4, [(2, 3)])


def test_a_forgotten_client_id_stays_forgotten_after_recovery() -> None:
    sessions = ClientStates()
    sessions.apply(taken("a", 4, -1), now_ms=0, wall_ms=0)
    sessions.apply(SessionEntry("a", 7, -1, [], 0), now_ms=0, wall_ms=0)
    assert sessions.by_id == {}


def test_a_checkpoint_keeps_clients_gaps_and_how_long_they_were_away() -> None:
    sessions = ClientStates()
    state = greet(sessions, now_ms=1_000)
    greet(sessions, "took nothing", now_ms=1_000)
    take(sessions, state, 3)
    sessions.disconnect(state, now_ms=2_000)
    (entry,) = sessions.snapshot(now_ms=5_000, wall_ms=900_000)
    assert entry == SessionEntry("a", 7, 3, [(0, 2)], 897_000)
    restored = ClientStates()
    restored.apply(entry, now_ms=100, wall_ms=900_500)
    assert (restored.by_id["a"].high, restored.by_id["a"].gaps) == (3, [(0, 2)])
    assert restored.by_id["a"].last_seen_ms == 100 - 3_500


@pytest.mark.parametrize("jump_ms", [-(365 * 86_400_000), 365 * 86_400_000])
def test_a_jump_of_the_wall_clock_does_not_make_a_start_forget_clients(jump_ms: int) -> None:
    sessions = ClientStates(ClientStateLimits(retention_ms=7 * 86_400_000))
    sessions.apply(SessionEntry("a", 7, 3, [], 10**12), now_ms=0, wall_ms=10**12 + jump_ms)
    assert sessions.expire(now_ms=KEPT_AFTER_START_MS - 1) == []


def test_a_frame_must_follow_the_last_one_taken() -> None:
    sessions = ClientStates()
    state = greet(sessions)
    take(sessions, state, 4)
    frame = PendingFrame("a", 7, 9, 2, 1, 10, Lsn(1), 0, None, 1)
    with pytest.raises(AssertionError, match="was taken last"):
        sessions.accept(state, frame, 3)
