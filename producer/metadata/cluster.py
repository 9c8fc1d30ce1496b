"""An immutable snapshot of the cluster: brokers, topics, leaders. Merging a response creates a new snapshot.

Leader epochs never go back within one topic id (HO-16): older responses, older hints and lagging brokers change
nothing. A partial response replaces only what it contains.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from kafka.protocol.metadata.metadata import MetadataResponse

from ..protocol.error_codes import NONE, TopicErrorClass, classify_topic_error, error_name
from .leader_epochs import NO_EPOCH, is_recreated, may_follow

NO_NODE: Final = -1
_EPOCHS_RELIABLE_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 10


class BrokerAddress(NamedTuple):
    """A broker and its address. `rack` is "" if it has none."""

    node: int
    host: str
    port: int
    rack: str


class PartitionView(NamedTuple):
    """One partition. `leader` -1: none known or alive; `leader_epoch` -1: the broker is too old to report it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    code: int


class TopicView(NamedTuple):
    """One topic. `partitions` by index; an error keeps the partitions known before. `topic_id` None: the broker is too
    old to report it."""

    name: str
    topic_id: bytes | None
    partitions: Mapping[int, PartitionView]
    code: int
    internal: bool
    former_ids: frozenset[bytes] = frozenset()
    """Earlier topic ids of this name. A broker that still reports one of them lags behind."""
    updated_version: int = 0
    """Version of the snapshot whose response last included the topic."""

    @property
    def partition_count(self) -> int:
        return len(self.partitions)


class TopicAnswer(NamedTuple):
    """One topic of a Metadata response."""

    name: str
    topic_id: bytes | None
    code: int
    internal: bool
    partitions: list[PartitionView]


class MetadataAnswer(NamedTuple):
    """A Metadata response as plain data. `code`: error code of the whole response (from version 13)."""

    brokers: list[BrokerAddress]
    cluster_id: str
    controller: int
    topics: list[TopicAnswer]
    code: int


class TopicReplaced(NamedTuple):
    """The topic was deleted and recreated: its log is a different one (IDN-8)."""

    name: str
    old_id: bytes
    new_id: bytes


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """The changes made by a merge. Empty if nothing is new."""

    nodes_added: tuple[int, ...] = ()
    nodes_moved: tuple[int, ...] = ()
    """Same id, another host or port."""
    nodes_gone: tuple[int, ...] = ()
    topics_added: tuple[str, ...] = ()
    """Topics known with partitions for the first time."""
    topics_grown: tuple[str, ...] = ()
    """More partitions than before."""
    topics_replaced: tuple[TopicReplaced, ...] = ()
    topics_failing: tuple[str, ...] = ()
    """The topic has a new error or a different one."""
    topics_missing: tuple[str, ...] = ()
    """Brokers reported more than once that the topic does not exist. Reported once; set by `MetadataCache`, not by a
    merge."""
    topics_dropped: tuple[str, ...] = ()
    """Topics dropped because they were unused for long; set by `MetadataCache`, not by a merge."""
    topics_recovered: tuple[str, ...] = ()
    """The topic had an error and has none now."""
    leaders: tuple[tuple[str, int], ...] = ()
    """(topic, index) of partitions whose leader or leader epoch changed."""

    def __bool__(self) -> bool:
        return self != _NOTHING

    @property
    def nodes_changed(self) -> bool:
        return bool(self.nodes_added or self.nodes_moved or self.nodes_gone)

    @property
    def topics_with_new_leaders(self) -> set[str]:
        """Topics with partitions that are new, have another leader, or can be reached again."""
        return {
            *(*self.topics_added, *self.topics_grown, *self.topics_recovered),
            *(topic for topic, _ in self.leaders),
            *(replaced.name for replaced in self.topics_replaced),
        }


