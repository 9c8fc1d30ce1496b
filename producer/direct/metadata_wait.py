"""Blocks `send` until the topic's metadata is known."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from ...api.errors import (
    AuthenticationError,
    ClosedError,
    InvalidTopicError,
    MetadataTimeoutError,
    PenstockError,
    TopicForbiddenError,
)
from ...config.direct import DirectSettings
from ..kernel.chunks import AccumulatorTopic
from ..metadata.topic_waits import TopicWait, TopicWaits, WaitFailure, WaitReason, topic_snapshot
from ..telemetry.metrics import ProducerMetrics
from .accumulator_topics import AccumulatorTopics
from .completion import WAIT_MAX_S
from .environment import Environment, SenderPort
from .nonblocking import WouldBlock
from .record_accumulator import RecordAccumulator

TOPIC_CHARS_MAX: Final = 249
_TOPIC_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class MetadataWait:
    """The callers that wait for a topic; it also starts the sender thread, which requests the metadata."""

    sender: SenderPort
    """Set by `Front.connect_sender`."""

    def __init__(
        self,
        settings: DirectSettings,
        environment: Environment,
        topics: AccumulatorTopics,
        accumulator: RecordAccumulator,
        meters: ProducerMetrics,
    ) -> None:
        self.started = False
        """Whether the sender thread was started."""
        self.would_block: WouldBlock | None = None
        """Set in non-blocking mode, asked instead of waiting."""
        self._settings: Final = settings
        self._environment: Final = environment
        self._lock: Final = environment.condition
        self._topics: Final = topics
        self._accumulator: Final = accumulator
        self._meters: Final = meters
        # The topics' own snapshot, which the caller will use: the sender thread may have a newer one.
        self._waits: Final = TopicWaits(lambda name: topic_snapshot(topics.cluster, name))

    def wait_for_metadata(
        self, name: str, partition: int | None, timeout_s: float | None = None
    ) -> tuple[float, AccumulatorTopic | PenstockError]:
        """Wait for a topic's metadata, including this partition, at most `timeout_s` (`max.block.ms` by default).
        Returns the time at which the wait started, and the topic or an error.

        Raises:
            TypeError: the name is not a str.
            ClosedError: the producer was closed meanwhile, or has failed.
        """
        began = self._environment.now()
        bad = self.check_name(name)
        if bad is not None:
            return began, bad
        with self._lock:
            wait = self._begin(name, partition, timeout_s, began)
            if wait.outcome is None and self.would_block is not None:
                self._waits.cancel(wait)
                return began, self.would_block.on_missing_topic()
            if wait.outcome is None and self.sender.is_current:
                self._waits.cancel(wait)
                return began, MetadataTimeoutError(f"no metadata for topic {name} yet, and a callback must not block")
            self._request(name)
            self._block(wait)
            return began, self._result(wait, began)

    @contextmanager
    def waiting(
        self, name: str, partition: int | None, timeout_s: float | None, began: float
    ) -> Generator[TopicWait, None, None]:
        """The same for a caller that must not block: inside the block it polls `outcome`, until `deadline` at most, and
        after it calls `result`.

        Raises:
            ClosedError: the producer is closed.
        """
        with self._lock:
            wait = self._begin(name, partition, timeout_s, began)
            self._request(name)
        try:
            yield wait
        finally:
            with self._lock:
                now = self._environment.now()
                _ = self._waits.expire(now)
                self._waits.cancel(wait)
                self._meters.waited_for_metadata(now - began, now)

    def result(self, wait: TopicWait, began: float) -> AccumulatorTopic | PenstockError:
        """The topic or error of a wait that has ended.

        Raises:
            ClosedError: the producer was closed meanwhile.
        """
        with self._lock:
            return self._result(wait, began)

    def ensure_started(self) -> None:
        """Start the sender thread if it was not started.

        Raises:
            ClosedError: the producer is closed or has failed.
        """
        with self._lock:
            if self._accumulator.closed_error is not None:
                raise self._accumulator.closed_error.with_traceback(None)
            self._start_sender()

    def check_name(self, name: str) -> InvalidTopicError | None:
        """The error for an invalid topic name, None for a valid one.

        Raises:
            TypeError: the name is not a str.
        """
        if type(name) is not str:
            raise TypeError(f"a topic is {type(name).__name__}, not str")
        if 1 <= len(name) <= TOPIC_CHARS_MAX and name not in {".", ".."} and _TOPIC_ALPHABET.issuperset(name):
            return None
        text = f"{name!r} is not a topic: 1 to {TOPIC_CHARS_MAX} characters of A-Z a-z 0-9 . _ -"
        return InvalidTopicError(text)

    # --- under the lock ----------------------------------------------------------------------------------------------

    def metadata_updated(self) -> None:
        """A new snapshot was applied to the topics."""
        _ = self._waits.metadata_updated(self._environment.now())
        self._send_requests()

    def brokers_lost(self, reason: str, *, refused: bool) -> bool:
        """The metadata connection has ended. `refused`: no broker accepts the login, so waiting will not help. True:
        this has ended waits."""
        self._waits.connection_failed(reason)
        return refused and bool(self._waits.authentication_failed(reason))

    def close(self) -> None:
        """End all waits: the producer is closed."""
        _ = self._waits.close()

    def _begin(self, name: str, partition: int | None, timeout_s: float | None, began: float) -> TopicWait:
        self._start_sender()
        if self._accumulator.closed_error is not None:
            raise self._accumulator.closed_error.with_traceback(None)
        limit_ms = self._settings.max_block_ms if timeout_s is None else int(timeout_s * 1000)
        return self._waits.begin(name, partition, max_block_ms=limit_ms, now=began)

    def _start_sender(self) -> None:
        if not self.started:
            self.sender.start()
            self.started = True

    def _request(self, name: str) -> None:
        """Make the sender thread request a topic's metadata."""
        self.sender.want_topic(name)
        self._send_requests()

    def _send_requests(self) -> None:
        for topic in self._waits.take_requests():
            self.sender.request_topic(topic)

    def _block(self, wait: TopicWait) -> None:
        """Wait until there is an outcome."""
        began = None if wait.outcome is not None else self._environment.now()
        try:
            while wait.outcome is None:
                _ = self._lock.wait(min(WAIT_MAX_S, max(0.0, wait.deadline - self._environment.now())))
                _ = self._waits.expire(self._environment.now())
        finally:
            self._waits.cancel(wait)
            if began is not None:
                now = self._environment.now()
                self._meters.waited_for_metadata(now - began, now)

    def _result(self, wait: TopicWait, began: float) -> AccumulatorTopic | PenstockError:
        name, outcome = wait.topic, wait.outcome
        if isinstance(outcome, WaitFailure):
            return self._wait_error(outcome)
        assert outcome is not None, "a wait that ended without an outcome"
        view = self._topics.cluster.topic(name)
        if view is None or view.partition_count <= (wait.partition or 0):
            # The topic changed after the wait had its outcome, and before this caller ran.
            return MetadataTimeoutError(f"topic {name} is gone, or has fewer partitions now")
        topic = self._topics.update(name, view)
        topic.used_at = began
        return topic

    def _wait_error(self, failure: WaitFailure) -> PenstockError:
        match failure.reason:
            case WaitReason.TIMEOUT:
                return MetadataTimeoutError(failure.text, failure.cause)
            case WaitReason.INVALID_TOPIC:
                return InvalidTopicError(failure.text)
            case WaitReason.FORBIDDEN:
                return TopicForbiddenError(failure.text)
            case WaitReason.UNAUTHENTICATED:
                return AuthenticationError(failure.text)
            case WaitReason.CLOSED:
                raise self._accumulator.closed_error or ClosedError(failure.text)
