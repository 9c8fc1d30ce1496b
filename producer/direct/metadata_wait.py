"""Topics for the direct producer's callers: known ones at once, others are waited for."""

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
from ..accumulator.partitioners import Keyless
from ..kernel.chunks import Topic
from ..metadata.topic_waits import TopicKnown, TopicWait, TopicWaits, WaitFailure, WaitReason, known_in
from ..telemetry.metrics import Meters
from .environment import Seams, Wake
from .record_accumulator import WAIT_MAX_S, Rooms

TOPIC_CHARS_MAX: Final = 249
_TOPIC_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class Thread(Wake, Protocol):
    """What is asked of the sender thread."""

    def start(self) -> None: ...
    def request_topic(self, topic: str) -> None: ...
    def topic_of(self, number: int) -> tuple[str, int]: ...
    def close(self, timeout_s: float | None) -> None: ...
    def join(self, timeout_s: float | None = None) -> bool: ...
    def forget(self) -> None: ...
    def instance_id(self, timeout_s: float) -> UUID | None: ...


class Finding(Rooms):
    """Rooms whose topics can be waited for."""

    def __init__(
        self,
        settings: DirectSettings,
        seams: Seams,
        partitioner: Partitioner | None = None,
        keyless: Callable[[], Keyless] | None = None,
    ) -> None:
        super().__init__(settings, seams, partitioner, keyless)
        self.meters: Final = Meters(settings, self.pool, now=seams.now())
        self.started = False
        self._sender: Thread | None = None
        self._waits: Final = TopicWaits(self._known)

    @property
    def sender(self) -> Thread:
        """The sender thread."""
        assert self._sender is not None, "the front has no sender thread"
        return self._sender

    def _known(self, topic: str) -> TopicKnown:
        # The snapshot that a caller goes on with: the sender thread may have a newer one, which it has not told yet.
        return known_in(self.cluster, topic)

    def use(self, thread: Thread) -> None:
        """Both need each other: the thread is made with the front, then shown to it."""
        self._sender = thread
        self.attach(thread)

    def find(
        self, name: str, partition: int | None, timeout_s: float | None = None
    ) -> tuple[float, Topic | PenstockError]:
        """Wait for a topic, and for this partition of it. Returns when that began, and the topic or why there is none.

        Raises:
            TypeError: a name is text.
            ClosedError: the producer was closed meanwhile, or cannot go on.
        """
        began = self.seams.now()
        bad = self.check_name(name)
        if bad is not None:
            return began, bad
        limit_ms = self.settings.max_block_ms if timeout_s is None else int(timeout_s * 1000)
        with self.shared:
            wait = self.begin_wait(name, partition, limit_ms, began)
            if wait.outcome is None and self.hurry is not None:
                self._waits.cancel(wait)
                return began, self.hurry.topic()
            if wait.outcome is None and self.sender.is_current:
                self._waits.cancel(wait)
                return began, MetadataTimeoutError(
                    f"nothing is known of topic {name}, and a callback cannot wait for it"
                )
            self.ask_for(name)
            self._await(wait)
            return began, self.found(wait, began)

    def check_name(self, name: str) -> InvalidTopicError | None:
        """
        Raises:
            TypeError: a name is text.
        """
        if type(name) is not str:
            raise TypeError(f"a topic is {type(name).__name__}, not str")
        if 1 <= len(name) <= TOPIC_CHARS_MAX and name not in {".", ".."} and _TOPIC_ALPHABET.issuperset(name):
            return None
        text = f"{name!r} is not a topic: 1 to {TOPIC_CHARS_MAX} characters of A-Z a-z 0-9 . _ -"
        return InvalidTopicError(text)

    # --- under the lock ----------------------------------------------------------------------------------------------

    def begin_wait(self, name: str, partition: int | None, limit_ms: int, began: float) -> TopicWait:
        """A wait for a topic that has an outcome already, or is to be ended by `end_wait`.

        Raises:
            ClosedError: the producer takes no records any more.
        """
        self._start()
        if self.ending is not None:
            raise self.ending.with_traceback(None)
        return self._waits.begin(name, partition, max_block_ms=limit_ms, now=began)

    def ask_for(self, name: str) -> None:
        """Have the sender thread ask for a topic."""
        self.sender.want_topic(name)
        self._ask()

    def end_wait(self, wait: TopicWait) -> None:
        """Nobody waits for it any more; if its time is over it has an outcome now."""
        _ = self._waits.expire(self.seams.now())
        self._waits.cancel(wait)

    def found(self, wait: TopicWait, began: float) -> Topic | PenstockError:
        """What a wait with an outcome has brought.

        Raises:
            ClosedError: the producer was closed meanwhile.
        """
        name, outcome = wait.topic, wait.outcome
        if isinstance(outcome, WaitFailure):
            return self._no_topic(outcome)
        assert outcome is not None, "a wait that ended without an outcome"
        view = self.cluster.topic(name)
        if view is None or view.partition_count <= (wait.partition or 0):
            # Since it was there, and before this caller could go on.
            return MetadataTimeoutError(f"topic {name} is gone, or has fewer partitions now")
        topic = self.place(name, view)
        topic.used_at = began
        return topic

    def _await(self, wait: TopicWait) -> None:
        began = None if wait.outcome is not None else self.seams.now()
        try:
            while wait.outcome is None:
                _ = self.shared.wait(min(WAIT_MAX_S, max(0.0, wait.deadline - self.seams.now())))
                _ = self._waits.expire(self.seams.now())
        finally:
            self._waits.cancel(wait)
            if began is not None:
                now = self.seams.now()
                self.meters.waited_for_metadata(now - began, now)

    def _ask(self) -> None:
        for topic in self._waits.take_requests():
            self.sender.request_topic(topic)

    def _no_topic(self, failure: WaitFailure) -> PenstockError:
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
                raise self.ending or ClosedError(failure.text)

    def begin_thread(self) -> None:
        """Have the sender thread run.

        Raises:
            ClosedError: the producer is closed, or cannot go on.
        """
        with self.shared:
            if self.ending is not None:
                raise self.ending.with_traceback(None)
            self._start()

    def _start(self) -> None:
        if not self.started:
            self.sender.start()
            self.started = True

    def partitions(self, topic: str, timeout: float | None) -> list[PartitionMetadata]:
        """See `DirectProducer.partitions_for`."""
        _, found = self.find(topic, None, timeout)
        if not isinstance(found, Topic):
            found.topic = topic
            raise found
        return self.partitions_of(topic)
