"""What runs on the direct producer's sender thread: event loop, connections, metadata, and `InProcessDelivery` instead of
a router.
"""

import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ...config.direct import DirectSettings
from ...runtime import logs
from ...runtime.clock import monotonic, wall_ms
from ...runtime.loop import READ, Loop
from ..accumulator.buffer_pool import BufferPool
from ..accumulator.chunk_store import ChunkStore, SealedChunk
from ..accumulator.partition_queue import BatchRules
from ..accumulator.slice_accumulator import SliceAccumulator
from ..delivery.in_process import InProcessDelivery, InProcessDeliveryLimits
from ..delivery.outcomes import DeliveryFailure, DeliveryFailureKind, DeliveryOutcome, Failed
from ..metadata.client import Metadata
from ..metadata.cluster import Cluster, ClusterChange
from ..network.socket_options import Security, control_options, produce_options, security_of
from ..protocol.backoff import Backoff
from ..records.batch_builder import HEADER_BYTES
from ..records.compression import Levels, make_compressor
from ..sender.broker_link import BrokerLinks, LinkRules
from ..sender.modes import SendLimits
from ..telemetry.metrics import ProducerMetrics
from ..telemetry.push import ClientInstanceId, TelemetryPusher
from ..transactions.delivery import TransactionalDelivery
from ..transactions.manager import TransactionLimits, TransactionManager
from .transactions_thread import SendGate, Transactions

