"""Who waits for a topic's metadata: tickets with deadlines, for `send` and `partitions_for`. Nothing blocks here: whoever
waits looks at the ticket's outcome, whoever brings metadata tells of it (MDW-1 … MDW-6).

Not locked: application threads and the sender thread call it under the producer's lock. Whoever begins a wait wants the topic's
metadata kept, too (MDW-2).
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from ..protocol.error_codes import INVALID_TOPIC, NONE, TopicErrorClass, classify_topic_error, error_name
from .cluster import Cluster


class TopicSnapshot(NamedTuple):
    """What a snapshot says of one topic."""

    partition_count: int
    """0: not known."""
    code: int
    """Kafka's code of what is wrong with it; 0: nothing."""
    updated_version: int
    """Version of the snapshot that last said something of it; 0: none did."""


def topic_snapshot(cluster: Cluster, name: str) -> TopicSnapshot:
    """What a snapshot says to who waits. A topic that the last answer did not know has no partitions."""
    found = cluster.topic(name)
    if found is None:
        return TopicSnapshot(0, NONE, 0)
    missing = classify_topic_error(found.code) is TopicErrorClass.MISSING
    return TopicSnapshot(0 if missing else found.partition_count, found.code, found.updated_version)


class WaitReason(Enum):
    """Why a wait failed; the front makes one exception of each."""

    TIMEOUT = auto()
    INVALID_TOPIC = auto()
    FORBIDDEN = auto()
    UNAUTHENTICATED = auto()
    CLOSED = auto()
    """The producer was closed, or can never go on; the front knows which."""


class WaitFailure(NamedTuple):
    """Kafka's words for it. `cause`: Kafka's name of the topic's last error, or why no broker could be asked; None: nothing is
    known."""

    reason: WaitReason
    text: str
    cause: str | None


_CLOSED: Final = WaitFailure(
    WaitReason.CLOSED, "Producer closed while send in progress", "Requested metadata update after close"
)


class TopicWait:
    """One ticket. `outcome` is the partition count, a failure, or None while it waits."""

    __slots__ = ("_baseline_version", "deadline", "max_block_ms", "outcome", "partition", "topic")

    def __init__(self, topic: str, partition: int | None, max_block_ms: int, now: float) -> None:
        self.topic = topic
        self.partition = partition
        self.max_block_ms = max_block_ms
        self.deadline = now + max_block_ms / 1000
        """CLOCK_MONOTONIC seconds."""
        self.outcome: int | WaitFailure | None = None
        self._baseline_version = 0

    def set_baseline(self, version: int) -> None:
        """Only what is told after this version counts as an answer to it."""
        self._baseline_version = version

    def is_answered_by(self, known: TopicSnapshot) -> bool:
        return known.updated_version > self._baseline_version