@dataclass(frozen=True, slots=True)
class Cluster:
    """The snapshot. Every method that changes something returns a new snapshot."""

    cluster_id: str = ""
    controller: int = NO_NODE
    nodes: Mapping[int, BrokerAddress] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicView] = field(default_factory=lambda: MappingProxyType({}))
    floors: Mapping[tuple[str, bytes | None, int], int] = field(default_factory=lambda: MappingProxyType({}))
    """Newest leader epoch recorded by an earlier process, or before the topic was dropped, by (topic, topic id, index).
    Older epochs are ignored."""
    dropped: Mapping[str, TopicView] = field(default_factory=lambda: MappingProxyType({}))
    """Topics no longer queried, without their partitions. Their ids still count when they return."""
    version: int = 0
    """Number of responses merged."""

    def topic(self, name: str) -> TopicView | None:
        return self.topics.get(name)

    def partition(self, topic: str, index: int) -> PartitionView | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def leader(self, topic: str, index: int) -> BrokerAddress | None:
        """The leader's address; None if there is no leader, or it is not a known broker."""
        found = self.partition(topic, index)
        return None if found is None else self.nodes.get(found.leader)

    def topic_error(self, name: str) -> str | None:
        """Kafka's name of the topic's error; None if it has no error or is unknown."""
        found = self.topics.get(name)
        return None if found is None or found.code == NONE else error_name(found.code)

    def with_floors(self, topic: str, topic_id: bytes | None, leader_epochs: Mapping[int, int]) -> "Cluster":
        """Add leader epochs by partition, recorded by an earlier process: older ones are then ignored for this topic
        id."""
        floors = dict(self.floors)
        for index, epoch in leader_epochs.items():
            key = (topic, topic_id, index)
            floors[key] = max(epoch, floors.get(key, NO_EPOCH))
        return replace(self, floors=MappingProxyType(floors))

    def without_topics(self, names: Iterable[str]) -> "Cluster":
        """Drop these topics. Their ids and leader epochs stay known, so that neither goes back when they return."""
        topics, dropped, floors = dict(self.topics), dict(self.dropped), dict(self.floors)
        for name in names:
            view = topics.pop(name, None)
            if view is None:
                continue
            dropped[name] = view._replace(partitions=MappingProxyType({}), code=NONE)
            for index, known in view.partitions.items():
                key = (name, view.topic_id, index)
                if known.leader_epoch > floors.get(key, NO_EPOCH):
                    floors[key] = known.leader_epoch
        return replace(
            self,
            topics=MappingProxyType(topics),
            dropped=MappingProxyType(dropped),
            floors=MappingProxyType(floors),
        )

    def is_settled(self, name: str) -> bool:
        """Whether the topic needs no early query: it has no error, and every partition's leader is a known broker."""
        view = self.topics.get(name)
        if view is None or not view.partitions or classify_topic_error(view.code) is not TopicErrorClass.FINE:
            return False
        return all(
            part.leader in self.nodes and classify_topic_error(part.code) is TopicErrorClass.FINE
            for part in view.partitions.values()
        )

    def merge(self, answer: MetadataAnswer) -> tuple["Cluster", ClusterChange]:
        """Merge a response that has no error of its own. Returns the new snapshot and the changes."""
        nodes = {broker.node: broker for broker in answer.brokers}
        topics = dict(self.topics)
        for answered in answer.topics:
            topics[answered.name] = self._merge_topic(
                self.topics.get(answered.name) or self.dropped.get(answered.name), answered
            )
        merged = replace(
            self,
            version=self.version + 1,
            dropped=MappingProxyType({name: view for name, view in self.dropped.items() if name not in topics}),
            cluster_id=answer.cluster_id or self.cluster_id,
            controller=answer.controller,
            nodes=MappingProxyType(nodes),
            topics=MappingProxyType(topics),
        )
        return merged, _difference(self, merged, [answered.name for answered in answer.topics])

    def apply_leader_hint(
        self, topic: str, index: int, leader: int, leader_epoch: int, address: BrokerAddress | None = None
    ) -> tuple["Cluster", ClusterChange]:
        """Apply the new leader named in a Produce response (KIP-951). Only a newer epoch of a known partition counts,
        and only a leader whose address is known or comes with it."""
        view = self.topics.get(topic)
        known = self.partition(topic, index)
        if view is None or known is None or leader < 0 or leader_epoch <= self._newest(view.name, view.topic_id, known):
            return self, _NOTHING
        nodes = self.nodes if address is None else MappingProxyType({**self.nodes, address.node: address})
        if leader not in nodes:
            return self, _NOTHING
        moved = known._replace(leader=leader, leader_epoch=leader_epoch, code=NONE)
        partitions = MappingProxyType({**view.partitions, index: moved})
        topics = MappingProxyType({**self.topics, topic: view._replace(partitions=partitions)})
        merged = replace(self, nodes=nodes, topics=topics)
        return merged, _difference(self, merged, [topic])

    def _merge_topic(self, known: TopicView | None, answered: TopicAnswer) -> TopicView:
        if known is not None and answered.topic_id is not None and answered.topic_id in known.former_ids:
            return known
        kept: Mapping[int, PartitionView] = {} if known is None else known.partitions
        former = frozenset[bytes]() if known is None else known.former_ids
        topic_id = answered.topic_id or (None if known is None else known.topic_id)
        if known is not None and known.topic_id is not None and is_recreated(known.topic_id, topic_id):
            # A different log under the same name: neither epochs nor partitions of the old one count.
            kept, former = {}, former | {known.topic_id}
        # Kafka never removes partitions from a topic: a response with fewer comes from a lagging broker.
        merged = dict(kept)
        for partition in answered.partitions:
            before = kept.get(partition.index)
            merged[partition.index] = self._merge_partition(answered.name, topic_id, before, partition)
        partitions = MappingProxyType(dict(sorted(merged.items())))
        return TopicView(
            answered.name, topic_id, partitions, answered.code, answered.internal, former, self.version + 1
        )

    def _merge_partition(
        self, topic: str, topic_id: bytes | None, before: PartitionView | None, answered: PartitionView
    ) -> PartitionView:
        newest = self.floors.get((topic, topic_id, answered.index), NO_EPOCH)
        if before is not None:
            newest = max(newest, before.leader_epoch)
        if may_follow(answered.leader_epoch, newest):
            return answered if answered.leader_epoch >= newest else answered._replace(leader_epoch=newest)
        if before is not None:
            return before
        # Older than the recorded epoch: the reported leader may have been replaced.
        return answered._replace(leader=NO_NODE, leader_epoch=newest)

    def _newest(self, topic: str, topic_id: bytes | None, known: PartitionView) -> int:
        return max(known.leader_epoch, self.floors.get((topic, topic_id, known.index), NO_EPOCH))


