"""Calls the application's partitioner, and caches the partitions that it needs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from ..api.metadata import PartitionMetadata
from ..api.partitioning import Partitioner, choose_partition

MAX_AGE_S: Final = 30.0
TOPICS_MAX: Final = 1_024

OnPartitions = Callable[[Sequence[PartitionMetadata]], None]


class PartitionSource(Protocol):
    """Source of topics' partitions."""

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """Return the topic's partitions, blocking until they are known."""
        ...

    def ask_partitions(self, topic: str, learn: OnPartitions) -> None:
        """Request the partitions without waiting. On success, `learn` is called later on another thread."""


@dataclass(slots=True)
class _CachedPartitions:
    partitions: Sequence[PartitionMetadata]
    due_at: float


class PartitionCache:
    """Caches topics' partitions. Stale entries are used while they are renewed: topics rarely grow, and never shrink.

    Any thread may use it: every operation is one look-up or one assignment.
    """

    def __init__(self, *, max_age_s: float, topics_max: int) -> None:
        """`max_age_s`: least time between two requests for a topic, successful or not. `topics_max`: most topics
        cached; the one learnt first is evicted first."""
        self._max_age_s: Final = max_age_s
        self._topics_max: Final = topics_max
        self._topics: dict[str, _CachedPartitions] = {}

    def get(self, topic: str) -> Sequence[PartitionMetadata] | None:
        """Return the topic's partitions, or None if unknown."""
        known = self._topics.get(topic)
        return None if known is None else known.partitions

    def is_due(self, topic: str, now: float) -> bool:
        """Whether to request the partitions again. True at most once per `max_age_s`."""
        known = self._topics.get(topic)
        if known is None or now < known.due_at:
            return False
        known.due_at = now + self._max_age_s
        return True

    def learn(self, topic: str, partitions: Sequence[PartitionMetadata], now: float) -> None:
        """Store the daemon's answer."""
        if topic not in self._topics and len(self._topics) >= self._topics_max:
            _ = self._topics.pop(next(iter(self._topics)), None)
        self._topics[topic] = _CachedPartitions(tuple(partitions), now + self._max_age_s)


class PartitionSelector:
    """Calls the partitioner. Its exceptions, and errors in its result, are raised to the sender."""

    def __init__(self, partitioner: Partitioner, *, max_age_s: float = MAX_AGE_S) -> None:
        self._partitioner: Final = partitioner
        self._cache: Final = PartitionCache(max_age_s=max_age_s, topics_max=TOPICS_MAX)

    def select(self, source: PartitionSource, topic: str, key: bytes | None, value: bytes | None) -> int | None:
        """Choose the partition of one record. Returns None if the daemon is to choose.

        Raises:
            TypeError, ValueError: the partitioner's result is not a partition of the topic.
            RefusedError, WaitTimeoutError, ClosedError, RuntimeError: the topic's partitions are unknown, see
                `partitions_for`.
        """
        return choose_partition(self._partitioner, topic, key, value, self._partitions(source, topic))

    def select_many(self, source: PartitionSource, topic: str, columns: Sequence[object], count: int) -> object:
        """Return the partitions column for `count` records, choosing a partition where none is given. `columns` starts
        with partitions, keys and values.

        Raises:
            TypeError, ValueError, RefusedError, WaitTimeoutError, ClosedError, RuntimeError: as `select`.
        """
        given = columns[0]
        if isinstance(given, int):
            return given
        named = cast("Sequence[int | None]", given or (None,) * count)
        keys = cast("Sequence[object]", columns[1] or (None,) * count)
        values = cast("Sequence[object]", columns[2])
        partitions = self._partitions(source, topic)
        return [
            choose_partition(self._partitioner, topic, _bytes(key), _bytes(value), partitions)
            if number is None
            else number
            for number, key, value in zip(named, keys, values, strict=True)
        ]

    def has_partitions(self, topic: str) -> bool:
        """Whether the topic's partitions are known already."""
        return self._cache.get(topic) is not None

    def learn(self, topic: str, partitions: Sequence[PartitionMetadata]) -> None:
        """Remember a topic's partitions."""
        self._cache.learn(topic, partitions, time.monotonic())

    def _partitions(self, source: PartitionSource, topic: str) -> Sequence[PartitionMetadata]:
        known = self._cache.get(topic)
        if known is None:
            known = source.partitions_for(topic)
            self.learn(topic, known)
        elif self._cache.is_due(topic, time.monotonic()):
            source.ask_partitions(topic, lambda found: self.learn(topic, found))
        return known


def _bytes(given: object) -> bytes | None:
    """Return a key or value as the partitioner sees it.

    Raises:
        TypeError: neither bytes-like nor None.
    """
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise TypeError(f"keys and values are bytes or None, not {type(given).__name__}")
