"""A process's metadata cache: keeps the `Cluster` snapshot and the `MetadataUpdater`, which plans the queries, in step.

The snapshot is replaced by assigning one reference, so readers of `cluster` in other threads see a consistent state
(MET-16). Everything else belongs to the thread that talks to the brokers.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from ..protocol.error_codes import (
    INVALID_TOPIC,
    NONE,
    REBOOTSTRAP_REQUIRED,
    TopicErrorClass,
    classify_topic_error,
    error_name,
)
from .cluster import BrokerAddress, Cluster, ClusterChange, MetadataAnswer, TopicView
from .refresh import MetadataUpdater, MetadataUpdaterLimits, TopicMetadataQuery, TopicStatus


class CacheOptions(NamedTuple):
    """Options that differ between programs."""

    auto_create: bool
    """Brokers may create queried topics: an unknown topic is then never reported as missing."""
    topic_settings: bool
    """Whether to query the settings of topics too."""
    in_use: Callable[[], AbstractSet[str]]
    """Topics that are not idle, however long ago they were wanted."""


class MetadataMerged(NamedTuple):
    """The response was merged. `reconnect`: replace the connection by one to a known node."""

    change: ClusterChange
    reconnect: bool


class MetadataRejected(NamedTuple):
    """The response is unusable: drop the connection and query another broker."""

    reason: str


class RebootstrapRequested(NamedTuple):
    """The broker requested a rebootstrap: drop the connection and use the bootstrap addresses (KIP-1102)."""


MetadataResult = MetadataMerged | MetadataRejected | RebootstrapRequested


class MetadataCache:
    """One per process. Use `updater` for the next queries and for lost connections; pass Metadata responses here."""

    def __init__(
        self, limits: MetadataUpdaterLimits, bootstrap: Sequence[tuple[str, int]], options: CacheOptions, *, now: float
    ) -> None:
        self.cluster = Cluster()
        self.updater = MetadataUpdater(limits, bootstrap, now=now)
        self._options = options
        self._closed = False

    # --- reading the snapshot; from any thread -----------------------------------------------------------------------

    def topic(self, name: str) -> TopicView | None:
        """The topic's metadata; None if nothing is known, or none of its partitions yet."""
        found = self.cluster.topic(name)
        return found if found is not None and found.partitions else None

    def topic_error(self, name: str) -> str | None:
        """Kafka's name of the error that brokers report for the topic. "Unknown topic" counts from the second response
        on, and never if brokers may create the topic."""
        found = self.cluster.topic(name)
        if found is None or found.code == NONE:
            return None
        if classify_topic_error(found.code) is TopicErrorClass.MISSING and not self._is_missing(name):
            return None
        return error_name(found.code)

    # --- wanted topics -----------------------------------------------------------------------------------------------

    def want(self, topic: str, now: float) -> None:
        """Keep this topic's metadata and reset its idle time. Cheap to repeat."""
        _ = self.updater.want(topic, now)

    def forget(self, topic: str) -> None:
        """Drop the topic: it is no longer used."""
        self.updater.forget(topic)
        self.cluster = self.cluster.without_topics([topic])

    def seed(self, topic: str, topic_id: bytes | None, leader_epochs: Mapping[int, int]) -> None:
        """Restore leader epochs recorded by an earlier process: older epochs are ignored (HO-16)."""
        self.cluster = self.cluster.with_floors(topic, topic_id, leader_epochs)

    def apply_leader_hint(
        self, topic: str, index: int, leader: int, leader_epoch: int, address: BrokerAddress | None, now: float
    ) -> ClusterChange:
        """Apply the new leader named in a Produce response. Refreshes metadata whether or not it is newer, limited by
        the backoff, so that two brokers that name each other do not cause a query loop (MET-14)."""
        self.updater.refresh(now)
        self.cluster, change = self.cluster.apply_leader_hint(topic, index, leader, leader_epoch, address)
        return change

    # --- responses ---------------------------------------------------------------------------------------------------

    def apply_response(
        self, ask: TopicMetadataQuery, answer: MetadataAnswer, now: float, chance: float
    ) -> MetadataResult:
        """Merge the Metadata response to the query `ask`. The query of a rejected response is repeated."""
        assert not self._closed, "nobody asks any more, so nobody is answered"
        if answer.code == REBOOTSTRAP_REQUIRED:
            self.updater.queries_failed([ask], now, chance)
            if self.updater.rebootstrap():
                return RebootstrapRequested()
            return MetadataRejected("a broker sends us back to the bootstrap addresses, which the settings do not want")
        if answer.code != NONE or not answer.brokers:
            self.updater.queries_failed([ask], now, chance)
            return MetadataRejected(f"Metadata was answered with {error_name(answer.code)} and no brokers")
        if self.cluster.cluster_id and answer.cluster_id and answer.cluster_id != self.cluster.cluster_id:
            # Our producer ids and offsets are meaningless in another cluster.
            self.updater.queries_failed([ask], now, chance)
            return MetadataRejected(f"it belongs to cluster {answer.cluster_id}, not {self.cluster.cluster_id}")
        return self._merge(ask, answer, now, chance)

    def close(self) -> None:
        """Accept no more responses (MET-5)."""
        self._closed = True

    # -----------------------------------------------------------------------------------------------------------------

    def _merge(self, ask: TopicMetadataQuery, answer: MetadataAnswer, now: float, chance: float) -> MetadataMerged:
        missing_before = {topic for topic in ask.topics if self._is_missing(topic)}
        # Topics forgotten in the meantime would otherwise stay in the snapshot forever.
        wanted = [topic for topic in answer.topics if self.updater.is_wanted(topic.name)]
        merged, change = self.cluster.merge(answer._replace(topics=wanted))
        news = {topic: _topic_status(merged, topic) for topic in ask.topics}
        self.updater.answered_topics(ask, news, changed=bool(change), now=now, chance=chance)
        dropped = self.updater.expired(now, self._options.in_use)
        self.cluster = merged.without_topics(dropped) if dropped else merged
        for topic, told in news.items():
            if told is TopicStatus.SETTLED and self._options.topic_settings and self.topic(topic) is not None:
                self.updater.want_settings(topic, now)
        if change.nodes_gone:
            # Partitions of topics outside this response may have lost their leader too.
            self.updater.refresh(now)
        missing = tuple(topic for topic in ask.topics if self._is_missing(topic) and topic not in missing_before)
        if missing or dropped:
            change = replace(change, topics_missing=missing, topics_dropped=tuple(dropped))
        return MetadataMerged(change, self.updater.update_nodes(merged.nodes))

    def _is_missing(self, topic: str) -> bool:
        return not self._options.auto_create and self.updater.is_missing(topic)


def _topic_status(cluster: Cluster, topic: str) -> TopicStatus:
    view = cluster.topic(topic)
    if view is None:
        return TopicStatus.UNSETTLED
    if classify_topic_error(view.code) is TopicErrorClass.MISSING:
        return TopicStatus.MISSING
    if view.code == INVALID_TOPIC:
        # An invalid name stays invalid: repeating the query is pointless.
        return TopicStatus.SETTLED
    return TopicStatus.SETTLED if cluster.is_settled(topic) else TopicStatus.UNSETTLED
