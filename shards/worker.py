"""The shard process: `python -I -m penstock.shards.worker --settings PATH --seat N`.

It connects to the router, creates its journal after WELCOME, then sends what it is granted until either exits. Start
order: WELCOME, the router's pidfd, the journal (JRN-1: before any broker socket), a HELLO that names the journal.
"""

import argparse
import os
import random
import resource
import secrets
import signal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from ..config import handover
from ..config.model import Settings
from ..producer.accumulator.buffer_pool import BufferPool
from ..producer.accumulator.partition_queue import BatchRules
from ..producer.accumulator.slice_accumulator import SliceAccumulator
from ..producer.network.socket_options import produce_options
from ..producer.protocol.backoff import Backoff
from ..producer.records.batch_builder import SlowChecksumError, self_check
from ..producer.records.compression import Codec, Compressor, Levels, make_compressor
from ..producer.sender.broker_link import BrokerLinks, LinkRules
from ..producer.sender.modes import SendLimits
from ..producer.sender.partitions import CreditRule, PartitionTable
from ..runtime import logs
from ..runtime.clock import monotonic, wall_ms
from ..runtime.loop import READ, Loop
from ..runtime.process import ExitCode, exit_with_parent, redirect_output_to_journal, require_assertions
from ..runtime.starts import record_start
from ..wire.messages import Grant, Nodes, Revoke, RouterMessage, ShardFailed, ShardHello, ShardLoad, ShardWelcome, Stop
from .inbox import RouterConnection
from .journal import Journal, open_journal
from .slices import ShardSegmentReader

