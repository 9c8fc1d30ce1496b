"""A spool over a disk that forgets, and beside it the plain list of entries that it ought to hold."""

import contextlib
import random
import select
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.daemon.ledger.audit_counts import AuditCounts
from penstock.daemon.ledger.client_sequences import ClientStates
from penstock.daemon.ledger.entries import (
    OWN_SEQ,
    AckedEntry,
    CheckpointEntry,
    ControlEntry,
    FrameEntry,
    Lsn,
    PartitionSnapshot,
    RefusedEntry,
    SliceEntry,
)
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.ledger.segments import relocate
from penstock.daemon.ledger.slices import NoSpaceError, PendingFrame, PendingSlice, SpoolFullError
from penstock.daemon.spool.identity import SpoolIdentity
from penstock.daemon.spool.log import Spool
from penstock.daemon.spool.recovery import Recovered
from penstock.daemon.spool.tail import SpoolLimits
from penstock.wire.messages import Anchor

from tests.fakes.disks import Killed, TornDisk
from tests.model.straight_books import Key, StraightBooks, differences

LIMITS = SpoolLimits(
    bytes_max=1 << 18,
    segment_bytes=4096,
    control_reserve_bytes=1024,
    unsynced_bytes_max=1 << 20,
    quarantine_bytes_max=1 << 20,
)
OWN_TOPIC = "audit"
OWN_PARTITION = 3
INCARNATION = 77
Entry = ControlEntry | FrameEntry
SliceKey = tuple[int, int, int]


