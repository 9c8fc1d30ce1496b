"""What brokers want to know of their clients, and when they are told: the course of KIP-714, as decisions.

A broker names what it subscribes to and how often; pushes follow, and a last one at the end. No connection here and no metric:
`next_ask` says what to send, answers and losses come back. `now` is CLOCK_MONOTONIC seconds, `chance` lies in [0, 1).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from ...api.metrics import MetricName
from ..protocol.backoff import Backoff
from ..protocol.error_codes import NONE, error_name
from ..records.compression import ATTRIBUTES, Codec

ZERO_ID: Final = bytes(16)
"""The client instance id of who has none yet: the broker gives one."""
_INTERVAL_MS: Final = 300_000
"""Where the broker's interval makes no sense."""
_INTERVAL_MIN_MS: Final = 100
"""Brokers allow no shorter one; a push takes some of the time that records are sent in."""
_ALL: Final = "*"
_AGAIN: Final = Backoff(1.0, 60.0)
_INVALID_REQUEST: Final = 42
_UNSUPPORTED_COMPRESSION_TYPE: Final = 76
_INVALID_RECORD: Final = 87
_THROTTLING_QUOTA_EXCEEDED: Final = 89
_UNKNOWN_SUBSCRIPTION_ID: Final = 117
_TELEMETRY_TOO_LARGE: Final = 118


class State(Enum):
    """Where the exchange stands."""

    SUBSCRIPTION_NEEDED = auto()
    SUBSCRIPTION_IN_PROGRESS = auto()
    PUSH_NEEDED = auto()
    PUSH_IN_PROGRESS = auto()
    TERMINATING_PUSH_NEEDED = auto()
    TERMINATING_PUSH_IN_PROGRESS = auto()
    TERMINATED = auto()


NEXT: Final[dict[State, frozenset[State]]] = {
    State.SUBSCRIPTION_NEEDED: frozenset({State.SUBSCRIPTION_IN_PROGRESS, State.TERMINATED}),
    # Back to itself in a way where the broker wants no metric: it is asked again after its interval.
    State.SUBSCRIPTION_IN_PROGRESS: frozenset({State.PUSH_NEEDED, State.SUBSCRIPTION_NEEDED, State.TERMINATED}),
    State.PUSH_NEEDED: frozenset({State.PUSH_IN_PROGRESS, State.TERMINATING_PUSH_NEEDED, State.TERMINATED}),
    State.PUSH_IN_PROGRESS: frozenset(
        {State.PUSH_NEEDED, State.SUBSCRIPTION_NEEDED, State.TERMINATING_PUSH_NEEDED, State.TERMINATED}
    ),
    State.TERMINATING_PUSH_NEEDED: frozenset({State.TERMINATING_PUSH_IN_PROGRESS, State.TERMINATED}),
    State.TERMINATING_PUSH_IN_PROGRESS: frozenset({State.TERMINATED}),
    # The producer closes, or brokers have refused for good.
    State.TERMINATED: frozenset(),
}


class Subscription(NamedTuple):
    """What a broker answers to a question for a subscription."""

    client_instance_id: bytes
    subscription_id: int
    accepted_codecs: tuple[int, ...]
    """Numbers of codecs, the one it likes best first."""
    push_interval_ms: int
    bytes_max: int
    """Of a push, compressed."""
    delta: bool
    """Sums are to be told as increments, not since the start."""
    requested: tuple[str, ...]
    """Prefixes of the names of metrics."""


class Told(NamedTuple):
    """Totals of an earlier push, and when that was (ns since 1970): increments are counted from there."""

    totals: Mapping[MetricName, float]
    at_ns: int


class AskSubscription(NamedTuple):
    """GetTelemetrySubscriptions."""

    client_instance_id: bytes


class Push(NamedTuple):
    """PushTelemetry, with the metrics that `wants` selects, compressed by `codec`."""

    subscription: Subscription
    codec: Codec
    terminating: bool