_LOAD_S: Final = 1.0
_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`, used until the router has read the brokers' value."""
_CREDIT_BUDGETS: Final = 2
_CREDIT_BYTES_MIN: Final = 4 << 20
_WELCOME_S: Final = 15.0
"""Timeout for WELCOME. The HELLO may have gone to a router that has exited, so a new process sends it again."""
_SETTLE_S: Final = 2.0
"""After STOP: how long to wait for the router to ack the returned leases."""


class ShardWorker:
    """The process: settings, loop, and the components created after WELCOME."""

    def __init__(self, settings: Settings, seat: int) -> None:
        self._settings = settings
        self._seat = seat
        self._start = secrets.randbits(63) | 1
        self._digest = handover.digest(settings)
        self._loop = Loop()
        self._log = logs.get()
        self._exit = ExitCode.OK
        self._journal: Journal | None = None
        self._links: BrokerLinks | None = None
        self._reader = ShardSegmentReader(settings.spool_dir)
        self._table = _table(settings, self._reader)
        self._router_fd = -1
        self._load_at = 0.0
        self._gave_back_at: float | None = None
        self._welcome_until = monotonic() + _WELCOME_S
        self._inbox = RouterConnection(
            self._loop,
            settings.bus_path,
            seat=seat,
            shard_start=self._start,
            received=self._received,
            freed=self._freed,
            broken=self._bus_failed,
        )

    def run(self) -> ExitCode:
        """Run until STOP is complete, the router exits, or an error ends the shard."""
        # Supervisor and terminal signal the whole process group: the router drains first and then sends STOP.
        self._loop.on_signals(self._signalled, signal.SIGTERM, signal.SIGINT)
        self._loop.add_upkeep(self._upkeep)
        self._send_hello("")
        try:
            self._loop.run()
        except AssertionError as error:
            self._log.critical("shard_invariant_violated", reason=str(error), exc_info=True)
            self._inbox.send(ShardFailed(str(error) or "an invariant does not hold"))
            self._exit = ExitCode.INVARIANT_VIOLATED
        self._end()
        return self._exit

    def _send_hello(self, journal: str) -> None:
        self._inbox.send(ShardHello(self._seat, os.getpid(), journal, self._digest))

    # --- events ------------------------------------------------------------------------------------------------------

    def _received(self, message: RouterMessage) -> None:
        if isinstance(message, ShardWelcome):
            self._on_welcome(message)
            return
        if self._journal is None:
            self._bus_failed(f"{type(message).__name__} before WELCOME")
            return
        self._table.apply(message, now=monotonic())
        match message:
            case Nodes():
                assert self._links is not None
                self._links.follow()
            case Stop():
                self._log.info("shard_stopping", deadline_ms=message.deadline_ms)
            case Grant() | Revoke():
                self._log.debug(
                    type(message).__name__.lower(), partition=message.partition, generation=message.generation
                )
            case _:
                pass

    def _on_welcome(self, welcome: ShardWelcome) -> None:
        if self._journal is not None:
            self._bus_failed("a second WELCOME")
            return
        if welcome.settings_digest != self._digest:
            self._log.error("settings_mismatch", router=welcome.settings_digest, shard=self._digest)
            self._exit_with(ExitCode.CONFIGURATION)
            return
        try:
            self._router_fd = os.pidfd_open(welcome.router_pid)
        except OSError as error:
            self._bus_failed(f"the router (pid {welcome.router_pid}) cannot be watched: {error.strerror}")
            return
        self._loop.add(self._router_fd, READ, self._router_ended)
        try:
            self._journal = open_journal(
                self._settings.journal_dir,
                seat=self._seat,
                shard_start=self._start,
                router_start=self._inbox.router_start,
            )
        except OSError as error:
            self._log.exception(
                "journal_create_failed", directory=str(self._settings.journal_dir), reason=error.strerror
            )
            self._exit_with(ExitCode.SPOOL)
            return
        if welcome.producer_id_expiration_ms > 0:
            self._table.limits = self._table.limits._replace(expiration_ms=welcome.producer_id_expiration_ms)
        self._table.wall.set_time(wall_ms(), now=monotonic())
        self._links = _links(self._loop, self._settings, self._table, self._journal, seat=self._seat)
        self._log.info("router_connected", router_pid=welcome.router_pid, journal=self._journal.name)
        self._send_hello(self._journal.name)

    def _freed(self, slots: Sequence[int]) -> None:
        assert self._journal is not None
        self._journal.release(slots)
        self._table.slots_freed(now=monotonic())

    def _router_ended(self, _events: int) -> None:
        self._log.warning("router_lost")
        self._exit_with(ExitCode.PEER_GONE)

    def _signalled(self, number: int) -> None:
        self._log.info("signal_ignored", signal=signal.Signals(number).name)
        if self._journal is None:
            # Without WELCOME no router will send STOP.
            self._exit_with(ExitCode.OK)

    def _bus_failed(self, what: str) -> None:
        self._log.error("bus_failed", reason=what)
        self._exit_with(ExitCode.PEER_GONE)

    def _exit_with(self, code: ExitCode) -> None:
        self._exit = code
        self._loop.stop()

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _upkeep(self, now: float) -> float | None:
        deadlines: list[float | None] = []
        if self._links is not None:
            self._loop.add_moved_bytes(self._table.fill(now=now))
            self._links.tick(now)
            self._stopping(now)
            for credit in self._table.credits():
                self._inbox.send(credit)
            for said in self._table.outbox.take():
                self._inbox.send(said.message, said.slots)
            if now >= self._load_at:
                self._send_load(now)
            deadlines += [self._load_at, self._links.next_deadline(now), self._table.stop_at]
            if self._table.accumulator.has_unread and self._table.stop_at is None:
                deadlines.append(now)
        elif now >= self._welcome_until:
            self._log.warning("router_not_responding", bus=str(self._settings.bus_path))
            self._exit_with(ExitCode.PEER_GONE)
        else:
            deadlines.append(self._welcome_until)
        deadlines.append(self._inbox.tick(now))
        return min((at for at in deadlines if at is not None), default=None)

    def _stopping(self, now: float) -> None:
        """After STOP: return leases when nothing is in flight or time is up, then wait for the router's ack."""
        stop_at = self._table.stop_at
        if stop_at is None:
            return
        if self._gave_back_at is None:
            if self._table.in_flight and now < stop_at:
                return
            self._table.revoke_all()
            self._gave_back_at = now
            self._table.stop_at = now + _SETTLE_S
        elif self._inbox.all_acknowledged or now >= stop_at:
            self._exit_with(ExitCode.OK)

    def _send_load(self, now: float) -> None:
        self._load_at = now + _LOAD_S
        self._table.wall.set_time(wall_ms(), now=now)
        assert self._links is not None
        assert self._journal is not None
        used = resource.getrusage(resource.RUSAGE_SELF)
        counters = dict(self._table.counters)
        counters["cpu_us"] = int((used.ru_utime + used.ru_stime) * 1_000_000)
        counters["rss_max_bytes"] = used.ru_maxrss * 1024
        counters["descriptors"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
        counters["segments_open"] = self._reader.open_count
        counters["buffer_bytes"] = self._table.accumulator.pool.lent_bytes
        counters["buffer_exhausted"] = self._table.accumulator.pool.exhausted_count
        counters["journal_slots_free"] = self._journal.free_slots
        self._inbox.send(ShardLoad(self._links.loads(now), self._table.partition_loads(), counters))

    def _end(self) -> None:
        if self._links is not None:
            self._links.close()
        self._inbox.close()
        self._reader.close()
        if self._journal is not None:
            self._journal.close()
        if self._router_fd >= 0:
            os.close(self._router_fd)
        self._loop.close()


def _table(settings: Settings, reader: ShardSegmentReader) -> PartitionTable:
    kafka = settings.kafka
    levels = Levels(kafka.compression_gzip_level, kafka.compression_lz4_level, kafka.compression_zstd_level)
    # A batch of one record of the largest size must fit into the pool.
    total = max(kafka.buffer_memory, kafka.batch_size, 2 * int(settings.limits.frame_bytes_max))

    @cache
    def compressor_of(codec: Codec) -> Compressor:
        return make_compressor(codec, levels)

    def rules_of(topic: str) -> BatchRules:
        own = handover.topic_settings(settings, topic)
        codec = kafka.compression_type if own.compression_type is None else own.compression_type
        linger_ms = kafka.linger_ms if own.linger_ms is None else own.linger_ms
        return BatchRules(kafka.batch_size, linger_ms / 1000, compressor_of(codec))

    backoff = Backoff(kafka.retry_backoff_ms / 1000, kafka.retry_backoff_max_ms / 1000)
    return PartitionTable(
        SendLimits(backoff, _EXPIRATION_MS),
        SliceAccumulator(BufferPool(total, kafka.batch_size), reader),
        rules_of,
        CreditRule(_CREDIT_BUDGETS, max(_CREDIT_BYTES_MIN, 2 * int(settings.limits.frame_bytes_max))),
    )


def _links(loop: Loop, settings: Settings, table: PartitionTable, journal: Journal, *, seat: int) -> BrokerLinks:
    kafka = settings.kafka
    options = produce_options(kafka)._replace(client_id=f"{kafka.client_id}-{seat}")
    codecs = {kafka.compression_type, *(topic.compression_type for topic in settings.topics.values())}
    rules = LinkRules(
        client_id=options.client_id,
        request_bytes_max=kafka.max_request_size,
        request_timeout_ms=kafka.request_timeout_ms,
        in_flight_max=kafka.max_in_flight_requests_per_connection,
        zstd="zstd" in codecs,
        rng=random.random,
    )
    return BrokerLinks(loop, options, rules, table, journal)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a shard. The exit code gives the reason for the exit (`runtime.process.ExitCode`)."""
    require_assertions()
    exit_with_parent()
    redirect_output_to_journal()
    parser = argparse.ArgumentParser(prog="penstock-shard", description="A shard of the penstock daemon.")
    _ = parser.add_argument("--settings", type=Path, required=True, help="what the launcher wrote for the processes")
    _ = parser.add_argument("--seat", type=int, required=True, help="which shard this is, from 0")
    options = parser.parse_args(arguments)
    settings = handover.read(options.settings)
    logs.configure(f"shard-{options.seat}", level=settings.log_level)
    record_start(settings.runtime_dir, f"shard-{options.seat}")
    try:
        self_check(monotonic)
    except SlowChecksumError as error:
        logs.get().critical("checksum_too_slow", reason=str(error))
        sys.exit(ExitCode.CONFIGURATION)
    sys.exit(ShardWorker(settings, options.seat).run())


if __name__ == "__main__":
    main()
