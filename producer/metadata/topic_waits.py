"""Waits for a topic's metadata, with deadlines, for `send` and `partitions_for` (MDW-1 … MDW-6).

Nothing blocks here: a waiter polls the `outcome` of its `TopicWait`, and the sender thread reports metadata updates.
Not locked: application threads and the sender thread call it under the producer's lock. The caller that begins a wait
must also keep the topic's metadata wanted (MDW-2).
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from ..protocol.error_codes import INVALID_TOPIC, NONE, TopicErrorClass, classify_topic_error, error_name
from .cluster import Cluster


class TopicSnapshot(NamedTuple):
    """The state of one topic in a `Cluster` snapshot."""

    partition_count: int
    """0: unknown."""
    code: int
    """Kafka's error code of the topic; 0: no error."""
    updated_version: int
    """Version of the snapshot whose response last included the topic; 0: none did."""


def topic_snapshot(cluster: Cluster, name: str) -> TopicSnapshot:
    """The topic's state for a waiter. A topic that the last response reported as missing has no partitions."""
    found = cluster.topic(name)
    if found is None:
        return TopicSnapshot(0, NONE, 0)
    missing = classify_topic_error(found.code) is TopicErrorClass.MISSING
    return TopicSnapshot(0 if missing else found.partition_count, found.code, found.updated_version)


class WaitReason(Enum):
    """Why a wait failed. The producer raises one exception for each."""

    TIMEOUT = auto()
    INVALID_TOPIC = auto()
    FORBIDDEN = auto()
    UNAUTHENTICATED = auto()
    CLOSED = auto()
    """The producer was closed or has failed permanently; the caller knows which."""


class WaitFailure(NamedTuple):
    """A failed wait. `text`: Kafka's error message. `cause`: Kafka's name of the topic's last error, or
    why no broker could be queried; None: unknown."""

    reason: WaitReason
    text: str
    cause: str | None


_CLOSED: Final = WaitFailure(
    WaitReason.CLOSED, "Producer closed while send in progress", "Requested metadata update after close"
)


class TopicWait:
    """One wait. `outcome` is the partition count, a failure, or None while still waiting."""

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
        """Accept only errors reported by a snapshot newer than this version."""
        self._baseline_version = version

    def is_answered_by(self, known: TopicSnapshot) -> bool:
        return known.updated_version > self._baseline_version


class TopicWaits:
    """All waits of a producer. `lookup` returns a topic's state in the producer's current snapshot."""

    def __init__(self, lookup: Callable[[str], TopicSnapshot]) -> None:
        self._lookup = lookup
        self._waits: dict[TopicWait, None] = {}
        self._requests: dict[str, None] = {}
        """Topics that the next `take_requests` returns."""
        self._last_connection_error: str | None = None
        """Why the last broker could not be queried, since the last Metadata response."""
        self._closed = False

    # --- application threads -----------------------------------------------------------------------------------------

    def begin(self, topic: str, partition: int | None, *, max_block_ms: int, now: float) -> TopicWait:
        """Start a wait for the topic, and for this partition of it unless None. Known metadata completes it at once;
        otherwise the caller must wake the sender thread for `take_requests`."""
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
        """Remove a wait whose thread was interrupted."""
        _ = self._waits.pop(wait, None)

    # --- the sender thread -------------------------------------------------------------------------------------------

    def take_requests(self) -> list[str]:
        """Remove and return the topics to query now because of a wait, each once."""
        taken, self._requests = list(self._requests), {}
        return taken

    def metadata_updated(self, now: float) -> list[TopicWait]:
        """A Metadata response was merged. Returns the waits that ended; requests the topics of the others again."""
        self._last_connection_error = None
        return self._end(now, self._after_update)

    def connection_failed(self, reason: str) -> None:
        """Record that the connection to a broker was lost or failed. Waits continue, because other brokers may respond;
        a wait that times out reports `reason` as its cause."""
        self._last_connection_error = reason

    def authentication_failed(self, reason: str) -> list[TopicWait]:
        """Authentication failed with every broker, so waiting is pointless. Ends all waits and returns them; waits that
        begin later end with the next such failure."""
        ended = list(self._waits)
        self._waits.clear()
        for wait in ended:
            wait.outcome = WaitFailure(WaitReason.UNAUTHENTICATED, reason, None)
        return ended

    def expire(self, now: float) -> list[TopicWait]:
        """End the waits whose deadline has passed, and return them."""
        return self._end(now, self._after_time)

    def close(self) -> list[TopicWait]:
        """End all waits and return them. Later waits fail at once."""
        self._closed = True
        ended = list(self._waits)
        self._waits.clear()
        for wait in ended:
            wait.outcome = _CLOSED
        return ended

    def next_deadline(self) -> float | None:
        """When to call `expire` next (CLOCK_MONOTONIC seconds)."""
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
        # Only a transient error can explain a timeout; a refusal cannot.
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
