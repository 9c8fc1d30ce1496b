"""The router: owns all components and runs the round.

The order in a round carries the guarantees (`docs/design/internals.md`): apply, write, sync, hand out, send. Acks and
shard messages follow the write of the entries they are based on; slices are handed out only after a sync.
"""

import gc
import random
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from crc32c import crc32c

from ...config import handover
from ...config.model import Settings
from ...producer.metadata.cluster import ClusterChange
from ...runtime import logs
from ...runtime.clock import monotonic, wall_ms
from ...runtime.loop import READ, Loop
from ...runtime.notify import Notifier
from ...runtime.process import ExitCode, has_lost_parent
from ..audit.session import AuditPorts
from ..leases.bus import Bus
from ..ledger.entries import Lsn
from ..metadata.cluster_follower import EXPIRATION_MS, ClusterFollower, new_metadata_client
from ..metadata.topics import TopicMetadata
from ..sessions.acks import SessionResponses, SyncProof, WriteProof
from ..sessions.intake import FrameIntake
from ..sessions.listener import SessionListener
from ..sessions.listening_socket import inherited_socket
from ..spool.directory import SpoolError
from ..spool.frame_store import SpoolBrokenError, SpoolFrameStore
from .backpressure import SpoolBackpressure
from .commands import ControlCommands
from .control import ControlServer
from .dead_letter_writer import DeadLetterWriter
from .lifecycle import Lifecycle, RouterPhase
from .limits import bus_settings, intake_limits, listener_limits
from .shutdown import RouterShutdown
from .startup import StartedRouter, new_audit, new_counts, new_routing

COALESCE_S: Final = 0.001
"""Minimum interval of syncs and of hand-outs. It never delays an idle router; under load each covers more."""
COALESCE_BUSY_S: Final = 0.003
"""The same minimum for syncs while the loop is busy: a sync costs the same however much it covers."""
SLOW_S: Final = 0.005
"""Minimum interval of the upkeep that no frame waits for (broker requests, silent shards, time limits). It runs once
more after the last round that skipped it."""
_SECOND: Final = 1.0
_COLLECT_EVERY: Final = (50_000, 20, 20)
_EXPIRE_EVERY_S: Final = 60.0