class TopicWaits:
    """All tickets of a producer. `lookup` reads the snapshot that the caller goes on with."""

    def __init__(self, lookup: Callable[[str], TopicSnapshot]) -> None:
        self._lookup = lookup
        self._waits: dict[TopicWait, None] = {}
        self._requests: dict[str, None] = {}
        self._last_connection_error: str | None = None
        """Why no broker could be asked, since one last answered."""
        self._closed = False

    # --- application threads -----------------------------------------------------------------------------------------

    def begin(self, topic: str, partition: int | None, *, max_block_ms: int, now: float) -> TopicWait:
        """A ticket for the topic, and for this partition of it unless None. What is known already ends it at once; else the
        sender thread is to be woken for `take_requests`."""
        wait = TopicWait(topic, partition, max_block_ms, now)
        if self._closed:
            wait.outcome = _CLOSED
            return wait
        known = self._lookup(topic)
        if known.code == INVALID_TOPIC:
            wait.outcome = _refusal(topic, known.code)
        elif _has(known, partition):
            wait.outcome = known.partition_count
        elif max_block_ms <= 0:
            wait.outcome = self._timeout(wait, known)
            self._requests[topic] = None
        else:
            wait.set_baseline(known.updated_version)
            self._waits[wait] = None
            self._requests[topic] = None
        return wait

    def cancel(self, wait: TopicWait) -> None:
        """Nobody waits for it any more (the thread was interrupted)."""
        _ = self._waits.pop(wait, None)

    # --- the sender thread -------------------------------------------------------------------------------------------

    def take_requests(self) -> list[str]:
        """Topics whose metadata somebody waits for and that are to be asked for now, each once."""
        taken, self._requests = list(self._requests), {}
        return taken

    def metadata_updated(self, now: float) -> list[TopicWait]:
        """A Metadata answer was merged. The waits that ended; the others' topics are asked for again."""
        self._last_connection_error = None
        return self._end(now, self._after_update)

    def connection_failed(self, reason: str) -> None:
        """The broker that was asked is gone, or cannot be reached. Others may be; who waits in vain is told of it."""
        self._last_connection_error = reason

    def authentication_failed(self, reason: str) -> list[TopicWait]:
        """Nobody is left who believes who we are, or whom we believe: waiting will not change that. All waits end; those that
        begin from now on end with the next refusal."""
        ended = list(self._waits)
        self._waits.clear()
        for wait in ended:
            wait.outcome = WaitFailure(WaitReason.UNAUTHENTICATED, reason, None)
        return ended

    def expire(self, now: float) -> list[TopicWait]:
        """The waits whose time is over."""
        return self._end(now, self._after_time)

    def close(self) -> list[TopicWait]:
        """Release all; nobody can wait from now on."""
        self._closed = True
        ended = list(self._waits)
        self._waits.clear()
        for wait in ended:
            wait.outcome = _CLOSED
        return ended

    def next_deadline(self) -> float | None:
        """When `expire` is wanted (CLOCK_MONOTONIC seconds)."""
        return min((wait.deadline for wait in self._waits), default=None)

    # -----------------------------------------------------------------------------------------------------------------

    def _end(
        self, now: float, judge: Callable[[TopicWait, TopicSnapshot, float], int | WaitFailure | None]
    ) -> list[TopicWait]:
        ended: list[TopicWait] = []
        seen: dict[str, TopicSnapshot] = {}
        for wait in self._waits:
            if wait.topic not in seen:
                seen[wait.topic] = self._lookup(wait.topic)
            wait.outcome = judge(wait, seen[wait.topic], now)
            if wait.outcome is not None:
                ended.append(wait)
        for wait in ended:
            del self._waits[wait]
        return ended

    def _after_update(self, wait: TopicWait, known: TopicSnapshot, now: float) -> int | WaitFailure | None:
        if now >= wait.deadline:
            return self._timeout(wait, known)
        if wait.is_answered_by(known) and classify_topic_error(known.code) is TopicErrorClass.REFUSED:
            return _refusal(wait.topic, known.code)
        if _has(known, wait.partition):
            return known.partition_count
        self._requests[wait.topic] = None
        return None

    def _after_time(self, wait: TopicWait, known: TopicSnapshot, now: float) -> WaitFailure | None:
        return self._timeout(wait, known) if now >= wait.deadline else None

    def _timeout(self, wait: TopicWait, known: TopicSnapshot) -> WaitFailure:
        # A refusal is not why the time ran out.
        passing = known.code != NONE and classify_topic_error(known.code) is not TopicErrorClass.REFUSED
        cause = error_name(known.code) if passing else self._last_connection_error
        return WaitFailure(WaitReason.TIMEOUT, _timeout_text(wait, known), cause)


def _has(known: TopicSnapshot, partition: int | None) -> bool:
    return known.partition_count > 0 and (partition is None or partition < known.partition_count)


def _refusal(topic: str, code: int) -> WaitFailure:
    if code == INVALID_TOPIC:
        return WaitFailure(WaitReason.INVALID_TOPIC, f"Invalid topics: [{topic}]", error_name(code))
    return WaitFailure(WaitReason.FORBIDDEN, f"Not authorized to access topics: [{topic}]", error_name(code))


def _timeout_text(wait: TopicWait, known: TopicSnapshot) -> str:
    after = f"in metadata after {wait.max_block_ms} ms."
    if known.partition_count > 0 and wait.partition is not None:
        count = known.partition_count
        return f"Partition {wait.partition} of topic {wait.topic} with partition count {count} is not present {after}"
    return f"Topic {wait.topic} not present {after}"
