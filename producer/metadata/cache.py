"""What a process knows of the cluster, and what it wants to know: the snapshot and the plan of questions, kept in step.

The snapshot is replaced as one reference, so whoever reads `cluster` from another thread sees one state of it (MET-16). All
else belongs to the thread that talks to the brokers.
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
    """What differs between programs."""

    auto_create: bool
    """Brokers may make topics that are asked for: "unknown" is then never the last word."""
    topic_settings: bool
    """Settings of topics are wanted too."""
    in_use: Callable[[], AbstractSet[str]]
    """Topics that are not idle, however long ago they were wanted."""


class MetadataMerged(NamedTuple):
    """The answer was taken over. `reconnect`: the connection is to be dropped for one to a known node."""

    change: ClusterChange
    reconnect: bool


class MetadataRejected(NamedTuple):
    """The answer is as good as none: the connection is to be dropped, and another broker asked."""

    reason: str


class RebootstrapRequested(NamedTuple):
    """The broker sent us back to the bootstrap addresses: the connection is to be dropped (KIP-1102)."""


MetadataResult = MetadataMerged | MetadataRejected | RebootstrapRequested


class MetadataCache:
    """One per process. `updater` is asked for the next questions and told of losses; answers to Metadata come here."""

    def __init__(
        self, limits: MetadataUpdaterLimits, bootstrap: Sequence[tuple[str, int]], options: CacheOptions, *, now: float
    ) -> None:
        self.cluster = Cluster()
        self.updater = MetadataUpdater(limits, bootstrap, now=now)
        self._options = options
        self._closed = False

    # --- what is known; from any thread ------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicView | None:
        """What is known; None: nothing, or no partition of it yet."""
        found = self.cluster.topic(name)
        return found if found is not None and found.partitions else None

    def topic_error(self, name: str) -> str | None:
        """Kafka's name of what live brokers say is wrong with the topic. That it is unknown counts from the second answer
        on, and never where brokers may create it."""
        found = self.cluster.topic(name)
        if found is None or found.code == NONE:
            return None
        if classify_topic_error(found.code) is TopicErrorClass.MISSING and not self._is_missing(name):
            return None
        return error_name(found.code)

    # --- what is wanted ----------------------------------------------------------------------------------------------

    def want(self, topic: str, now: float) -> None:
        """Keep this topic's metadata; it is not idle from now on. Cheap to say again."""
        _ = self.updater.want(topic, now)

    def forget(self, topic: str) -> None:
        """Nobody uses the topic any more."""
        self.updater.forget(topic)
        self.cluster = self.cluster.without_topics([topic])

    def seed(self, topic: str, topic_id: bytes | None, leader_epochs: Mapping[int, int]) -> None:
        """Leader epochs recorded in an earlier life: nothing older is believed (HO-16)."""
        self.cluster = self.cluster.with_floors(topic, topic_id, leader_epochs)

    def apply_leader_hint(
        self, topic: str, index: int, leader: int, leader_epoch: int, address: BrokerAddress | None, now: float
    ) -> ClusterChange:
        """A Produce answer told of another leader. Whether it was newer or not, the truth is asked for, no faster than the
        backoff allows: brokers that point at each other are not asked in a loop (MET-14)."""
        self.updater.refresh(now)
        self.cluster, change = self.cluster.apply_leader_hint(topic, index, leader, leader_epoch, address)
        return change

    # --- answers -----------------------------------------------------------------------------------------------------

    def apply_response(
        self, ask: TopicMetadataQuery, answer: MetadataAnswer, now: float, chance: float
    ) -> MetadataResult:
        """A Metadata answer to this question. What is not taken over is asked for again."""
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
            # Our ids and offsets mean nothing there.
            self.updater.queries_failed([ask], now, chance)
            return MetadataRejected(f"it belongs to cluster {answer.cluster_id}, not {self.cluster.cluster_id}")
        return self._merge(ask, answer, now, chance)

    def close(self) -> None:
        """No answer counts from now on (MET-5)."""
        self._closed = True

    # -----------------------------------------------------------------------------------------------------------------

    def _merge(self, ask: TopicMetadataQuery, answer: MetadataAnswer, now: float, chance: float) -> MetadataMerged:
        missing_before = {topic for topic in ask.topics if self._is_missing(topic)}
        # Answers to topics that were forgotten meanwhile would stay for ever.
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
            # Partitions of other topics may have lost their leader too, and this answer did not tell.
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
        # A name does not become valid by asking often.
        return TopicStatus.SETTLED
    return TopicStatus.SETTLED if cluster.is_settled(topic) else TopicStatus.UNSETTLED
