"""The direct producer's sender thread: event loop, connections, metadata, and `InProcessDelivery` instead of a router.

All code except the section "any thread" runs on this thread, and so do the records' callbacks.
"""

import math
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from uuid import UUID

from ...api.errors import PenstockError
from ...config.direct import DirectSettings
from ...runtime import logs
from ...runtime.clock import monotonic, thread_seconds, wall_ms
from ...runtime.loop import READ, Loop
from ..accumulator.chunk_store import ChunkStore
from ..delivery.outcomes import DeliveryFailure, DeliveryFailureKind, DeliveryOutcome, Failed
from ..metadata.client import Metadata
from ..metadata.cluster import ClusterChange
from ..network.socket_options import Security, control_options, produce_options, security_of
from ..records.batch_builder import self_check
from ..sender.broker_link import BrokerLinks, LinkRules
from ..telemetry.metrics import ProducerMetrics
from ..telemetry.push import ClientInstanceId, TelemetryPusher
from ..transactions.delivery import TransactionalDelivery
from .assembly import make_delivery, make_link_rules
from .front_port import FrontPort
from .transactions_thread import CrossThreadCalls, Transactions

AnswerT = TypeVar("AnswerT")

_WALL_SYNC_S: Final = 1.0
_LOAD_UPDATE_S: Final = 0.1
"""Least time between two partition load updates. They run in rounds that have another cause."""
_FAULT: Final = DeliveryFailure(
    DeliveryFailureKind.FATAL, -1, "SENDER_FAILED", "the sender thread ended by a fault of its own; see the log"
)
_CLOSED: Final = DeliveryFailure(
    DeliveryFailureKind.CLOSED, -1, "PRODUCER_CLOSED", "the producer was closed forcefully before this was sent"
)


class SenderThread:
    """Starts and controls the thread. The engine's file descriptors are closed before `sender_ended` is called."""

    def __init__(self, settings: DirectSettings, front: FrontPort, arena: ChunkStore, meters: ProducerMetrics) -> None:
        self._settings: Final = settings
        self._front: Final = front
        self._arena: Final = arena
        self._meters: Final = meters
        self._instance: Final = ClientInstanceId()
        self._commands: deque[Callable[[], None]] = deque()
        self._replies: Final = CrossThreadCalls()
        self._engine: _Engine | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._awake = False
        """The thread will run all commands before it sleeps, so no write to `_wake_fd` is needed."""

    def start(self) -> None:
        """Start the thread.

        Raises:
            SlowChecksumError: the checksum library is too slow or wrong.
            OSError: no file descriptor was left.
        """
        self_check(thread_seconds)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        commands = self._run_commands
        self._engine = _Engine(
            self._settings, self._front, self._arena, self._wake_fd, commands, self._meters, self._instance
        )
        self._thread = threading.Thread(target=self._run, name="penstock-sender", daemon=True)
        self._thread.start()

    # --- any thread --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the thread, because it has work."""
        if not self._awake:
            self._awake = True
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def want_topic(self, topic: str) -> None:
        """Keep this topic's metadata. Must be repeated from time to time while the topic is in use."""
        self._enqueue_command(lambda engine: engine.metadata.want(topic))

    def request_topic(self, topic: str) -> None:
        """Request metadata of this topic again, because the current metadata is not sufficient."""
        self._enqueue_command(lambda engine: engine.metadata.request(topic))

    def close(self, timeout_s: float | None) -> None:
        """Start the shutdown without waiting. The thread ends when all is resolved, at the latest after `timeout_s`
        (None: no limit; 0: at once)."""
        self._enqueue_command(lambda engine: engine.close(timeout_s))

    def call_transactions(self, question: Callable[[Transactions], AnswerT], timeout_s: float) -> AnswerT:
        """Run `question` with the transactions on the thread, and return its result.

        Raises:
            ClosedError: the thread has ended. Errors of the question are raised too.
            WaitTimeoutError: the thread did not run it in time, and will not.
        """
        engine = self._engine
        assert engine is not None, "not started"
        transactions = engine.transactions
        assert transactions is not None, "a producer without a transactional id"
        return self._replies.call(
            lambda command: self._enqueue_command(lambda _: command()), lambda: question(transactions), timeout_s
        )

    def mark_abortable(self, error: PenstockError) -> None:
        """Report a rejected record: its transaction, if there is one, can only be aborted."""
        self._enqueue_command(
            lambda engine: None if engine.transactions is None else engine.transactions.mark_abortable(error)
        )

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, that is in a callback."""
        return threading.current_thread() is self._thread

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end. False: it still runs."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def instance_id(self, timeout_s: float) -> UUID | None:
        """The client instance id under which brokers collect metrics (KIP-714); None: not known within `timeout_s`."""
        return self._instance.wait(min(timeout_s, threading.TIMEOUT_MAX))

    def after_fork(self) -> None:
        """In a forked child, where the thread does not exist: close its file descriptors."""
        if self._engine is not None:
            self._engine.abandon()
            self._engine = None
        self._thread = None
        self._close_wake()

    def _enqueue_command(self, command: "Callable[[_Engine], None]") -> None:
        engine = self._engine
        if engine is not None:
            self._commands.append(lambda: command(engine))
            self.wake()

    # --- the thread --------------------------------------------------------------------------------------------------

    def topic_of(self, number: int) -> tuple[str, int]:
        """Topic and index of a partition number in an outcome."""
        assert self._engine is not None, "not started"
        return self._engine.delivery.topic_of(number)

    def _run(self) -> None:
        assert self._engine is not None
        failure: DeliveryFailure | None = _FAULT
        try:
            failure = self._engine.run()
        finally:
            # `wake` must not write to the descriptor any more: the number may soon belong to another file.
            self._awake = True
            try:
                self._engine.end()
            finally:
                self._front.sender_ended(failure)
                self._replies.close()

    def _run_commands(self) -> None:
        self._awake = False
        while self._commands:
            self._commands.popleft()()

    def _close_wake(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def __del__(self) -> None:
        # Closed only now: until the last reference is gone, another thread may call `wake`.
        self._close_wake()


class _Engine:
    """The objects that live on the thread, and its loop."""

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
        self.delivery: Final = make_delivery(settings, arena, self._connection_problem)
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
        rules = make_link_rules(settings, meters, random.random)
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
