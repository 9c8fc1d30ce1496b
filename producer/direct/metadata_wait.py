"""Blocks `send` until the topic's metadata is known."""

from collections.abc import Callable
from typing import Final, Protocol
from uuid import UUID

from ...api.errors import (
    AuthenticationError,
    ClosedError,
    InvalidTopicError,
    MetadataTimeoutError,
    PenstockError,
    TopicForbiddenError,
)
from ...api.metadata import PartitionMetadata
from ...api.partitioning import Partitioner
from ...config.direct import DirectSettings
from ..accumulator.partitioners import KeylessPartitioner
from ..kernel.chunks import AccumulatorTopic
from ..metadata.topic_waits import TopicSnapshot, TopicWait, TopicWaits, WaitFailure, WaitReason, topic_snapshot
from ..telemetry.metrics import ProducerMetrics
from .environment import Environment, SenderWaker
from .record_accumulator import WAIT_MAX_S, RecordAccumulator

TOPIC_CHARS_MAX: Final = 249
_TOPIC_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class SenderPort(SenderWaker, Protocol):
    """The methods of the sender thread that the front and the producer call."""

    def start(self) -> None: ...
    def request_topic(self, topic: str) -> None: ...
    def topic_of(self, number: int) -> tuple[str, int]: ...
    def close(self, timeout_s: float | None) -> None: ...
    def join(self, timeout_s: float | None = None) -> bool: ...
    def after_fork(self) -> None: ...
    def instance_id(self, timeout_s: float) -> UUID | None: ...


class MetadataWait(RecordAccumulator):
    """A record accumulator that can wait for the metadata of its topics."""

    def __init__(
        self,
        settings: DirectSettings,
        seams: Environment,
        partitioner: Partitioner | None = None,
        keyless: Callable[[], KeylessPartitioner] | None = None,
    ) -> None:
        super().__init__(settings, seams, partitioner, keyless)
        self.meters: Final = ProducerMetrics(settings, self.pool, now=seams.now())
        self.started = False
        self._sender: SenderPort | None = None
        self._waits: Final = TopicWaits(self._lookup_topic)

    @property
    def sender(self) -> SenderPort:
        """The sender thread."""
        assert self._sender is not None, "the front has no sender thread"
        return self._sender

    def _lookup_topic(self, topic: str) -> TopicSnapshot:
        # The front's own snapshot, which the caller will use: the sender thread may have a newer one.
        return topic_snapshot(self.cluster, topic)

    def connect_sender(self, thread: SenderPort) -> None:
        """Set the sender thread. It needs the front in its constructor, so it can only be set afterwards."""
        self._sender = thread
        self.set_waker(thread)

    def wait_for_metadata(
        self, name: str, partition: int | None, timeout_s: float | None = None
    ) -> tuple[float, AccumulatorTopic | PenstockError]:
        """Wait for a topic's metadata, including this partition. Returns the time at which the wait started, and the
        topic or an error.

        Raises:
            TypeError: the name is not a str.
            ClosedError: the producer was closed meanwhile, or has failed.
        """
        began = self.environment.now()
        bad = self.check_name(name)
        if bad is not None:
            return began, bad
        limit_ms = self.settings.max_block_ms if timeout_s is None else int(timeout_s * 1000)
        with self.condition:
            wait = self.begin_wait(name, partition, limit_ms, began)
            if wait.outcome is None and self.would_block is not None:
                self._waits.cancel(wait)
                return began, self.would_block.on_missing_topic()
            if wait.outcome is None and self.sender.is_current:
                self._waits.cancel(wait)
                return began, MetadataTimeoutError(f"no metadata for topic {name} yet, and a callback must not block")
            self.request_metadata(name)
            self._await(wait)
            return began, self.wait_result(wait, began)

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

    def begin_wait(self, name: str, partition: int | None, limit_ms: int, began: float) -> TopicWait:
        """Start a wait for a topic. Unless it has an outcome at once, the caller must end it with `end_wait`.

        Raises:
            ClosedError: the producer is closed.
        """
        self._start_sender()
        if self.closed_error is not None:
            raise self.closed_error.with_traceback(None)
        return self._waits.begin(name, partition, max_block_ms=limit_ms, now=began)

    def request_metadata(self, name: str) -> None:
        """Make the sender thread request a topic's metadata."""
        self.sender.want_topic(name)
        self._send_metadata_requests()

    def end_wait(self, wait: TopicWait) -> None:
        """End a wait. If its deadline has passed, it has an outcome now."""
        _ = self._waits.expire(self.environment.now())
        self._waits.cancel(wait)

    def wait_result(self, wait: TopicWait, began: float) -> AccumulatorTopic | PenstockError:
        """The topic or error of a wait that has an outcome.

        Raises:
            ClosedError: the producer was closed meanwhile.
        """
        name, outcome = wait.topic, wait.outcome
        if isinstance(outcome, WaitFailure):
            return self._wait_error(outcome)
        assert outcome is not None, "a wait that ended without an outcome"
        view = self.cluster.topic(name)
        if view is None or view.partition_count <= (wait.partition or 0):
            # The topic changed after the wait had its outcome, and before this caller ran.
            return MetadataTimeoutError(f"topic {name} is gone, or has fewer partitions now")
        topic = self.update_topic(name, view)
        topic.used_at = began
        return topic

    def _await(self, wait: TopicWait) -> None:
        began = None if wait.outcome is not None else self.environment.now()
        try:
            while wait.outcome is None:
                _ = self.condition.wait(min(WAIT_MAX_S, max(0.0, wait.deadline - self.environment.now())))
                _ = self._waits.expire(self.environment.now())
        finally:
            self._waits.cancel(wait)
            if began is not None:
                now = self.environment.now()
                self.meters.waited_for_metadata(now - began, now)

    def _send_metadata_requests(self) -> None:
        for topic in self._waits.take_requests():
            self.sender.request_topic(topic)

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
                raise self.closed_error or ClosedError(failure.text)

    def ensure_started(self) -> None:
        """Start the sender thread if it was not started.

        Raises:
            ClosedError: the producer is closed or has failed.
        """
        with self.condition:
            if self.closed_error is not None:
                raise self.closed_error.with_traceback(None)
            self._start_sender()

    def _start_sender(self) -> None:
        if not self.started:
            self.sender.start()
            self.started = True

    def partitions(self, topic: str, timeout: float | None) -> list[PartitionMetadata]:
        """See `DirectProducer.partitions_for`."""
        _, found = self.wait_for_metadata(topic, None, timeout)
        if not isinstance(found, AccumulatorTopic):
            found.topic = topic
            raise found
        return self.partitions_of(topic)
