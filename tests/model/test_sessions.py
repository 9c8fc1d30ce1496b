"""Durable client ids against plain sets of sequences: nothing is taken twice, nothing refused is called delivered."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.daemon.ledger.client_sequences import ClientState, ClientStateLimits, ClientStates, SequenceState
from penstock.daemon.ledger.entries import FrameEntry, Lsn, SliceEntry
from penstock.daemon.ledger.slices import PendingFrame
from penstock.wire.frames import RefusedRecords

from tests.harness.counts import model_examples

LIMITS = ClientStateLimits(clients_max=4, gaps_max=6, retention_ms=1_000)
PARKED = (RefusedRecords(0, 1, "parked", "too large"),)


class SessionMachine(RuleBasedStateMachine):
    """One client that sends, is refused, goes away and comes back, and a router that restarts under it."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[FrameEntry] = []
        self.taken: set[int] = set()
        self.refused: set[int] = set()
        self.parked: set[int] = set()
        self.pending: dict[int, PendingFrame] = {}
        self.answered_below = 0
        self.next = 0
        self.now_ms = 0
        self.sessions = self.fresh()
        self.state = self.greet()

    def fresh(self) -> ClientStates:
        return ClientStates(LIMITS, parked=lambda _client, seq: PARKED if seq in self.parked else ())

    def greet(self, unanswered_from: int | None = None) -> ClientState:
        state = self.sessions.connect("app", 7, unanswered_from, now_ms=self.now_ms)
        assert isinstance(state, ClientState)
        return state

    @initialize()
    def begin(self) -> None:
        assert self.state.high == -1

    @rule(count=st.integers(1, 3))
    def send_and_be_taken(self, count: int) -> None:
        for _ in range(count):
            verdict = self.sessions.check(self.state, self.next)
            if verdict.state is SequenceState.GAP_LIMIT:
                assert len(self.state.gaps) >= LIMITS.gaps_max
                return
            assert verdict.state is SequenceState.NEW
            previous = self.state.high
            frame = PendingFrame("app", 7, self.next, 2, 1, 10, Lsn(1), 0, None, 1)
            entry = FrameEntry("app", 7, self.next, previous, 2, 1, 1, None, [SliceEntry(0, 0, 1, 1, 0, 10)])
            self.sessions.accept(self.state, frame, previous)
            self.entries.append(entry)
            self.pending[self.next] = frame
            self.taken.add(self.next)
            self.next += 1

    @rule()
    def send_and_be_refused(self) -> None:
        verdict = self.sessions.check(self.state, self.next)
        assert verdict.state in {SequenceState.NEW, SequenceState.GAP_LIMIT}
        self.refused.add(self.next)
        self.next += 1

    @precondition(lambda self: self.pending)
    @rule(share=st.floats(0, 1, exclude_max=True), parked=st.booleans())
    def end_a_frame(self, share: float, *, parked: bool) -> None:
        seq = sorted(self.pending)[int(len(self.pending) * share)]
        if parked:
            self.parked.add(seq)
        self.sessions.complete(self.pending.pop(seq))

    @rule(share=st.floats(0, 1))
    def come_back(self, share: float) -> None:
        """The client has an answer for everything below what it names."""
        self.answered_below += int((self.next - self.answered_below) * share)
        self.sessions.disconnect(self.state, now_ms=self.now_ms)
        self.state = self.greet(self.answered_below)

    @rule(checkpoint=st.booleans())
    def restart_the_router(self, *, checkpoint: bool) -> None:
        sessions = self.fresh()
        if checkpoint:
            for entry in self.sessions.snapshot(now_ms=self.now_ms, wall_ms=50):
                sessions.apply(entry, now_ms=self.now_ms, wall_ms=50)
        else:
            for frame in self.entries:
                sessions.apply(frame, now_ms=self.now_ms, wall_ms=50)
        for pending in self.pending.values():
            sessions.restore(pending)
        self.sessions = sessions
        self.state = self.greet(self.answered_below)

    @rule(ms=st.integers(0, 900))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms
        assert self.sessions.expire(now_ms=self.now_ms) == []

    @precondition(lambda self: not self.pending)
    @rule()
    def stay_away_too_long(self) -> None:
        self.sessions.disconnect(self.state, now_ms=self.now_ms)
        self.now_ms += 1_000
        gone = self.sessions.expire(now_ms=self.now_ms)
        assert [entry.client_id for entry in gone] == ["app"]
        self.entries.clear()
        self.state = self.greet()
        # What it was told before it went away, it will not ask again.
        self.answered_below = self.next
        self.taken.clear()
        self.refused = set(range(self.next))

    @invariant()
    def a_resend_is_told_the_truth(self) -> None:
        for seq in range(self.answered_below, self.next):
            standing = self.sessions.check(self.state, seq).state
            if seq in self.pending:
                assert standing is SequenceState.PENDING
            elif seq in self.taken:
                assert standing is (SequenceState.PARKED if seq in self.parked else SequenceState.DELIVERED)
            elif seq > self.state.high:
                assert standing in {SequenceState.NEW, SequenceState.GAP_LIMIT}
            else:
                assert standing is SequenceState.REFUSED_BEFORE

    @invariant()
    def gaps_are_ascending_apart_and_below_the_highest(self) -> None:
        before = -1
        for first, last in self.state.gaps:
            assert before < first <= last < max(self.state.high, 0)
            before = last + 1
        assert len(self.state.gaps) <= LIMITS.gaps_max


TestSessions = SessionMachine.TestCase
TestSessions.settings = settings(max_examples=model_examples(100), stateful_step_count=40, deadline=None)
