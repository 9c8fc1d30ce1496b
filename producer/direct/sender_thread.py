"""The one thread of a direct producer: its loop, connections and metadata, and `Joined` in the router's place.

Everything but the methods marked "any thread" runs on this thread; callbacks of records too.
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
from ..accumulator.chunk_store import Arena
from ..delivery.outcomes import Failed, Failure, Kind, Outcome
from ..metadata.client import Metadata
from ..metadata.cluster import ClusterChange
from ..network.socket_options import Security, control_options, produce_options, security_of
from ..records.batch_builder import self_check
from ..sender.broker_link import LinkRules, Links
from ..telemetry.metrics import Meters
from ..telemetry.push import InstanceId, Pusher
from ..transactions.delivery import TransactionalJoined
from .assembly import joined_of, link_rules_of
from .front_port import FrontPort
from .transactions_thread import Replies, Transactions

AnswerT = TypeVar("AnswerT")

_WALL_S: Final = 1.0
_WEIGH_S: Final = 0.1
"""How often what waits for partitions is looked at, in rounds that something else asked for."""
_FAULT: Final = Failure(Kind.FATAL, -1, "SENDER_FAILED", "the sender thread ended by a fault of its own; see the log")
_CLOSED: Final = Failure(Kind.CLOSED, -1, "PRODUCER_CLOSED", "the producer was closed forcefully before this was sent")


class SenderThread:
    """See the module. `start` makes everything that has a descriptor; nothing is left of it when `ended` was told."""

    def __init__(self, settings: DirectSettings, front: FrontPort, arena: Arena, meters: Meters) -> None:
        self._settings: Final = settings
        self._front: Final = front
        self._arena: Final = arena
        self._meters: Final = meters
        self._instance: Final = InstanceId()
        self._commands: deque[Callable[[], None]] = deque()
        self._replies: Final = Replies()
        self._engine: _Engine | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._awake = False
        """It will look at everything before it sleeps: nobody needs to write."""

    def start(self) -> None:
        """Start the thread.

        Raises:
            SlowChecksumError: the checksum library is unfit.
            OSError: no descriptor was left.
        """
        self_check(thread_seconds)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        commands = self._take_commands
        self._engine = _Engine(
            self._settings, self._front, self._arena, self._wake_fd, commands, self._meters, self._instance
        )
        self._thread = threading.Thread(target=self._run, name="penstock-sender", daemon=True)
        self._thread.start()

    # --- any thread --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to look at."""
        if not self._awake:
            self._awake = True
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def want_topic(self, topic: str) -> None:
        """Keep this topic's metadata; to be said again now and then while it is in use."""
        self._tell(lambda engine: engine.metadata.want(topic))

    def request_topic(self, topic: str) -> None:
        """What is known of the topic does not do: ask again."""
        self._tell(lambda engine: engine.metadata.request(topic))

    def close(self, timeout_s: float | None) -> None:
        """End when everything is resolved, at the latest after so long (None: however long it takes); 0: at once. Does not
        wait for it."""
        self._tell(lambda engine: engine.close(timeout_s))

    def transact(self, question: Callable[[Transactions], AnswerT], timeout_s: float) -> AnswerT:
        """Have the thread do something about transactions, and return what came of it.

        Raises:
            ClosedError: the thread has ended. And what the question raises.
            WaitTimeoutError: it did not come to it in time, and leaves it undone.
        """
        engine = self._engine
        assert engine is not None, "not started"
        transactions = engine.transactions
        assert transactions is not None, "a producer without a transactional id"
        return self._replies.ask(
            lambda command: self._tell(lambda _: command()), lambda: question(transactions), timeout_s
        )

    def doom(self, error: PenstockError) -> None:
        """A record was not taken: the transaction it was meant for, if there is one, can only be aborted."""
        self._tell(lambda engine: None if engine.transactions is None else engine.transactions.doom(error))

    @property
    def is_current(self) -> bool:
        """The caller runs on this thread: in a callback."""
        return threading.current_thread() is self._thread

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end. False: it has not come yet."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def instance_id(self, timeout_s: float) -> UUID | None:
        """What brokers call this producer in the metrics they collect; None: not known within so long."""
        return self._instance.wait(min(timeout_s, threading.TIMEOUT_MAX))

    def forget(self) -> None:
        """In a forked child, where the thread does not exist: let go of its descriptors."""
        if self._engine is not None:
            self._engine.abandon()
            self._engine = None
        self._thread = None
        self._close_wake()

    def _tell(self, command: "Callable[[_Engine], None]") -> None:
        engine = self._engine
        if engine is not None:
            self._commands.append(lambda: command(engine))
            self.wake()

    # --- the thread --------------------------------------------------------------------------------------------------

    def topic_of(self, number: int) -> tuple[str, int]:
        """Topic and index of a partition number in an outcome."""
        assert self._engine is not None, "not started"
        return self._engine.joined.topic_of(number)

    def _run(self) -> None:
        assert self._engine is not None
        failure: Failure | None = _FAULT
        try:
            failure = self._engine.run()
        finally:
            # Nobody writes into a descriptor that may be another's by then.
            self._awake = True
            try:
                self._engine.end()
            finally:
                self._front.ended(failure)
                self._replies.end()

    def _take_commands(self) -> None:
        self._awake = False
        while self._commands:
            self._commands.popleft()()

    def _close_wake(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def __del__(self) -> None:
        # Kept as long as somebody could wake the thread.
        self._close_wake()


class _Engine:
    """What lives on the thread."""

    def __init__(
        self,
        settings: DirectSettings,
        front: FrontPort,
        arena: Arena,
        wake_fd: int,
        commands: Callable[[], None],
        meters: Meters,
        instance: InstanceId,
    ) -> None:
        self._front: Final = front
        self._meters: Final = meters
        self._commands: Final = commands
        self._wake_fd: Final = wake_fd
        self._log: Final = logs.get()
        for caution in settings.cautions():
            self._log.warning("doubtful_setting", what=caution)
        self._loop: Final = Loop()
        self.joined: Final = joined_of(settings, arena, self._trouble_with)
        security = security_of(settings)
        self.metadata: Final = Metadata(
            self._loop,
            settings,
            on_change=self._cluster_changed,
            rng=random.random,
            on_producer_id=self._producer_id_known,
            on_producer_id_refused=self.joined.producer_id_refused,
            on_update=self._cluster_told,
            on_lost=lambda reason, refused: front.brokers_lost(reason, refused=refused),
            in_use=self.joined.topics_in_use,
            topic_settings=False,
            watch=meters,
            security=security,
        )
        rules = link_rules_of(settings, meters, random.random)
        options = produce_options(settings, acks=rules.acks, security=security)
        self._links: Final = Links(self._loop, options, rules, self.joined.table, self.joined.journal)
        self.transactions: Final = self._transactions(settings, rules, security)
        self._telemetry: Final = Pusher(
            self._loop,
            settings,
            self.metadata,
            meters.sensors.figures,
            instance,
            options=control_options(settings, security=security),
            watch=meters,
            rng=random.random,
        )
        self.joined.table.on_retry = self._retried
        meters.sensors.gauge("requests-in-flight", self._in_flight)
        meters.sensors.gauge("metadata-age", self._metadata_age)
        self._metadata_at = math.nan
        self._id_asked = False
        self._closing = False
        self._close_at = math.inf
        self._told_wall_at = -math.inf
        self._weigh_at = -math.inf if settings.partitioner_adaptive_partitioning_enable else math.inf
        self._loop.add(wake_fd, READ, self._woken)
        self._loop.add_upkeep(self._round)

    def _transactions(self, settings: DirectSettings, rules: LinkRules, security: Security) -> Transactions | None:
        if not isinstance(self.joined, TransactionalJoined):
            return None
        return Transactions(
            self._loop,
            settings,
            self.joined,
            rules,
            self._front,
            submit=lambda: self._submit(monotonic()),
            on_stale=self.metadata.refresh,
            problem=lambda: self.metadata.problems.get("brokers", ""),
            rng=random.random,
            security=security,
        )

    def run(self) -> Failure | None:
        """Until closed, or until nothing can be sent any more: then why."""
        self._loop.run()
        return None if self._closing else self.joined.failure

    def end(self) -> None:
        """Close everything."""
        if self.transactions is not None:
            self.transactions.end()
        self._telemetry.end()
        self._links.close()
        self.metadata.close()
        self._loop.close()

    def abandon(self) -> None:
        """In a forked child: close what is ours, and leave the parent's loop as it is."""
        self._loop.abandon()
        self.end()

    def close(self, timeout_s: float | None) -> None:
        """See `SenderThread.close`."""
        now = monotonic()
        self._closing = True
        if timeout_s is not None and timeout_s <= 0:
            self._close_at = now
            self._submit(now)
            self.joined.abort(_CLOSED, now=now)
        else:
            deadline = self._close_at = math.inf if timeout_s is None else now + timeout_s
            if self.transactions is not None:
                self.transactions.close(deadline, now=now)
            self.joined.close(deadline, now=now)

    # --- events ------------------------------------------------------------------------------------------------------

    def _woken(self, _events: int) -> None:
        _ = os.eventfd_read(self._wake_fd)

    def _cluster_changed(self, change: ClusterChange) -> None:
        self.joined.cluster_changed(self.metadata.cluster, change, now=monotonic())
        if change.nodes_added or change.nodes_moved or change.nodes_gone:
            self._links.follow()
        if self.transactions is not None:
            self.transactions.cluster_changed(self.metadata.cluster)
        self._front.cluster_changed(self.metadata.cluster)

    def _retried(self, topic: str, records: int) -> None:
        self._meters.retried(topic, records, monotonic())

    def _in_flight(self, _now: float) -> float:
        links = list(self._links.by_node.values())
        asked = self.metadata.in_flight + self._telemetry.in_flight
        asked += 0 if self.transactions is None else self.transactions.coordinators.in_flight
        return float(asked + sum(link.connection.in_flight for link in links))

    def _metadata_age(self, now: float) -> float:
        return now - self._metadata_at

    def _cluster_told(self) -> None:
        self._metadata_at = monotonic()
        self._front.cluster_changed(self.metadata.cluster)

    def _producer_id_known(self, producer_id: int, epoch: int) -> None:
        self._id_asked = False
        self.joined.producer_id_known(producer_id, epoch, now=monotonic())

    def _trouble_with(self, node: int) -> str | None:
        link = self._links.by_node.get(node)
        if link is None:
            return ""
        return None if link.connection.ready else link.connection.last_error

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _round(self, now: float) -> float | None:
        joined = self.joined
        if now >= self._told_wall_at + _WALL_S:
            self._tell_wall(now)
        self._commands()
        self._submit(now)
        joined.upkeep(now=now)
        transactions = self.transactions
        if transactions is not None:
            transactions.prepare()
            # What was granted just now, because its partition was added, does not linger either.
            self._flush(now)
        self._loop.moved(joined.table.fill(now=now))
        self._links.tick(now)
        if joined.table.outbox.has_words:
            joined.upkeep(now=now)
        again = transactions is not None and transactions.tick(now)
        self._meters.follow(joined.table.counters, now)
        self._pass_on(now)
        if now >= self._weigh_at:
            self._weigh(now)
        self.metadata.tick(now)
        self._telemetry.tick(now)
        if joined.failure is not None or (self._closing and joined.idle and self._is_over(now)):
            self._loop.stop()
        wanted = [
            self._front.next_due(now),
            joined.next_deadline(now),
            self._links.next_deadline(now),
            self.metadata.next_deadline(),
            self._telemetry.next_deadline(now),
            self._told_wall_at + _WALL_S,
            now if again or joined.table.accumulator.has_line else None,
            None if transactions is None else transactions.next_deadline(now),
        ]
        return min((at for at in wanted if at is not None), default=None)

    def _is_over(self, now: float) -> bool:
        over = self.transactions is None or self.transactions.is_over(now)
        return over and self._telemetry.finish(self._close_at, now)

    def _submit(self, now: float) -> None:
        for chunk in self._front.take_due(now, all_chunks=self._closing):
            self.joined.submit(
                self.joined.number_of(chunk.topic, chunk.index),
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
        if self._closing or self._front.flushing or self.joined.completing:
            self.joined.flush(now=now)
        elif pressed := self._front.pressed:
            self.joined.flush(now=now, nodes=pressed)

    def _pass_on(self, now: float) -> None:
        """Tell everybody what was decided in this round."""
        endpoints = self._links.take_endpoints()
        for hint in self.joined.take_hints():
            if hint.leader < 0:
                self.metadata.refresh()
            else:
                address = endpoints.get(hint.leader)
                _ = self.metadata.hint(hint.topic, hint.index, hint.leader, hint.leader_epoch, address)
        if self.joined.wants_producer_id and not self._id_asked:
            self._id_asked = True
            self.metadata.request_producer_id()
        for notice in self.joined.take_notices():
            self._log.warning(
                "partition_alarm",
                why=notice.event,
                topic=notice.topic,
                partition=notice.index,
                first=notice.first,
                end=notice.end,
                what=notice.text,
            )
            self._meters.alarmed(now)
        outcomes = self.joined.take_outcomes()
        if outcomes:
            self._count_failed(outcomes, now)
            self._front.settle(outcomes)

    def _count_failed(self, outcomes: Sequence[Outcome], now: float) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                topic, _ = self.joined.topic_of(outcome.partition)
                self._meters.failed(topic, outcome, now)

    def _weigh(self, now: float) -> None:
        self._weigh_at = now + _WEIGH_S
        waited_ms = {load.node: load.wanting_ms for load in self._links.loads(now)}
        self._front.weigh(lambda node: waited_ms.get(node, 0) / 1000)

    def _tell_wall(self, now: float) -> None:
        self._told_wall_at = now
        self.joined.table.wall.tell(wall_ms(), now=now)
        expiration_ms = self.metadata.producer_id_expiration_ms
        if expiration_ms is not None and expiration_ms > 0:
            self.joined.table.limits = self.joined.table.limits._replace(expiration_ms=expiration_ms)
