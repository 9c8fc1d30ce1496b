"""The shard process: `python -I -m penstock.shards.worker --settings PATH --seat N`.

It greets the router, creates its journal once it is welcomed, and then sends what it is granted until one of them ends.
Order at the start: WELCOME, the router's pidfd, the journal (JRN-1: before any broker socket), a second HELLO naming it.
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
from ..producer.accumulator.slice_accumulator import Accumulator
from ..producer.network.socket_options import produce_options
from ..producer.protocol.backoff import Backoff
from ..producer.records.batch_builder import SlowChecksumError, self_check
from ..producer.records.compression import Codec, Compressor, Levels, make_compressor
from ..producer.sender.broker_link import LinkRules, Links
from ..producer.sender.modes import Limits
from ..producer.sender.partitions import CreditRule, LeaseTable
from ..runtime import logs
from ..runtime.clock import monotonic, wall_ms
from ..runtime.loop import READ, Loop
from ..runtime.process import Exit, refuse_optimised, take_journal, tie_to_parent
from ..runtime.starts import count_start
from ..wire.messages import Broken, Grant, Hello, Load, Nodes, Revoke, RouterMessage, Stop, Welcome
from .inbox import Inbox
from .journal import Journal, open_journal
from .slices import SegmentReader

_LOAD_S: Final = 1.0
_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`, until the router has read the brokers' own."""
_CREDIT_BUDGETS: Final = 2
_CREDIT_BYTES_MIN: Final = 4 << 20
_WELCOME_S: Final = 15.0
"""Without WELCOME for so long: what was said may have gone to a router that has ended, so it is said anew by a new start."""
_SETTLE_S: Final = 2.0
"""After STOP: how long to wait for the router to acknowledge what was given back."""


