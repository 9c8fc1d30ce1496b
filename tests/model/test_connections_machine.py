"""Any history of one connection: every request is answered or lost, exactly once and in order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.producer.network.connection_state import (
    ESTABLISHING,
    OPEN,
    RENEWING,
    ConnectionLimits,
    ConnectionState,
    ConnectionStateMachine,
    Due,
)
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.protocol.framing import StreamError

from tests.harness.counts import model_examples

LIMITS = ConnectionLimits(
    request_timeout_s=3.0,
    setup_timeout_s=1.0,
    setup_timeout_max_s=4.0,
    reconnect=Backoff(0.1, 2.0),
    idle_s=20.0,
    in_flight_max=4,
)
MIDDLE = 0.5
LIFETIMES = st.sampled_from([0, 1, 1_000, 2_500, 60_000])


class ConnectionMachine(RuleBasedStateMachine):
    """The core, driven as the shell drives it, beside a plain list of what is owed."""

    def __init__(self) -> None:
        super().__init__()
        self.core: ConnectionStateMachine[int] = ConnectionStateMachine(LIMITS)
        self.now = 100.0
        self.sent = 0
        self.owed: list[tuple[int, int]] = []
        self.unwritten = 0
        self.settled: list[int] = []
        self.last_end = -1e9
        self.ends_in_a_row = 0
        self.encrypts = False
        self.logs_in = False

    @initialize(ready=st.booleans(), encrypts=st.booleans(), logs_in=st.booleans(), lifetime_ms=LIFETIMES)
    def begin(self, ready: bool, encrypts: bool, logs_in: bool, lifetime_ms: int) -> None:
        """Half of all histories begin with a ready connection: what goes wrong there is what matters most."""
        self.encrypts, self.logs_in = encrypts, logs_in
        if ready:
            self.want()
            self.look()
            self.resolve(known=True)
            self.connect(refused=False)
            if encrypts:
                self.encrypt(trusted=True)
            self.agree()
            if logs_in:
                self.log_in(lifetime_ms=lifetime_ms)

    def end(self, *, refused: bool = False) -> None:
        lost = self.core.ended(self.now, MIDDLE, "lost", refused=refused)
        assert self.core.authentication_failed == refused
        assert lost == [tag for tag, _ in self.owed]
        self.settled += lost
        self.owed.clear()
        self.unwritten = 0
        self.last_end = self.now
        self.ends_in_a_row += 1

    @rule()
    def want(self) -> None:
        self.core.request_connect()

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 1.0, 3.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    @rule()
    def wait_for_the_deadline(self) -> None:
        deadline = self.core.next_deadline()
        if deadline is not None:
            self.now = max(self.now, deadline)
            was, state = self.core.throttled_until, self.core.state
            due = self.core.due(self.now, MIDDLE)
            # A deadline is never told in vain: something is due, a throttle ends, or nothing new goes out from now on.
            drains = state is ConnectionState.READY and self.core.state is ConnectionState.DRAINING
            assert due is not None or drains or (was and not self.core.throttled_until)
            self.act(due)

    def look(self) -> None:
        while (due := self.core.due(self.now, MIDDLE)) is not None:
            self.act(due)

    def act(self, due: Due | None) -> None:
        match due:
            case None:
                return
            case Due.CONNECT:
                assert self.core.state is ConnectionState.RESOLVING
                waited = self.now - self.last_end
                assert waited >= min(0.1 * 2 ** max(self.ends_in_a_row - 1, 0), 2.0) - 1e-6 or not self.ends_in_a_row
                assert not self.core.failed_during_login or waited >= 1.0 - 1e-6
            case Due.SETUP_TIMED_OUT | Due.REQUEST_TIMED_OUT:
                self.end()
            case Due.REAUTHENTICATE:
                # Nobody waits for an answer that could come in between.
                assert self.core.state is ConnectionState.REAUTHENTICATING
                assert self.owed == []
                assert self.now >= self.core.throttled_until
            case Due.IDLE:
                assert self.owed == []
                self.end()

    @precondition(lambda self: self.core.state is ConnectionState.RESOLVING)
    @rule(known=st.booleans())
    def resolve(self, known: bool) -> None:
        if known:
            self.core.connecting(self.now)
        else:
            self.end()

    @precondition(lambda self: self.core.state is ConnectionState.CONNECTING)
    @rule(refused=st.booleans())
    def connect(self, refused: bool) -> None:
        if refused:
            self.end()
        else:
            self.core.established(encrypts=self.encrypts)

    @precondition(lambda self: self.core.state is ConnectionState.ENCRYPTING)
    @rule(trusted=st.booleans())
    def encrypt(self, trusted: bool) -> None:
        if trusted:
            self.core.encrypted()
        else:
            self.end(refused=True)

    @precondition(lambda self: self.core.state is ConnectionState.CHECKING_VERSIONS)
    @rule()
    def agree(self) -> None:
        before = self.core.incarnation
        self.core.versions_received({0: (3, 13)}, self.now, authenticates=self.logs_in)
        assert self.core.incarnation == before + (0 if self.logs_in else 1)
        if not self.logs_in:
            self.is_ready()

    @precondition(lambda self: self.core.state in (ConnectionState.AUTHENTICATING, ConnectionState.REAUTHENTICATING))
    @rule(lifetime_ms=LIFETIMES)
    def log_in(self, lifetime_ms: int) -> None:
        before, anew = self.core.incarnation, self.core.state is ConnectionState.AUTHENTICATING
        assert self.core.authenticated(lifetime_ms, self.now, MIDDLE) is anew
        assert self.core.incarnation == before + (1 if anew else 0)
        self.is_ready()

    @precondition(lambda self: self.core.state in (ConnectionState.AUTHENTICATING, ConnectionState.REAUTHENTICATING))
    @rule()
    def is_refused(self) -> None:
        self.end(refused=True)

    def is_ready(self) -> None:
        assert self.core.state is ConnectionState.READY
        assert not self.core.failed_during_login
        self.ends_in_a_row = 0

    @precondition(lambda self: self.core.can_send(self.now))
    @rule(size=st.integers(1, 100))
    def send(self, size: int) -> None:
        correlation_id = self.core.next_correlation_id()
        self.core.sent(correlation_id, self.sent, size, self.now)
        self.owed.append((self.sent, correlation_id))
        self.sent += 1
        self.unwritten += size

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self.unwritten -= data.draw(st.integers(0, self.unwritten))

    @precondition(lambda self: self.core.state in (ConnectionState.READY, ConnectionState.DRAINING))
    @rule(place=st.integers(0, 4))
    def answer(self, place: int) -> None:
        known = self.owed[place][1] if place < len(self.owed) else 0
        try:
            self.core.expect(known, self.unwritten)
        except StreamError:
            self.end()
            return
        # Only the oldest may be answered.
        assert place == 0
        tag = self.core.answered(self.now)
        assert tag == self.owed.pop(0)[0]
        self.settled.append(tag)

    @precondition(lambda self: self.core.state in (ConnectionState.READY, ConnectionState.DRAINING))
    @rule(throttle_ms=st.sampled_from([0, 10, 500, 5_000]))
    def throttle(self, throttle_ms: int) -> None:
        self.core.throttle(throttle_ms, self.now)
        assert not throttle_ms or not self.core.can_send(self.now)

    @precondition(lambda self: self.core.state in OPEN)
    @rule()
    def peer_goes(self) -> None:
        self.end()

    @invariant()
    def every_request_is_settled_once_or_owed(self) -> None:
        assert self.settled == sorted(set(self.settled))
        assert self.settled + [tag for tag, _ in self.owed] == list(range(self.sent))
        assert self.core.in_flight == len(self.owed) <= LIMITS.in_flight_max

    @invariant()
    def a_state_that_waits_for_something_has_a_deadline(self) -> None:
        waits = self.core.state is ConnectionState.WAITING or self.core.state in OPEN
        assert (self.core.next_deadline() is not None) == waits

    @invariant()
    def nothing_goes_out_unless_the_connection_is_ready(self) -> None:
        assert self.core.state is ConnectionState.READY or not self.core.can_send(self.now)
        # Who chooses among nodes takes one that is being set up, or whose session is renewed, for one that will be there soon.
        standing = self.core.readiness(self.now)
        assert standing.connecting == (self.core.state in ESTABLISHING or self.core.state in RENEWING)
        assert self.core.state is not ConnectionState.REAUTHENTICATING or self.owed == []

    def teardown(self) -> None:
        assert self.core.close() == [tag for tag, _ in self.owed]


TestConnection = ConnectionMachine.TestCase
TestConnection.settings = settings(TestConnection.settings, max_examples=model_examples(100))