_NOTHING: Final = ClusterChange()


def read_metadata(response: MetadataResponse) -> MetadataAnswer:
    """Convert a response to plain data. Ignores epochs below version 9 and ids below version 10: they are unreliable.

    Raises AttributeError, TypeError or ValueError if the response contains values of wrong types.
    """
    version = int(response.version or 0)
    brokers = [BrokerAddress(row.node_id, row.host, row.port, row.rack or "") for row in response.brokers]
    alive = {broker.node for broker in brokers}
    topics: list[TopicAnswer] = []
    for row in response.topics:
        if row.name is None:
            continue
        # The library decodes the zero id, which means "none", as None.
        topic_id = row.topic_id.bytes if version >= _TOPIC_IDS_FROM and row.topic_id else None
        partitions = [
            PartitionView(
                index=part.partition_index,
                leader=part.leader_id if part.leader_id in alive else NO_NODE,
                leader_epoch=part.leader_epoch if version >= _EPOCHS_RELIABLE_FROM else NO_EPOCH,
                replicas=tuple(part.replica_nodes),
                isr=tuple(part.isr_nodes),
                code=part.error_code,
            )
            for part in row.partitions
        ]
        topics.append(TopicAnswer(row.name, topic_id, row.error_code, bool(row.is_internal), partitions))
    return MetadataAnswer(
        brokers,
        response.cluster_id or "" if version >= 2 else "",
        response.controller_id if version >= 1 else NO_NODE,
        topics,
        int(response.error_code or 0) if version >= 13 else NONE,
    )


def _difference(before: Cluster, after: Cluster, names: Sequence[str]) -> ClusterChange:
    both = before.nodes.keys() & after.nodes.keys()
    pairs = [
        (name, before.topics.get(name) or before.dropped.get(name), after.topics[name]) for name in dict.fromkeys(names)
    ]
    replaced = [
        TopicReplaced(name, old.topic_id, new.topic_id)
        for name, old, new in pairs
        if old is not None and old.topic_id and new.topic_id and is_recreated(old.topic_id, new.topic_id)
    ]
    return ClusterChange(
        nodes_added=tuple(sorted(after.nodes.keys() - before.nodes.keys())),
        nodes_moved=tuple(sorted(node for node in both if _moved(before.nodes[node], after.nodes[node]))),
        nodes_gone=tuple(sorted(before.nodes.keys() - after.nodes.keys())),
        topics_added=tuple(name for name, old, new in pairs if new.partitions and (old is None or not old.partitions)),
        topics_grown=tuple(
            name for name, old, new in pairs if old is not None and 0 < len(old.partitions) < len(new.partitions)
        ),
        topics_replaced=tuple(replaced),
        topics_failing=tuple(
            name for name, old, new in pairs if new.code != NONE and (old is None or old.code != new.code)
        ),
        topics_recovered=tuple(
            name for name, old, new in pairs if old is not None and old.code != NONE and new.code == NONE
        ),
        leaders=tuple((name, index) for name, old, new in pairs for index in _moved_leaders(old, new)),
    )


def _moved(before: BrokerAddress, after: BrokerAddress) -> bool:
    return (before.host, before.port) != (after.host, after.port)


def _moved_leaders(before: TopicView | None, after: TopicView) -> list[int]:
    known = {} if before is None else before.partitions
    moved: list[int] = []
    for index, now in sorted(after.partitions.items()):
        was = known.get(index)
        other_log = before is not None and before.topic_id != after.topic_id
        if was is None or other_log or (was.leader, was.leader_epoch) != (now.leader, now.leader_epoch):
            moved.append(index)
    return moved
