"""What is known of the partitions of the topics that an application's own partitioner is asked about, and how old it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...api.metadata import PartitionMetadata


@dataclass(slots=True)
class _CachedPartitions:
    partitions: Sequence[PartitionMetadata]
    due_at: float


class PartitionCache:
    """Knowledge is used however old it is, and renewed while it is: a topic grows seldom, and never shrinks.

    Any thread may use it: every operation is one look-up or one assignment.
    """

    def __init__(self, *, max_age_s: float, topics_max: int) -> None:
        """`max_age_s`: for so long it is not asked for again, whether or not that succeeded. `topics_max`: most that is
        remembered; what was learnt first is forgotten first."""
        self._max_age_s: Final = max_age_s
        self._topics_max: Final = topics_max
        self._topics: dict[str, _CachedPartitions] = {}

    def get(self, topic: str) -> Sequence[PartitionMetadata] | None:
        """None: nothing is known of the topic."""
        known = self._topics.get(topic)
        return None if known is None else known.partitions

    def is_due(self, topic: str, now: float) -> bool:
        """It is time to ask again. True once in `max_age_s`."""
        known = self._topics.get(topic)
        if known is None or now < known.due_at:
            return False
        known.due_at = now + self._max_age_s
        return True

    def learn(self, topic: str, partitions: Sequence[PartitionMetadata], now: float) -> None:
        """The daemon answered."""
        if topic not in self._topics and len(self._topics) >= self._topics_max:
            _ = self._topics.pop(next(iter(self._topics)), None)
        self._topics[topic] = _CachedPartitions(tuple(partitions), now + self._max_age_s)