_WALL_SYNC_S: Final = 1.0
_LOAD_UPDATE_S: Final = 0.1
"""Least time between two partition load updates. They run in rounds that have another cause."""
_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`, used until the brokers' value is known."""
_CLOSED: Final = DeliveryFailure(
    DeliveryFailureKind.CLOSED, -1, "PRODUCER_CLOSED", "the producer was closed forcefully before this was sent"
)


class FrontPort(SendGate, Protocol):
    """The methods of the producer's front that the sender thread calls. No other thread calls them."""

    @property
    def flushing(self) -> bool:
        """Whether no record may linger: a flush or close is running, or a caller waits for the shared reserve."""
        ...

    @property
    def nodes_under_pressure(self) -> frozenset[int]:
        """Nodes whose records must not linger because a caller waits for their memory (BUF-14)."""
        ...

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        """Seal and return the chunks that are full or have lingered, or all, in the order of their records."""
        ...

    def next_deadline(self, now: float) -> float | None:
        """When to call `drain` next; None: not before the next wake-up."""
        ...

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        """Resolve the futures of records."""
        ...

    def cluster_changed(self, cluster: Cluster) -> None:
        """Apply a new metadata snapshot: a Metadata response arrived, or a leader moved."""
        ...

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        """The connection for metadata requests has ended. `refused`: every broker rejected the authentication."""
        ...

    def update_partition_load(self, waited_s: Callable[[int], float]) -> None:
        """Update the partitioner's load statistics. `waited_s`: for how many seconds a node could not be sent to."""
        ...

    def sender_ended(self, failure: DeliveryFailure | None) -> None:
        """The thread has ended, by a close (None) or by a permanent failure. All unresolved records fail."""
        ...


class SenderLoop:
    """The objects that live on the sender thread, and its loop."""

    def __init__(
        self,
        settings: DirectSettings,
        front: FrontPort,
        arena: ChunkStore,
        wake_fd: int,
        commands: Callable[[], None],
        meters: ProducerMetrics,
        instance: ClientInstanceId,
    ) -> None:
        self._front: Final = front
        self._meters: Final = meters
        self._commands: Final = commands
        self._wake_fd: Final = wake_fd
        self._log: Final = logs.get()
        for caution in settings.warnings():
            self._log.warning("risky_setting", reason=caution)
        self._loop: Final = Loop()
        self.delivery: Final = _make_delivery(settings, arena, self._connection_problem)
        security = security_of(settings)
        self.metadata: Final = Metadata(
            self._loop,
            settings,
            on_change=self._cluster_changed,
            rng=random.random,
            on_producer_id=self._producer_id_known,
            on_producer_id_refused=self.delivery.producer_id_refused,
            on_update=self._metadata_updated,
            on_lost=lambda reason, refused: front.brokers_lost(reason, refused=refused),
            in_use=self.delivery.topics_in_use,
            topic_settings=False,
            watch=meters,
            security=security,
        )
        rules = _make_link_rules(settings, meters, random.random)
        options = produce_options(settings, acks=rules.acks, security=security)
        self._links: Final = BrokerLinks(self._loop, options, rules, self.delivery.table, self.delivery.journal)
        self.transactions: Final = self._transactions(settings, rules, security)
        self._telemetry: Final = TelemetryPusher(
            self._loop,
            settings,
            self.metadata,
            meters.sensors.metric_values,
            instance,
            options=control_options(settings, security=security),
            watch=meters,
            rng=random.random,
        )
        self.delivery.table.on_retry = self._retried
        meters.sensors.gauge("requests-in-flight", self._in_flight)
        meters.sensors.gauge("metadata-age", self._metadata_age)
        self._metadata_at = math.nan
        self._producer_id_requested = False
        self._closing = False
        self._close_at = math.inf
        self._wall_synced_at = -math.inf
        self._load_update_at = -math.inf if settings.partitioner_adaptive_partitioning_enable else math.inf
        self._loop.add(wake_fd, READ, self._woken)
        self._loop.add_upkeep(self._run_once)

    def _transactions(self, settings: DirectSettings, rules: LinkRules, security: Security) -> Transactions | None:
        if not isinstance(self.delivery, TransactionalDelivery):
            return None
        return Transactions(
            self._loop,
            settings,
            self.delivery,
            rules,
            self._front,
            submit=lambda: self._submit(monotonic()),
            on_stale=self.metadata.refresh,
            problem=lambda: self.metadata.problems.get("brokers", ""),
            rng=random.random,
            security=security,
        )

    def run(self) -> DeliveryFailure | None:
        """Run until closed (returns None) or until sending has failed permanently (returns the failure)."""
        self._loop.run()
        return None if self._closing else self.delivery.failure

    def end(self) -> None:
        """Close everything that the thread owns."""
        if self.transactions is not None:
            self.transactions.end()
        self._telemetry.close()
        self._links.close()
        self.metadata.close()
        self._loop.close()

    def abandon(self) -> None:
        """In a forked child: close this process's descriptors, without changing the parent's loop."""
        self._loop.close_after_fork()
        self.end()

    def close(self, timeout_s: float | None) -> None:
        """See `SenderThread.close`."""
        now = monotonic()
        self._closing = True
        if timeout_s is not None and timeout_s <= 0:
            self._close_at = now
            self._submit(now)
            self.delivery.abort(_CLOSED, now=now)
        else:
            deadline = self._close_at = math.inf if timeout_s is None else now + timeout_s
            if self.transactions is not None:
                self.transactions.close(deadline, now=now)
            self.delivery.close(deadline, now=now)

    # --- events ------------------------------------------------------------------------------------------------------

    def _woken(self, _events: int) -> None:
        _ = os.eventfd_read(self._wake_fd)

    def _cluster_changed(self, change: ClusterChange) -> None:
        self.delivery.cluster_changed(self.metadata.cluster, change, now=monotonic())
        if change.nodes_added or change.nodes_moved or change.nodes_gone:
            self._links.follow()
        if self.transactions is not None:
            self.transactions.cluster_changed(self.metadata.cluster)
        self._front.cluster_changed(self.metadata.cluster)

    def _retried(self, topic: str, records: int) -> None:
        self._meters.batch_retried(topic, records, monotonic())

    def _in_flight(self, _now: float) -> float:
        links = list(self._links.by_node.values())
        asked = self.metadata.in_flight + self._telemetry.in_flight
        asked += 0 if self.transactions is None else self.transactions.coordinators.in_flight
        return float(asked + sum(link.connection.in_flight for link in links))

    def _metadata_age(self, now: float) -> float:
        return now - self._metadata_at

    def _metadata_updated(self) -> None:
        self._metadata_at = monotonic()
        self._front.cluster_changed(self.metadata.cluster)

    def _producer_id_known(self, producer_id: int, epoch: int) -> None:
        self._producer_id_requested = False
        self.delivery.producer_id_known(producer_id, epoch, now=monotonic())

    def _connection_problem(self, node: int) -> str | None:
        link = self._links.by_node.get(node)
        if link is None:
            return ""
        return None if link.connection.ready else link.connection.last_error

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _run_once(self, now: float) -> float | None:
        joined = self.delivery
        if now >= self._wall_synced_at + _WALL_SYNC_S:
            self._sync_wall_clock(now)
        self._commands()
        self._submit(now)
        joined.upkeep(now=now)
        transactions = self.transactions
        if transactions is not None:
            transactions.prepare()
            # Partitions added to the transaction were granted just now: their records do not linger either.
            self._flush(now)
        self._loop.add_moved_bytes(joined.table.fill(now=now))
        self._links.tick(now)
        if joined.table.outbox.has_messages:
            joined.upkeep(now=now)
        again = transactions is not None and transactions.tick(now)
        self._meters.update_counters(joined.table.counters, now)
        self._dispatch_events(now)
        if now >= self._load_update_at:
            self._update_partition_load(now)
        self.metadata.tick(now)
        self._telemetry.tick(now)
        if joined.failure is not None or (self._closing and joined.idle and self._is_done(now)):
            self._loop.stop()
        wanted = [
            self._front.next_deadline(now),
            joined.next_deadline(now),
            self._links.next_deadline(now),
            self.metadata.next_deadline(),
            self._telemetry.next_deadline(now),
            self._wall_synced_at + _WALL_SYNC_S,
            now if again or joined.table.accumulator.has_unread else None,
            None if transactions is None else transactions.next_deadline(now),
        ]
        return min((at for at in wanted if at is not None), default=None)

    def _is_done(self, now: float) -> bool:
        over = self.transactions is None or self.transactions.is_done(now)
        return over and self._telemetry.finish(self._close_at, now)

    def _submit(self, now: float) -> None:
        for chunk in self._front.drain(now, all_chunks=self._closing):
            self.delivery.submit(
                self.delivery.number_of(chunk.topic, chunk.index),
                chunk.segment,
                chunk.length,
                chunk.first,
                chunk.count,
                chunk.created_ms,
                chunk.max_ts,
                now=now,
            )
        self._flush(now)

    def _flush(self, now: float) -> None:
        if self._closing or self._front.flushing or self.delivery.completing:
            self.delivery.flush(now=now)
        elif pressed := self._front.nodes_under_pressure:
            self.delivery.flush(now=now, nodes=pressed)

    def _dispatch_events(self, now: float) -> None:
        """Pass on the results of this round: leader hints, alarms and record outcomes."""
        endpoints = self._links.take_endpoints()
        for hint in self.delivery.take_hints():
            if hint.leader < 0:
                self.metadata.refresh()
            else:
                address = endpoints.get(hint.leader)
                _ = self.metadata.apply_leader_hint(hint.topic, hint.index, hint.leader, hint.leader_epoch, address)
        if self.delivery.wants_producer_id and not self._producer_id_requested:
            self._producer_id_requested = True
            self.metadata.request_producer_id()
        for notice in self.delivery.take_alarms():
            self._log.warning(
                "partition_alarm",
                alarm=notice.alarm,
                topic=notice.topic,
                partition=notice.index,
                first=notice.first,
                end=notice.end,
                reason=notice.text,
            )
            self._meters.partition_alarm_logged(now)
        outcomes = self.delivery.take_outcomes()
        if outcomes:
            self._count_failed(outcomes, now)
            self._front.settle(outcomes)

    def _count_failed(self, outcomes: Sequence[DeliveryOutcome], now: float) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                topic, _ = self.delivery.topic_of(outcome.partition)
                self._meters.records_failed(topic, outcome, now)

    def _update_partition_load(self, now: float) -> None:
        self._load_update_at = now + _LOAD_UPDATE_S
        waited_ms = {load.node: load.send_blocked_ms for load in self._links.loads(now)}
        self._front.update_partition_load(lambda node: waited_ms.get(node, 0) / 1000)

    def _sync_wall_clock(self, now: float) -> None:
        self._wall_synced_at = now
        self.delivery.table.wall.set_time(wall_ms(), now=now)
        expiration_ms = self.metadata.producer_id_expiration_ms
        if expiration_ms is not None and expiration_ms > 0:
            self.delivery.table.limits = self.delivery.table.limits._replace(expiration_ms=expiration_ms)


def _make_delivery(
    settings: DirectSettings, arena: ChunkStore, trouble_with: Callable[[int], str | None]
) -> InProcessDelivery:
    """Build the delivery, in its transactional form if there is a transactional id."""
    levels = Levels(settings.compression_gzip_level, settings.compression_lz4_level, settings.compression_zstd_level)
    batch_bytes = max(settings.batch_size, HEADER_BYTES + 1)
    rules = BatchRules(
        batch_bytes,
        settings.linger_ms / 1000,
        make_compressor(settings.compression_type, levels),
        transactional=settings.transactional_id is not None,
    )
    # A batch with a single record of the largest size must fit into the pool.
    total = max(settings.buffer_memory, batch_bytes, 2 * settings.max_request_size)
    backoff = Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000)
    limits = InProcessDeliveryLimits(
        SendLimits(backoff, _EXPIRATION_MS, retries=settings.retries, confirms_gaps=True),
        settings.delivery_timeout_ms / 1000,
        total,
        idempotent=settings.enable_idempotence,
    )

    def rules_of(_topic: str) -> BatchRules:
        return rules

    accumulator = SliceAccumulator(BufferPool(total, batch_bytes), arena)
    if settings.transactional_id is not None:
        own = TransactionLimits(settings.transactional_id, settings.transaction_timeout_ms, backoff)
        return TransactionalDelivery(limits, accumulator, rules_of, TransactionManager(own), trouble_with=trouble_with)
    return InProcessDelivery(limits, accumulator, rules_of, trouble_with=trouble_with)


def _make_link_rules(settings: DirectSettings, meters: ProducerMetrics, rng: Callable[[], float]) -> LinkRules:
    """The settings of Produce requests."""
    return LinkRules(
        client_id=settings.client_id,
        request_bytes_max=settings.max_request_size,
        request_timeout_ms=settings.request_timeout_ms,
        in_flight_max=settings.max_in_flight_requests_per_connection,
        zstd=settings.compression_type == "zstd",
        rng=rng,
        watch=meters,
        acks=int(settings.acks),
        transactional_id=settings.transactional_id,
    )