class Worker:
    """The process: settings, loop, and the parts that a welcome makes."""

    def __init__(self, settings: Settings, seat: int) -> None:
        self._settings = settings
        self._seat = seat
        self._start = secrets.randbits(63) | 1
        self._digest = handover.digest(settings)
        self._loop = Loop()
        self._log = logs.get()
        self._exit = Exit.OK
        self._journal: Journal | None = None
        self._links: Links | None = None
        self._reader = SegmentReader(settings.spool_dir)
        self._table = _table(settings, self._reader)
        self._router_fd = -1
        self._load_at = 0.0
        self._gave_back_at: float | None = None
        self._welcome_until = monotonic() + _WELCOME_S
        self._inbox = Inbox(
            self._loop,
            settings.bus_path,
            seat=seat,
            shard_start=self._start,
            received=self._received,
            freed=self._freed,
            broken=self._break,
        )

    def run(self) -> Exit:
        """Until STOP is done, the router ends, or something breaks."""
        # Supervisor and terminal signal the whole group: the router drains first and says STOP.
        self._loop.on_signals(self._signalled, signal.SIGTERM, signal.SIGINT)
        self._loop.add_upkeep(self._upkeep)
        self._say_hello("")
        try:
            self._loop.run()
        except AssertionError as error:
            self._log.critical("shard_broken", what=str(error), exc_info=True)
            self._inbox.say(Broken(str(error) or "an invariant does not hold"))
            self._exit = Exit.BROKEN
        self._end()
        return self._exit

    def _say_hello(self, journal: str) -> None:
        self._inbox.say(Hello(self._seat, os.getpid(), journal, self._digest))

    # --- events ------------------------------------------------------------------------------------------------------

    def _received(self, message: RouterMessage) -> None:
        if isinstance(message, Welcome):
            self._welcomed(message)
            return
        if self._journal is None:
            self._break(f"{type(message).__name__} before WELCOME")
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

    def _welcomed(self, welcome: Welcome) -> None:
        if self._journal is not None:
            self._break("a second WELCOME")
            return
        if welcome.settings_digest != self._digest:
            self._log.error("settings_differ", router=welcome.settings_digest, shard=self._digest)
            self._leave(Exit.CONFIGURATION)
            return
        try:
            self._router_fd = os.pidfd_open(welcome.router_pid)
        except OSError as error:
            self._break(f"the router (pid {welcome.router_pid}) cannot be watched: {error.strerror}")
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
            self._log.exception("journal_failed", directory=str(self._settings.journal_dir), reason=error.strerror)
            self._leave(Exit.SPOOL)
            return
        if welcome.producer_id_expiration_ms > 0:
            self._table.limits = self._table.limits._replace(expiration_ms=welcome.producer_id_expiration_ms)
        self._table.wall.tell(wall_ms(), now=monotonic())
        self._links = _links(self._loop, self._settings, self._table, self._journal, seat=self._seat)
        self._log.info("shard_welcomed", router_pid=welcome.router_pid, journal=self._journal.name)
        self._say_hello(self._journal.name)

    def _freed(self, slots: Sequence[int]) -> None:
        assert self._journal is not None
        self._journal.release(slots)
        self._table.slots_freed(now=monotonic())

    def _router_ended(self, _events: int) -> None:
        self._log.warning("router_ended")
        self._leave(Exit.PEER_GONE)

    def _signalled(self, number: int) -> None:
        self._log.info("signal_left_to_router", signal=signal.Signals(number).name)
        if self._journal is None:
            # Nobody welcomed us yet: nobody will say STOP.
            self._leave(Exit.OK)

    def _break(self, what: str) -> None:
        self._log.error("bus_broken", what=what)
        self._leave(Exit.PEER_GONE)

    def _leave(self, code: Exit) -> None:
        self._exit = code
        self._loop.stop()

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _upkeep(self, now: float) -> float | None:
        deadlines: list[float | None] = []
        if self._links is not None:
            self._loop.moved(self._table.fill(now=now))
            self._links.tick(now)
            self._stopping(now)
            for credit in self._table.credits():
                self._inbox.say(credit)
            for said in self._table.outbox.take():
                self._inbox.say(said.message, said.slots)
            if now >= self._load_at:
                self._tell_load(now)
            deadlines += [self._load_at, self._links.next_deadline(now), self._table.stop_at]
            if self._table.accumulator.has_line and self._table.stop_at is None:
                deadlines.append(now)
        elif now >= self._welcome_until:
            self._log.warning("not_welcomed", bus=str(self._settings.bus_path))
            self._leave(Exit.PEER_GONE)
        else:
            deadlines.append(self._welcome_until)
        deadlines.append(self._inbox.tick(now))
        return min((at for at in deadlines if at is not None), default=None)

    def _stopping(self, now: float) -> None:
        """After STOP: give back when nothing is on the wire or the time is over, then wait for the router to have it."""
        stop_at = self._table.stop_at
        if stop_at is None:
            return
        if self._gave_back_at is None:
            if self._table.on_wire and now < stop_at:
                return
            self._table.give_back()
            self._gave_back_at = now
            self._table.stop_at = now + _SETTLE_S
        elif self._inbox.settled or now >= stop_at:
            self._leave(Exit.OK)

    def _tell_load(self, now: float) -> None:
        self._load_at = now + _LOAD_S
        self._table.wall.tell(wall_ms(), now=now)
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
        self._inbox.say(Load(self._links.loads(now), self._table.partition_loads(), counters))

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


def _table(settings: Settings, reader: SegmentReader) -> LeaseTable:
    kafka = settings.kafka
    levels = Levels(kafka.compression_gzip_level, kafka.compression_lz4_level, kafka.compression_zstd_level)
    # A batch of one largest record must fit into the pool.
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
    return LeaseTable(
        Limits(backoff, _EXPIRATION_MS),
        Accumulator(BufferPool(total, kafka.batch_size), reader),
        rules_of,
        CreditRule(_CREDIT_BUDGETS, max(_CREDIT_BYTES_MIN, 2 * int(settings.limits.frame_bytes_max))),
    )


def _links(loop: Loop, settings: Settings, table: LeaseTable, journal: Journal, *, seat: int) -> Links:
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
    return Links(loop, options, rules, table, journal)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a shard; the exit code says why it ended (`runtime.process.Exit`)."""
    refuse_optimised()
    tie_to_parent()
    take_journal()
    parser = argparse.ArgumentParser(prog="penstock-shard", description="A shard of the penstock daemon.")
    _ = parser.add_argument("--settings", type=Path, required=True, help="what the launcher wrote for the processes")
    _ = parser.add_argument("--seat", type=int, required=True, help="which shard this is, from 0")
    options = parser.parse_args(arguments)
    settings = handover.read(options.settings)
    logs.configure(f"shard-{options.seat}", level=settings.log_level)
    count_start(settings.runtime_dir, f"shard-{options.seat}")
    try:
        self_check(monotonic)
    except SlowChecksumError as error:
        logs.get().critical("checksum_unfit", reason=str(error))
        sys.exit(Exit.CONFIGURATION)
    sys.exit(Worker(settings, options.seat).run())


if __name__ == "__main__":
    main()