class Router:
    """Owns all components and runs the round."""

    def __init__(self, settings: Settings, settings_path: Path, started: StartedRouter, listener_fd_limit: int) -> None:
        self.settings = settings
        self.settings_path = settings_path
        self.digest = handover.digest(settings)
        self.started = started
        self.identity, self.spool, recovered, self.leases, _ = started
        self.ledger, self.sessions = recovered.ledger, recovered.clients
        self.store = SpoolFrameStore(self.spool)
        self.counts = new_counts(started)
        self.loop = Loop()
        self.lifecycle = Lifecycle(settings.timeouts.drain_ms / 1_000)
        self.notifier = Notifier.from_environment()
        self.started_at = monotonic()
        self._log = logs.get()
        self._producer_id_asked = False
        self._sync_again_at = self._hand_out_again_at = 0.0
        self._sync_is_due = self._hand_out_is_due = False
        self._slow_at = self._slow_ran_at = self._second_at = self._expire_at = 0.0
        self._topics_changed = False
        self._moved_bytes = 0
        self._exit = ExitCode.OK
        chance = random.Random()  # noqa: S311 - jitter and sticky partitions
        changes: list[ClusterChange] = []
        self.metadata = new_metadata_client(
            self.loop, settings.kafka, self.leases, changes, chance.random, on_producer_id=self._producer_id
        )
        self.topics = TopicMetadata(self.metadata)
        self.answers = SessionResponses(self.counts)
        self.routing = new_routing(settings, started, self.store, chance)
        self.cluster = ClusterFollower(
            self.metadata, self.topics, self.routing, self.leases, changes, kafka=settings.kafka
        )
        self.cluster.recover(self.ledger)
        self.intake = self._new_intake()
        self.audit = new_audit(settings, started, AuditPorts(self.intake, self.store, self.topics))
        self.backpressure = SpoolBackpressure(self.store, self.intake)
        self.dead_letter_writer = DeadLetterWriter(settings, started)
        self.sessions.parked = self.dead_letter_writer.lookup
        self.listener = SessionListener(
            self.loop,
            inherited_socket(settings.socket_path),
            self.intake,
            self.answers,
            listener_limits(settings),
            descriptors=listener_fd_limit,
        )
        self.bus = Bus(self.loop, bus_settings(settings, self.identity, EXPIRATION_MS), self.leases)
        self.shutdown = RouterShutdown(
            self.lifecycle, self.leases, self.bus, lambda: self.pending_records, self._publish_closing_audit
        )
        self.control = ControlServer(self.loop, settings.control_path, ControlCommands(self).table())
        self.spool.on_relocated = self._relocated
        self._mark_synced(self.spool.synced_through)
        self.loop.add(self.spool.sync_fd, READ, self._sync_ended)

    def _new_intake(self) -> FrameIntake:
        return FrameIntake(
            sessions=self.sessions,
            ledger=self.ledger,
            routing=self.routing,
            answers=self.answers,
            store=self.store,
            topics=self.topics,
            delivery=self.leases,
            limits=intake_limits(self.settings),
            checksum=crc32c,
            counts=self.counts,
        )

    def run(self) -> ExitCode:
        """Serve until stopped. The exit code gives the reason."""
        self.loop.on_signals(self._signalled, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
        self.loop.add_upkeep(self.round)
        self.lifecycle.recovered()
        self.listener.set_accepting(wanted=True)
        self.notifier.ready("serving")
        self._log.info("router_ready", socket=str(self.settings.socket_path), start=self.identity.start)
        # Objects so far live until exit, and frames and slices form no cycles: the collector rarely needs to run.
        _ = gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT_EVERY)
        try:
            self.loop.run()
        except AssertionError as error:
            # Stop acking, writing and sending at once. Everything before the failed assertion was correct.
            self._log.critical("router_invariant_violated", reason=str(error), exc_info=True)
            return ExitCode.INVARIANT_VIOLATED
        except (SpoolBrokenError, SpoolError) as error:
            self._log.critical("spool_failed", reason=str(error))
            self._exit = ExitCode.SPOOL
        self._close()
        return self._exit

    @property
    def pending_records(self) -> int:
        """Client records that are neither delivered nor dead-lettered."""
        return self.leases.pending_records - self.counts.own_pending

    def stop(self, *, drain: bool) -> None:
        """Start an orderly shutdown: accept no connections or frames, then deliver, call back and sync everything."""
        if self.shutdown.begin(monotonic(), drain=drain):
            self.notifier.stopping("draining")
            self.listener.set_accepting(wanted=False)
            self.intake.draining = True

    def apply_settings(self, settings: Settings) -> None:
        """Apply the settings that may change at run time. Shards that start from now on must have the same ones."""
        self.settings = settings
        handover.write(settings, self.settings_path)
        self.digest = handover.digest(settings)
        self.bus.set_settings_digest(self.digest)
        self.intake.limits = intake_limits(settings)
        self.listener.set_limits(listener_limits(settings))
        self.lifecycle.set_drain_timeout(settings.timeouts.drain_ms / 1_000)
        logs.configure("router", level=settings.log_level)
        self._log.info("settings_reloaded", digest=self.digest)

    # --- events ------------------------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        if number == signal.SIGUSR2:
            self._sync_and_exit("signal")
        elif has_lost_parent():
            # No supervisor is left to restart missing processes, and a new launcher needs the spool.
            self._exit = ExitCode.PARENT_GONE
            self._sync_and_exit("the launcher has gone")
        else:
            self.stop(drain=True)

    def _sync_and_exit(self, reason: str) -> None:
        """Stop at once, with everything accepted on disk. The leases end with the process."""
        self.store.write()
        while self.spool.syncing or self.spool.start_sync():
            _ = self.store.finish_sync()
        self.loop.stop()
        self._log.info("router_exiting", reason=reason)

    def _sync_ended(self, _events: int) -> None:
        self._mark_synced(self.store.finish_sync())

    def _mark_synced(self, through: Lsn) -> None:
        self.backpressure.space_freed()
        self.answers.synced(SyncProof(through), now_ms=int(monotonic() * 1_000))
        # The leases compare with the last entry synced; the spool's mark is the first position not synced.
        self.leases.synced(Lsn(through - 1))

    def _relocated(self, moved: Mapping[Lsn, Lsn]) -> None:
        self._log.error("sync_failed", entries_rewritten=len(moved))
        self.leases.relocate(moved, self.spool.segments)

    def _publish_closing_audit(self, now: float) -> bool:
        """Publish the closing audit records after all client records. Returns whether that is worth waiting for."""
        return self.audit is not None and self.audit.publish_closing(now, wall_ms(), self.metadata.reachable_since)

    def _producer_id(self, producer_id: int, _epoch: int) -> None:
        self._producer_id_asked = False
        if self.identity.producer_id is None:
            self.identity.set_producer_id(producer_id)
        self.leases.set_producer_id(producer_id)

    # --- the round ---------------------------------------------------------------------------------------------------

    def round(self, now: float) -> float | None:
        """Run everything after the events, in the order that the guarantees require."""
        now_ms = int(now * 1_000)
        self._apply(now, now_ms)
        self.store.write()
        self.answers.written(WriteProof(self.spool.written_through), now_ms=now_ms)
        self._release_segments(now_ms)
        self._sync(now)
        self._hand_out(now)
        self._send(now)
        if self.shutdown.step(now):
            self.loop.stop()
        self._periodic(now)
        taken_bytes = self.counts.accepted_bytes
        self.loop.add_moved_bytes(taken_bytes - self._moved_bytes)
        self._moved_bytes = taken_bytes
        return self._next_deadline(now)

    def _apply(self, now: float, now_ms: int) -> None:
        """Apply the consequences of events and of time, up to the entries that this round writes."""
        if now >= self._slow_at or now >= self._slow_ran_at + SLOW_S:
            self._slow_ran_at = now
            self.metadata.tick(now)
            self.bus.tick(now)
            self.dead_letter_writer.write_pending(now)
            if self.audit is not None:
                self.audit.tick(now, wall_ms())
        if self.cluster.apply(now):
            self._topics_changed = True
        room = self.backpressure.may_have_space(now)
        if self.intake.held:
            self.listener.resume(self.intake.resumable_sessions(now, topics_changed=self._topics_changed, room=room))
        self._topics_changed = False
        if self.answers.sessions_to_resume:
            self.listener.resume(self.answers.sessions_to_resume)
            self.answers.sessions_to_resume.clear()
        self.listener.resume_reading(now)
        self.leases.tick(now)
        if self.leases.needs_producer_id and not self._producer_id_asked:
            self._producer_id_asked = True
            self.metadata.request_producer_id()
        if self.leases.ended:
            self._acknowledge_ended(now_ms)

    def _acknowledge_ended(self, now_ms: int) -> None:
        """Pass on slices ended by this round's entries: ack their frames and complete their sequences."""
        by_number, routing = self.ledger.by_number, self.routing
        for ended in self.leases.ended:
            state = by_number[ended.slice.partition]
            route = routing.find(state.topic)
            weak = route is None or route.single_replica
            if self.answers.slice_ended(ended, state.index, weak=weak, now_ms=now_ms):
                self.sessions.complete(ended.slice.frame)

    def _release_segments(self, _now_ms: int) -> None:
        """After the write: subtract ended slices from their segments."""
        ended = self.leases.ended
        if ended:
            by = Lsn(self.spool.written_through - 1)
            for segment, slices in Counter([one.slice.segment for one in ended]).items():
                self.spool.segments.slices_resolved(segment, by, slices)
            ended.clear()

    def _sync(self, now: float) -> None:
        spool = self.spool
        if spool.syncing or not spool.unsynced:
            return
        since = spool.unsynced_since
        waited_s = 0.0 if since is None else now - since
        wanted = self.answers.wants_sync or self.leases.needs_sync
        self._sync_is_due = wanted and now < self._sync_again_at
        if self._sync_is_due:
            return
        if wanted or waited_s * 1_000 >= self.settings.spool.sync_interval_ms:
            _ = spool.start_sync()
            self._sync_again_at = now + (COALESCE_BUSY_S if self.loop.is_busy else COALESCE_S)

    def _hand_out(self, now: float) -> None:
        """References go out in few messages: each costs a wake-up on both sides."""
        self._hand_out_is_due = now < self._hand_out_again_at
        if not self._hand_out_is_due:
            before = self.leases.handed_out_slices
            self.leases.hand_out(now)
            if self.leases.handed_out_slices != before:
                self._hand_out_again_at = now + COALESCE_S

    def _send(self, now: float) -> None:
        leases = self.leases
        for seat, reason in leases.shards_to_kill:
            self.bus.kill(seat, reason, now)
        leases.shards_to_kill.clear()
        self.bus.flush(leases.outbox, now)
        self.listener.send(now)
        for notice in leases.notices:
            self._log.warning(
                notice.event,
                topic=notice.topic,
                partition=notice.index,
                first=notice.first,
                end=notice.end,
                what=notice.text,
            )
        leases.notices.clear()
        if leases.stale_topics:
            leases.stale_topics.clear()
            self.metadata.refresh()

    def _periodic(self, now: float) -> None:
        self.backpressure.check(now)
        if now >= self._second_at:
            self._second_at = now + _SECOND
            self.cluster.update_topic_settings()
            self.cluster.update_partition_loads(now)
            pending = self.pending_records
            alarms = len(self.leases.alarms)
            self.notifier.status(f"{pending} records pending" + (f", {alarms} partitions blocked" if alarms else ""))
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_EVERY_S
            for entry in self.sessions.expire(now_ms=int(now * 1_000)):
                _ = self.store.append(entry)

    def _next_deadline(self, now: float) -> float | None:
        if self._slow_ran_at == now:
            self._slow_at = self._slow_deadline(now)
        slow_at = self._slow_at if self._slow_ran_at == now else min(self._slow_at, self._slow_ran_at + SLOW_S)
        due = [slow_at, self.leases.next_deadline(), self.intake.next_deadline(), self.lifecycle.next_deadline()]
        if self.spool.unsynced_since is not None and not self.spool.syncing:
            due.append(self.spool.unsynced_since + self.settings.spool.sync_interval_ms / 1_000)
        if self.listener.has_more:
            due.append(now)
        if self._sync_is_due:
            due.append(self._sync_again_at)
        if self._hand_out_is_due:
            due.append(self._hand_out_again_at)
        return min(at for at in due if at is not None)

    def _slow_deadline(self, now: float) -> float:
        """When the upkeep that no frame waits for is next due."""
        due = [
            self.metadata.next_deadline(),
            self.bus.next_deadline(),
            self.listener.check_time_limits(now),
            self.dead_letter_writer.next_deadline(),
            None if self.audit is None else self.audit.next_deadline(now),
            self.backpressure.next_deadline(),
            self.notifier.ping_watchdog(now),
            self._second_at,
        ]
        return min(at for at in due if at is not None)

    def _close(self) -> None:
        """Release everything, the spool last. The spool gets the clean mark when the shutdown was orderly."""
        clean = self.lifecycle.phase is RouterPhase.ENDED and self.leases.all_returned and self._exit is ExitCode.OK
        self.listener.close()
        self.control.close()
        self.metadata.close()
        self.loop.remove(self.spool.sync_fd)
        try:
            self.spool.close(clean=clean)
        except (OSError, SpoolError) as error:
            self._log.critical("spool_failed", reason=str(error))
            self._exit = ExitCode.SPOOL
        self.bus.close()
        self.identity.close()
        self.notifier.close()
        self._log.info("router_stopped", clean=clean, pending=self.pending_records)
