"""Decides which metrics to push to brokers, and when: the client's side of KIP-714.

A broker subscribes to metrics and sets the interval. Pushes follow, and a last one when the producer closes. This
module opens no connection and reads no metric: `next_request` returns what to send, and the caller reports answers and
losses. `now` is CLOCK_MONOTONIC seconds, `chance` is in [0, 1).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from ...api.metrics import MetricName
from ..protocol.backoff import Backoff
from ..protocol.error_codes import NONE, error_name
from ..records.compression import ATTRIBUTES, Codec

ZERO_ID: Final = bytes(16)
"""The client instance id before a broker has assigned one."""
_INTERVAL_MS: Final = 300_000
"""Replaces an invalid interval from the broker."""
_INTERVAL_MIN_MS: Final = 100
"""Brokers allow no shorter interval; each push takes time from sending records."""
_ALL: Final = "*"
_RETRY_BACKOFF: Final = Backoff(1.0, 60.0)
_INVALID_REQUEST: Final = 42
_UNSUPPORTED_COMPRESSION_TYPE: Final = 76
_INVALID_RECORD: Final = 87
_THROTTLING_QUOTA_EXCEEDED: Final = 89
_UNKNOWN_SUBSCRIPTION_ID: Final = 117
_TELEMETRY_TOO_LARGE: Final = 118


class ClientTelemetryState(Enum):
    """State of the exchange with the brokers."""

    SUBSCRIPTION_NEEDED = auto()
    SUBSCRIPTION_IN_PROGRESS = auto()
    PUSH_NEEDED = auto()
    PUSH_IN_PROGRESS = auto()
    TERMINATING_PUSH_NEEDED = auto()
    TERMINATING_PUSH_IN_PROGRESS = auto()
    TERMINATED = auto()


TRANSITIONS: Final[dict[ClientTelemetryState, frozenset[ClientTelemetryState]]] = {
    ClientTelemetryState.SUBSCRIPTION_NEEDED: frozenset(
        {ClientTelemetryState.SUBSCRIPTION_IN_PROGRESS, ClientTelemetryState.TERMINATED}
    ),
    # Back to SUBSCRIPTION_NEEDED if the broker wants no metric: ask again after its interval.
    ClientTelemetryState.SUBSCRIPTION_IN_PROGRESS: frozenset(
        {ClientTelemetryState.PUSH_NEEDED, ClientTelemetryState.SUBSCRIPTION_NEEDED, ClientTelemetryState.TERMINATED}
    ),
    ClientTelemetryState.PUSH_NEEDED: frozenset(
        {
            ClientTelemetryState.PUSH_IN_PROGRESS,
            ClientTelemetryState.TERMINATING_PUSH_NEEDED,
            ClientTelemetryState.TERMINATED,
        }
    ),
    ClientTelemetryState.PUSH_IN_PROGRESS: frozenset(
        {
            ClientTelemetryState.PUSH_NEEDED,
            ClientTelemetryState.SUBSCRIPTION_NEEDED,
            ClientTelemetryState.TERMINATING_PUSH_NEEDED,
            ClientTelemetryState.TERMINATED,
        }
    ),
    ClientTelemetryState.TERMINATING_PUSH_NEEDED: frozenset(
        {ClientTelemetryState.TERMINATING_PUSH_IN_PROGRESS, ClientTelemetryState.TERMINATED}
    ),
    ClientTelemetryState.TERMINATING_PUSH_IN_PROGRESS: frozenset({ClientTelemetryState.TERMINATED}),
    # The producer has closed, or a broker has refused permanently.
    ClientTelemetryState.TERMINATED: frozenset(),
}


class TelemetrySubscription(NamedTuple):
    """A broker's answer to GetTelemetrySubscriptions."""

    client_instance_id: bytes
    subscription_id: int
    accepted_codecs: tuple[int, ...]
    """Codec numbers, in the broker's order of preference."""
    push_interval_ms: int
    bytes_max: int
    """Limit for a push, compressed."""
    delta_temporality: bool
    """Report sums as increments since the last push, instead of since the start."""
    requested_metrics: tuple[str, ...]
    """Prefixes of metric names."""


class ReportedTotals(NamedTuple):
    """Totals at an earlier push and its time (ns since 1970). Increments are counted from them."""

    totals: Mapping[MetricName, float]
    at_ns: int