class SpoolWorld:
    """What a router does with its spool, and what it may expect of it after any stop.

    `entries`: everything appended that may still be in the log, oldest first; the first `written` must survive a kill, the
    first `synced` a power cut. `places`: where they lie, 0 for those that were there at the start.
    """

    def __init__(self, directory: Path, limits: SpoolLimits = LIMITS) -> None:
        self.limits = limits
        self.disk = TornDisk(directory)
        self.entries: list[Entry] = []
        self.places: list[Lsn] = []
        self.payloads: dict[SliceKey, bytes] = {}
        self.written = 0
        self.synced = 0
        self.recoveries = 0
        self._frames = 0
        self.accept_ms = 60_000 * 1_000
        self.era = 0
        self.told: list[tuple[int, Key, int, int]] = []
        """(place in `entries` of the statement, minute, its ordinals, those that were settled), of minutes told for the last time."""
        self.open()

    def open(self, *, kill_in: int | None = None, power_cut: bool = False) -> None:
        """Start: recover, and begin a segment. `kill_in`: die after so many calls to the disk."""
        self.disk.kill_in = None
        self.identity = SpoolIdentity.open(self.disk.directory, allow_unsafe_filesystem=True, disk=self.disk)
        self.identity.power_cut = power_cut
        self.spool: Spool | None = None
        self.disk.kill_in = kill_in
        spool, recovered = Spool.open(
            self.disk.directory,
            self.limits,
            identity=self.identity,
            disk=self.disk,
            books=AuditCounts(OWN_TOPIC, weight_max=1 << 30),
        )
        self.spool, self.recovered = spool, recovered
        self.ledger, self.sessions = recovered.ledger, recovered.clients
        self.pending: dict[SliceKey, PendingSlice] = {
            (part.partition, part.first, part.count): part for part in recovered.slices
        }
        spool.on_relocated = self._relocated
        spool.begin(self._checkpoint)
        self.disk.kill_in = None
        self.recoveries += 1

    def _checkpoint(self) -> CheckpointEntry:
        ledger = self.ledger
        return CheckpointEntry(
            ledger.snapshot(),
            self.sessions.snapshot(now_ms=0, wall_ms=0),
            ledger.incarnation,
            ledger.accept_ms,
            ledger.era,
            self.books.snapshot(),
        )

    @property
    def books(self) -> AuditCounts:
        assert self.ledger.audit_counts is not None
        return self.ledger.audit_counts

    def _relocated(self, moved: Mapping[Lsn, Lsn]) -> None:
        self.places = [moved.get(place, place) for place in self.places]
        relocate(moved, self.pending.values(), self.log.segments)

    # --- what a router does ------------------------------------------------------------------------------------------

    @property
    def log(self) -> Spool:
        assert self.spool is not None
        return self.spool

    def append(self, entry: ControlEntry) -> None:
        self.entries.append(entry)
        self.places.append(self.log.append(entry))
        self.ledger.apply(entry)
        self._resolve()

    def frame(self, client_id: str | None, sizes: Sequence[tuple[int, int, int]], *, skip: int = 0) -> None:
        """A frame of (partition, records, payload bytes) slices; `skip` sequences of the client were refused before it."""
        self._frames += 1
        slices: list[SliceEntry] = []
        payloads: list[bytes] = []
        at = 0
        for partition, count, nbytes in sizes:
            first = self.ledger.by_number[partition].next_ordinal
            payload = bytes(48) + f"{self._frames}:{partition}:{first};".encode() * (nbytes // 8 + 1)
            slices.append(SliceEntry(partition, first, count, 1, at, len(payload)))
            payloads.append(payload)
            at += len(payload)
        state = None if client_id is None else self.sessions.by_id.get(client_id)
        high = -1 if state is None else state.high
        count = sum(part.count for part in slices)
        is_own = any(partition == OWN_PARTITION for partition, _, _ in sizes)
        entry = FrameEntry(
            client_id,
            7,
            OWN_SEQ if is_own else high + 1 + skip,
            high,
            2,
            self.accept_ms,
            count,
            None,
            slices,
            0 if is_own else self.ledger.incarnation,
            self.era,
        )
        keys = [(part.partition, part.first, part.count) for part in slices]
        self.entries.append(entry)
        self.payloads.update(zip(keys, payloads, strict=True))
        try:
            place = self.log.append_frame(entry, payloads, created_ms=0)
        except (NoSpaceError, SpoolFullError):
            self.entries.pop()
            raise
        self.places.append(place.lsn)
        self.ledger.apply(entry)
        self.sessions.apply(entry, now_ms=0, wall_ms=0)
        for key, part, offset in zip(keys, slices, place.offsets, strict=True):
            self.pending[key] = _pending(part, place.segment, offset, place.lsn)

    def ack(self, partition: int, mark: int, *, seat: int = 0) -> None:
        self.append(AckedEntry(partition, mark, Anchor(mark, 1, 1, 1), 0, seat, 2, 1, 10 * mark))

    def tick(self, step_ms: int, *, back: bool = False) -> None:
        """Time goes on; `back`: the clock is set back by so much instead, and followed."""
        self.accept_ms += -step_ms if back else step_ms
        self.era += back
        self.books.advance_to(self.accept_ms, self.era)

    def refuse(self, records: int) -> None:
        """Records are refused, and told of before they are."""
        self.books.count_refused("topic", "busy", records)
        minute = next(found for found in self.books.current() if found.key.topic == "topic")
        minute.refused_in_log = sum(minute.refused.values())
        self.append(RefusedEntry(*minute.key, sorted(minute.refused.items())))

    def tell(self) -> None:
        """What is settled is told for the last time, and forgotten."""
        settled = list(self.books.settled)
        if not settled:
            return
        self.frame(None, [(OWN_PARTITION, 1, 100)])
        for minute in settled:
            straight = self._straight(len(self.entries))
            key = (minute.key.minute, minute.key.era)
            assert straight.pending(key) == 0
            self.told.append((len(self.entries), key, len(straight.rows[key].fates), minute.accepted))
            self.books.remove(minute)

    def _straight(self, length: int) -> StraightBooks:
        straight = StraightBooks({OWN_PARTITION})
        for entry in self.entries[:length]:
            straight.apply(entry)
        return straight

    def write(self) -> None:
        self.log.write()
        self.written = len(self.entries)

    def sync(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Start a sync, do something, and wait for its end."""
        if self.log.start_sync():
            if meanwhile is not None:
                # The thread is done, and the loop has not heard of it.
                assert select.select([self.log.sync_fd], [], [], 10.0)[0]
                meanwhile()
            before = self.log.synced_through
            if self.log.finish_sync() > before:
                self.synced = sum(1 for place in self.places if place < self.log.synced_through)
            else:
                # A failed sync writes everything again.
                self.written = len(self.entries)

    # --- how it stops ------------------------------------------------------------------------------------------------

    def kill(self, *, again_in: int | None = None) -> None:
        """The process ends; what was written stays. `again_in`: the next one dies too, so many calls after its start."""
        self._let_go()
        if again_in is not None:
            with contextlib.suppress(Killed):
                self.open(kill_in=again_in)
            self._let_go()
        self.open()
        self._compare(self.written)

    def cut_power(self, chance: random.Random, *, again_in: int | None = None) -> None:
        """The machine goes down; `again_in`: and again, so many calls after the next start."""
        self._let_go()
        if again_in is not None:
            self.disk.cut_power(chance)
            with contextlib.suppress(Killed):
                self.open(kill_in=again_in, power_cut=True)
            self._let_go()
        self.disk.cut_power(chance)
        self.open(power_cut=True)
        self._compare(self.synced)

    def stop(self) -> None:
        """An orderly stop and a start."""
        self.log.close(clean=True)
        self.identity.close()
        self.written = self.synced = len(self.entries)
        self.open()
        self._compare(len(self.entries))

    def close(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """What the kernel does at the end of a process."""
        self.disk.kill_in = None
        if self.spool is not None:
            if self.spool.syncing:
                _ = self.spool._syncer.wait()
            self.spool._syncer.close()
            if self.spool._tail is not None:
                self.spool._tail.close()
        self.identity.close()

    # --- what must be there ------------------------------------------------------------------------------------------

    def _compare(self, least: int) -> None:
        """The recovered tables are those after some prefix of the entries, of at least the given length."""
        recovered = self.recovered
        assert recovered.report.corrupt_entries == 0, recovered.report
        assert recovered.report.foreign_files == []
        assert recovered.report.lost == [], recovered.report
        assert recovered.report.checkpoint_mismatches == 0
        assert not recovered.uncertain
        found = _comparable(recovered.ledger.snapshot())
        lengths = [length for length, tables in self._prefixes() if length >= least and tables == found]
        assert lengths, f"no prefix of {len(self.entries)} entries from {least} on gives what was recovered"
        lengths = [length for length in lengths if self._sessions_equal(length, recovered)]
        assert lengths, "the sessions are those of no such prefix"
        length = next((length for length in lengths if not self._books_differ(length)), None)
        assert length is not None, self._books_differ(lengths[0])
        self._check_told(length)
        self.entries = self.entries[:length]
        self.places = [Lsn(0)] * length
        self.written = self.synced = length
        expected = self._expected_pending()
        assert list(self.pending) == sorted(self.pending, key=lambda key: self.pending[key].lsn)
        assert set(self.pending) == expected
        for key, part in self.pending.items():
            assert self.log.read_slice(part.segment, part.offset, part.length) == self.payloads[key]
        assert {id(part.frame) for part in recovered.slices} == {id(frame) for frame in recovered.frames}
        assert self.log.segments.pending == len(self.pending)

    def _books_differ(self, length: int) -> list[str]:
        told = [key for place, key, _, _ in self.told if place <= length]
        return differences(self._straight(length), self.books, told)

    def _check_told(self, length: int) -> None:
        """A statement that survives claims nothing that does not; one that is gone is owed again."""
        straight = self._straight(length)
        self.told = [told for told in self.told if told[0] <= length]
        for _, key, ordinals, accepted in self.told:
            assert ordinals == accepted == len(straight.rows[key].fates)
            assert straight.pending(key) == 0
        era, least_ms = max((self.ledger.era, self.ledger.accept_ms), self.books.clock)
        self.accept_ms = max(least_ms, self.accept_ms) if self.era == era else least_ms
        self.era = era
        self.books.advance_to(self.accept_ms, self.era)

    def _prefixes(self) -> list[tuple[int, list[PartitionSnapshot]]]:
        ledger = Ledger()
        tables = [(0, _comparable(ledger.snapshot()))]
        for length, entry in enumerate(self.entries, 1):
            ledger.apply(entry)
            tables.append((length, _comparable(ledger.snapshot())))
        return tables

    def _sessions_equal(self, length: int, recovered: Recovered) -> bool:
        sessions = ClientStates()
        for entry in self.entries[:length]:
            if isinstance(entry, FrameEntry):
                sessions.apply(entry, now_ms=0, wall_ms=0)
        return {name: (state.high, state.gaps) for name, state in sessions.by_id.items()} == {
            name: (state.high, state.gaps) for name, state in recovered.clients.by_id.items()
        }

    def _expected_pending(self) -> set[SliceKey]:
        states = self.ledger.by_number
        return {
            (part.partition, part.first, part.count)
            for entry in self.entries
            if isinstance(entry, FrameEntry)
            for part in entry.slices
            if part.first + part.count > states[part.partition].mark
            and not any(
                hole.first <= part.first and part.first + part.count <= hole.end
                for hole in states[part.partition].holes
            )
        }

    def _resolve(self) -> None:
        """Tell the spool of slices whose end the last entry was."""
        expected = self._expected_pending()
        for key in [key for key in self.pending if key not in expected]:
            self.log.segments.slices_resolved(self.pending.pop(key).segment, self.places[-1])


def _comparable(tables: list[PartitionSnapshot]) -> list[PartitionSnapshot]:
    """Without what a power cut makes uncertain."""
    return [table._replace(batch_bounds_are_facts=True, unknown_through=None) for table in tables]


def _pending(part: SliceEntry, segment: int, offset: int, place: Lsn) -> PendingSlice:
    frame = PendingFrame(None, 0, 0, 2, part.count, part.length, place, 0, None, 1)
    return PendingSlice(part.partition, part.first, part.count, segment, offset, part.length, 1, 0, place, frame)
