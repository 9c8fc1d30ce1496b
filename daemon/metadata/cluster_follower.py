"""Passes metadata changes to leases and routing: nodes, leaders, and topics that grow, disappear or return."""

from collections.abc import Callable
from functools import partial
from typing import Final

from ...config.model import KafkaSettings
from ...producer.metadata.client import Metadata
from ...producer.metadata.cluster import ClusterChange
from ...producer.metadata.describe_configs import TopicSettings
from ...runtime.loop import Loop
from ..leases.ownership import Leases
from ..ledger.partition_state import Ledger
from ..sessions.routing import Routing
from .partition_load import PartitionLoads
from .topics import TopicMetadata

EXPIRATION_MS: Final = 24 * 3_600_000
"""Kafka's default of `producer.id.expiration.ms`, used where brokers do not authorize us to read theirs."""


def new_metadata_client(
    loop: Loop,
    kafka: KafkaSettings,
    leases: Leases,
    changes: list[ClusterChange],
    rng: Callable[[], float],
    *,
    on_producer_id: Callable[[int, int], None],
) -> Metadata:
    """The router's metadata client; `ClusterFollower` reads `changes`. Topics with records or leases are never idle."""
    return Metadata(
        loop,
        kafka,
        on_change=changes.append,
        rng=rng,
        on_producer_id=on_producer_id,
        in_use=leases.topics_in_use,
    )


class ClusterFollower:
    """Applies `changes`, which the metadata client fills and `apply` empties once a round."""

    def __init__(
        self,
        metadata: Metadata,
        topics: TopicMetadata,
        routing: Routing,
        leases: Leases,
        changes: list[ClusterChange],
        *,
        kafka: KafkaSettings,
    ) -> None:
        self._metadata = metadata
        self._topics = topics
        self._routing = routing
        self._leases = leases
        self._changes = changes
        self._adaptive = kafka.partitioner_adaptive_partitioning_enable and kafka.partitioner_class is None
        self._loads = PartitionLoads(
            leases,
            batch_bytes=kafka.batch_size,
            availability_timeout_ms=kafka.partitioner_availability_timeout_ms,
        )
        self._settings: dict[str, TopicSettings] = {}
        self._expiration_ms = EXPIRATION_MS

    def recover(self, ledger: Ledger) -> None:
        """Request metadata of the spool's topics. Leader epochs older than the recorded ones are ignored (HO-16)."""
        epochs: dict[str, dict[int, int]] = {}
        ids: dict[str, bytes] = {}
        for (topic, index), state in ledger.by_topic_partition.items():
            ids[topic] = state.topic_id
            if state.leader_epoch >= 0:
                epochs.setdefault(topic, {})[index] = state.leader_epoch
        for topic, topic_id in ids.items():
            self._metadata.seed(topic, topic_id or None, epochs.get(topic, {}))
            self._metadata.want(topic)

    def apply(self, now: float) -> bool:
        """Apply the changes since the last round. Returns whether there were any."""
        for hinted in self._leases.new_leaders:
            _ = self._metadata.apply_leader_hint(*hinted)
        self._leases.new_leaders.clear()
        if not self._changes:
            return False
        changes, self._changes[:] = list(self._changes), []
        for change in changes:
            self._apply(change, now)
        return True

    def _apply(self, change: ClusterChange, now: float) -> None:
        self._leases.cluster_changed(self._metadata.cluster, change, now)
        for topic in sorted(change.topics_with_new_leaders):
            self._update_route(topic)
        if change.nodes_changed:
            # The leaders are the same, but their racks and whether they can be reached may have changed.
            for known in list(self._routing.routes()):
                self._update_route(known.topic)
        for topic in change.topics_dropped:
            route = self._routing.find(topic)
            if route is not None:
                route.idle = True
        for topic in change.topics_missing:
            route = self._routing.find(topic)
            if route is not None:
                route.missing_error = self._topics.error(topic)

    def _update_route(self, topic: str) -> None:
        """Update the route of a topic that frames went to. Other topics get a route with their first frame."""
        if self._routing.find(topic) is not None:
            facts = self._topics.facts(topic)
            if facts is not None:
                _ = self._routing.update_topic(facts)

    def update_partition_loads(self, now: float) -> None:
        """Update how much is queued for each partition, which the partitioners use for keyless records."""
        self._loads.refresh(now)
        for route in self._routing.routes():
            route.update_load(partial(self._loads.queued_batches, route.leaders, route.states), adaptive=self._adaptive)

    def update_topic_settings(self) -> None:
        """Apply topic settings, which arrive some time after the topics, and the brokers' producer id expiration."""
        for route in self._routing.routes():
            settings = self._metadata.topic_settings(route.topic)
            if settings is not None and self._settings.get(route.topic) != settings:
                self._settings[route.topic] = settings
                self._update_route(route.topic)
        expiration_ms = self._metadata.producer_id_expiration_ms
        if expiration_ms is not None and expiration_ms != self._expiration_ms:
            self._expiration_ms = expiration_ms
            self._leases.expiration_known(expiration_ms)