class GetTelemetrySubscriptions(NamedTuple):
    """GetTelemetrySubscriptions; the id is `ZERO_ID` before the first answer."""

    client_instance_id: bytes


class PushTelemetry(NamedTuple):
    """PushTelemetry, with the metrics that the subscription requests, compressed with `codec`."""

    subscription: TelemetrySubscription
    codec: Codec
    terminating: bool


class TelemetryExchange:
    """One producer's exchange. At most one request is in flight, but the last push waits for no answer."""

    def __init__(self, *, now: float) -> None:
        self.state = ClientTelemetryState.SUBSCRIPTION_NEEDED
        self.subscription: TelemetrySubscription | None = None
        self.termination_reason = ""
        """Why telemetry was terminated, if a broker caused it; otherwise empty."""
        self._next_request_at = now
        self._failures = 0
        self._refused_codecs: set[Codec] = set()

    # --- requests ----------------------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether `next_request` has something to send, so that a connection is needed."""
        due = (
            self.state in (ClientTelemetryState.SUBSCRIPTION_NEEDED, ClientTelemetryState.PUSH_NEEDED)
            and now >= self._next_request_at
        )
        return due or self.state is ClientTelemetryState.TERMINATING_PUSH_NEEDED

    def next_deadline(self) -> float | None:
        """When a request is due; None: not before an answer."""
        return (
            self._next_request_at
            if self.state in (ClientTelemetryState.SUBSCRIPTION_NEEDED, ClientTelemetryState.PUSH_NEEDED)
            else None
        )

    def next_request(self, now: float) -> GetTelemetrySubscriptions | PushTelemetry | None:
        """What to send now, or None."""
        if not self.is_due(now):
            return None
        if self.state is ClientTelemetryState.SUBSCRIPTION_NEEDED:
            self._transition(ClientTelemetryState.SUBSCRIPTION_IN_PROGRESS)
            return GetTelemetrySubscriptions(
                ZERO_ID if self.subscription is None else self.subscription.client_instance_id
            )
        assert self.subscription is not None, "a push without a subscription"
        terminating = self.state is ClientTelemetryState.TERMINATING_PUSH_NEEDED
        self._transition(
            ClientTelemetryState.TERMINATING_PUSH_IN_PROGRESS if terminating else ClientTelemetryState.PUSH_IN_PROGRESS
        )
        return PushTelemetry(self.subscription, self._codec(self.subscription), terminating)

    def _codec(self, subscription: TelemetrySubscription) -> Codec:
        """The first codec that the broker accepts and has not refused before."""
        for number in subscription.accepted_codecs:
            for codec, own in ATTRIBUTES.items():
                if own == number and codec not in self._refused_codecs:
                    return codec
        return "none"

    # --- answers -----------------------------------------------------------------------------------------------------

    def subscribed(self, code: int, told: TelemetrySubscription, now: float, chance: float) -> None:
        """Apply the answer to GetTelemetrySubscriptions."""
        if self.state is not ClientTelemetryState.SUBSCRIPTION_IN_PROGRESS:
            return
        if code in (_UNKNOWN_SUBSCRIPTION_ID, _UNSUPPORTED_COMPRESSION_TYPE):
            # These codes do not fit the request. Back off: retrying at once could loop for ever.
            self.failed(now, chance)
            return
        if code != NONE:
            self._request_failed(code, now)
            return
        if told.client_instance_id == ZERO_ID:
            self.failed(now, chance)
            return
        self._failures = 0
        interval_ms = max(told.push_interval_ms, _INTERVAL_MIN_MS) if told.push_interval_ms > 0 else _INTERVAL_MS
        self.subscription = told._replace(push_interval_ms=interval_ms)
        if told.requested_metrics:
            # Random delay, so that clients started together do not push together.
            self._next_request_at = now + (0.5 + chance) * interval_ms / 1000
            self._transition(ClientTelemetryState.PUSH_NEEDED)
        else:
            self._next_request_at = now + interval_ms / 1000
            self._transition(ClientTelemetryState.SUBSCRIPTION_NEEDED)

    def pushed(self, code: int, push: PushTelemetry, now: float) -> None:
        """Apply the answer to a push. Once the last push is in flight, answers to earlier ones are ignored."""
        if push.terminating:
            self.stop()
        if self.state is not ClientTelemetryState.PUSH_IN_PROGRESS:
            return
        if code == _UNSUPPORTED_COMPRESSION_TYPE:
            self._refused_codecs.add(push.codec)
        if code != NONE:
            self._request_failed(code, now)
            return
        self._failures = 0
        self._schedule_push(now)
        self._transition(ClientTelemetryState.PUSH_NEEDED)

    def push_skipped(self, now: float) -> None:
        """Skip a push that the broker would not accept; the next interval may have one."""
        if self.state is ClientTelemetryState.TERMINATING_PUSH_IN_PROGRESS:
            self._transition(ClientTelemetryState.TERMINATED)
        elif self.state is ClientTelemetryState.PUSH_IN_PROGRESS:
            self._schedule_push(now)
            self._transition(ClientTelemetryState.PUSH_NEEDED)

    def failed(self, now: float, chance: float) -> None:
        """A request was lost, or no broker could be reached. A lost push may have arrived, so it is not repeated."""
        again = now + _RETRY_BACKOFF.wait_s(self._failures, chance)
        self._failures += 1
        match self.state:
            case ClientTelemetryState.SUBSCRIPTION_IN_PROGRESS:
                self._next_request_at = again
                self._transition(ClientTelemetryState.SUBSCRIPTION_NEEDED)
            case ClientTelemetryState.SUBSCRIPTION_NEEDED:
                self._next_request_at = max(self._next_request_at, again)
            case ClientTelemetryState.PUSH_IN_PROGRESS:
                self._schedule_push(now)
                self._transition(ClientTelemetryState.PUSH_NEEDED)
            case ClientTelemetryState.PUSH_NEEDED:
                self._next_request_at = max(self._next_request_at, again)
            case ClientTelemetryState.TERMINATING_PUSH_NEEDED | ClientTelemetryState.TERMINATING_PUSH_IN_PROGRESS:
                self._transition(ClientTelemetryState.TERMINATED)
            case ClientTelemetryState.TERMINATED:
                pass

    def unsupported(self, now: float) -> None:
        """The broker does not support telemetry; another one or a later release may. Retry after the default
        interval."""
        if self.state in (
            ClientTelemetryState.TERMINATING_PUSH_NEEDED,
            ClientTelemetryState.TERMINATING_PUSH_IN_PROGRESS,
        ):
            self._transition(ClientTelemetryState.TERMINATED)
        elif self.state is not ClientTelemetryState.TERMINATED:
            self._next_request_at = now + _INTERVAL_MS / 1000

    def _request_failed(self, code: int, now: float) -> None:
        match code:
            case c if c in (_UNKNOWN_SUBSCRIPTION_ID, _UNSUPPORTED_COMPRESSION_TYPE):
                self._next_request_at = now
                self._transition(ClientTelemetryState.SUBSCRIPTION_NEEDED)
            case c if c in (_TELEMETRY_TOO_LARGE, _THROTTLING_QUOTA_EXCEEDED):
                self._schedule_push(now)
                self._transition(ClientTelemetryState.SUBSCRIPTION_NEEDED)
            case _:
                # INVALID_REQUEST, INVALID_RECORD, UNSUPPORTED_VERSION, and unknown codes.
                self.termination_reason = error_name(code)
                self._transition(ClientTelemetryState.TERMINATED)

    def _schedule_push(self, now: float) -> None:
        self._next_request_at = (
            now + (_INTERVAL_MS if self.subscription is None else self.subscription.push_interval_ms) / 1000
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """The producer is closing: push a last time, if it has a subscription to push to."""
        if self.state in (ClientTelemetryState.PUSH_NEEDED, ClientTelemetryState.PUSH_IN_PROGRESS):
            self._transition(ClientTelemetryState.TERMINATING_PUSH_NEEDED)
        elif self.state in (ClientTelemetryState.SUBSCRIPTION_NEEDED, ClientTelemetryState.SUBSCRIPTION_IN_PROGRESS):
            self._transition(ClientTelemetryState.TERMINATED)

    def stop(self) -> None:
        """End the exchange; nothing more is sent."""
        if self.state is not ClientTelemetryState.TERMINATED:
            self._transition(ClientTelemetryState.TERMINATED)

    def _transition(self, state: ClientTelemetryState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state


def metric_selector(requested: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate that tests whether a metric name is requested."""
    if not requested:
        return lambda _name: False
    if _ALL in requested:
        return lambda _name: True
    prefixes = tuple(requested)
    return lambda name: name.startswith(prefixes)
