"""Caches the partitions of the topics that the application's partitioner is called for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...api.metadata import PartitionMetadata


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