class Telemetry:
    """One producer's exchange. At most one request is on its way, but for the last push, which waits for nothing."""

    def __init__(self, *, now: float) -> None:
        self.state = State.SUBSCRIPTION_NEEDED
        self.subscription: Subscription | None = None
        self.reason = ""
        """Why brokers are told nothing any more, if they are the reason."""
        self._at = now
        self._failures = 0
        self._refused_codecs: set[Codec] = set()

    # --- requests ----------------------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """`next_ask` has something to send, so a connection is wanted."""
        due = self.state in (State.SUBSCRIPTION_NEEDED, State.PUSH_NEEDED) and now >= self._at
        return due or self.state is State.TERMINATING_PUSH_NEEDED

    def next_deadline(self) -> float | None:
        """When something is due; None: not before an answer."""
        return self._at if self.state in (State.SUBSCRIPTION_NEEDED, State.PUSH_NEEDED) else None

    def next_ask(self, now: float) -> AskSubscription | Push | None:
        """What is sent now; None: nothing."""
        if not self.is_due(now):
            return None
        if self.state is State.SUBSCRIPTION_NEEDED:
            self._move(State.SUBSCRIPTION_IN_PROGRESS)
            return AskSubscription(ZERO_ID if self.subscription is None else self.subscription.client_instance_id)
        assert self.subscription is not None, "a push without a subscription"
        terminating = self.state is State.TERMINATING_PUSH_NEEDED
        self._move(State.TERMINATING_PUSH_IN_PROGRESS if terminating else State.PUSH_IN_PROGRESS)
        return Push(self.subscription, self._codec(self.subscription), terminating)

    def _codec(self, subscription: Subscription) -> Codec:
        """The first one that the broker takes and that it has not refused all the same."""
        for number in subscription.accepted_codecs:
            for codec, own in ATTRIBUTES.items():
                if own == number and codec not in self._refused_codecs:
                    return codec
        return "none"

    # --- answers -----------------------------------------------------------------------------------------------------

    def subscribed(self, code: int, told: Subscription, now: float, chance: float) -> None:
        """The broker answered the question for a subscription."""
        if self.state is not State.SUBSCRIPTION_IN_PROGRESS:
            return
        if code in (_UNKNOWN_SUBSCRIPTION_ID, _UNSUPPORTED_COMPRESSION_TYPE):
            # Nothing of the kind was asked: at once again, it might be answered so for ever.
            self.failed(now, chance)
            return
        if code != NONE:
            self._refused(code, now)
            return
        if told.client_instance_id == ZERO_ID:
            self.failed(now, chance)
            return
        self._failures = 0
        interval_ms = max(told.push_interval_ms, _INTERVAL_MIN_MS) if told.push_interval_ms > 0 else _INTERVAL_MS
        self.subscription = told._replace(push_interval_ms=interval_ms)
        if told.requested:
            # Clients that were started together are not to push together.
            self._at = now + (0.5 + chance) * interval_ms / 1000
            self._move(State.PUSH_NEEDED)
        else:
            self._at = now + interval_ms / 1000
            self._move(State.SUBSCRIPTION_NEEDED)

    def pushed(self, code: int, push: Push, now: float) -> None:
        """The broker answered a push. What comes for an earlier one, once the last is on its way, is no news."""
        if push.terminating:
            self.stop()
        if self.state is not State.PUSH_IN_PROGRESS:
            return
        if code == _UNSUPPORTED_COMPRESSION_TYPE:
            self._refused_codecs.add(push.codec)
        if code != NONE:
            self._refused(code, now)
            return
        self._failures = 0
        self._wait(now)
        self._move(State.PUSH_NEEDED)

    def unsent(self, now: float) -> None:
        """There is nothing to push that the broker would take: the next interval may have something."""
        if self.state is State.TERMINATING_PUSH_IN_PROGRESS:
            self._move(State.TERMINATED)
        elif self.state is State.PUSH_IN_PROGRESS:
            self._wait(now)
            self._move(State.PUSH_NEEDED)

    def failed(self, now: float, chance: float) -> None:
        """A request was lost, or no broker could be reached. A push that was lost is not pushed again: it may have arrived."""
        again = now + _AGAIN.wait_s(self._failures, chance)
        self._failures += 1
        match self.state:
            case State.SUBSCRIPTION_IN_PROGRESS:
                self._at = again
                self._move(State.SUBSCRIPTION_NEEDED)
            case State.SUBSCRIPTION_NEEDED:
                self._at = max(self._at, again)
            case State.PUSH_IN_PROGRESS:
                self._wait(now)
                self._move(State.PUSH_NEEDED)
            case State.PUSH_NEEDED:
                self._at = max(self._at, again)
            case State.TERMINATING_PUSH_NEEDED | State.TERMINATING_PUSH_IN_PROGRESS:
                self._move(State.TERMINATED)
            case State.TERMINATED:
                pass

    def not_offered(self, now: float) -> None:
        """The broker that was reached does not ask its clients for metrics: another one, or a later release of it, may."""
        if self.state in (State.TERMINATING_PUSH_NEEDED, State.TERMINATING_PUSH_IN_PROGRESS):
            self._move(State.TERMINATED)
        elif self.state is not State.TERMINATED:
            self._at = now + _INTERVAL_MS / 1000

    def _refused(self, code: int, now: float) -> None:
        match code:
            case c if c in (_UNKNOWN_SUBSCRIPTION_ID, _UNSUPPORTED_COMPRESSION_TYPE):
                self._at = now
                self._move(State.SUBSCRIPTION_NEEDED)
            case c if c in (_TELEMETRY_TOO_LARGE, _THROTTLING_QUOTA_EXCEEDED):
                self._wait(now)
                self._move(State.SUBSCRIPTION_NEEDED)
            case _:
                # INVALID_REQUEST, INVALID_RECORD, UNSUPPORTED_VERSION, and what nobody has thought of.
                self.reason = error_name(code)
                self._move(State.TERMINATED)

    def _wait(self, now: float) -> None:
        self._at = now + (_INTERVAL_MS if self.subscription is None else self.subscription.push_interval_ms) / 1000

    # --- the end -----------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """The producer ends: a last push, if anything was to be pushed at all."""
        if self.state in (State.PUSH_NEEDED, State.PUSH_IN_PROGRESS):
            self._move(State.TERMINATING_PUSH_NEEDED)
        elif self.state in (State.SUBSCRIPTION_NEEDED, State.SUBSCRIPTION_IN_PROGRESS):
            self._move(State.TERMINATED)

    def stop(self) -> None:
        """Nothing is told any more."""
        if self.state is not State.TERMINATED:
            self._move(State.TERMINATED)

    def _move(self, state: State) -> None:
        assert state in NEXT[self.state], f"{self.state.name} to {state.name}"
        self.state = state


def selector(requested: Sequence[str]) -> Callable[[str], bool]:
    """Whether a metric of this name is asked for."""
    if not requested:
        return lambda _name: False
    if _ALL in requested:
        return lambda _name: True
    prefixes = tuple(requested)
    return lambda name: name.startswith(prefixes)
