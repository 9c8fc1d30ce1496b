"""A spool that is killed, cut from power, filled and failed at any moment, held against the plain list of what went in."""

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.daemon.ledger.entries import (
    BatchBoundsEntry,
    GrantedEntry,
    IncarnationEntry,
    ParkedEntry,
    PartitionEntry,
    StampRowEntry,
)
from penstock.daemon.ledger.partition_state import LedgerPartition
from penstock.daemon.ledger.slices import NoSpaceError, SpoolFullError
from penstock.wire.messages import BatchBounds, StampRow

from tests.fakes.disks import Killed
from tests.harness.counts import model_examples
from tests.model.spool_world import INCARNATION, OWN_PARTITION, OWN_TOPIC, SpoolWorld

PARTITIONS = 3
partitions = st.integers(0, PARTITIONS - 1)
seeds = st.integers(0, 1 << 30)
slices = st.lists(
    st.tuples(partitions, st.integers(1, 20), st.integers(1, 900)),
    min_size=1,
    max_size=PARTITIONS,
    unique_by=lambda t: t[0],
)
kill_points = st.none() | st.integers(0, 12)


class SpoolMachine(RuleBasedStateMachine):
    """Every stop is followed by a start, and every start by a comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.was_full = False
        self.home = Path(
            tempfile.mkdtemp(prefix="penstock-spool-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        directory = self.home / "spool"
        directory.mkdir(mode=0o700)
        self.world = SpoolWorld(directory)

    def teardown(self) -> None:
        self.world.close()
        shutil.rmtree(self.home)

    @initialize()
    def number_the_partitions(self) -> None:
        self.world.append(IncarnationEntry(INCARNATION))
        for index in range(PARTITIONS):
            self.world.append(self.world.ledger.new_partition_entry("topic", b"", index))
            self.world.append(StampRowEntry(index, StampRow(9, 0, 0, 0), "new"))
        self.world.append(self.world.ledger.new_partition_entry(OWN_TOPIC, b"", 0))
        self.world.write()
        self.world.sync()

    # --- what a router does ------------------------------------------------------------------------------------------

    @rule(client=st.sampled_from([None, "a", "b"]), sizes=slices, skip=st.integers(0, 2))
    def take_a_frame(self, client: str | None, sizes: list[tuple[int, int, int]], skip: int) -> None:
        def take() -> None:
            try:
                self.world.frame(client, sizes, skip=skip)
            except NoSpaceError:
                assert self.was_full
            except SpoolFullError:
                assert self.world.log.segments.sealed_count > 0

        self.survive(take)

    @rule(partition=partitions, share=st.floats(0, 1), seat=st.integers(0, 1))
    def acknowledge(self, partition: int, share: float, seat: int) -> None:
        state = self.state(partition)
        mark = state.mark + int((state.next_ordinal - state.mark) * share)
        self.survive(lambda: self.world.ack(partition, mark, seat=seat))

    @rule(step_ms=st.sampled_from([1_000, 20_000, 60_000, 200_000]))
    def let_time_pass(self, step_ms: int) -> None:
        self.world.tick(step_ms)

    @rule(step_ms=st.integers(3_600_001, 9_000_000))
    def set_the_clock_back(self, step_ms: int) -> None:
        self.world.tick(step_ms, back=True)

    @rule(records=st.integers(1, 9))
    def refuse(self, records: int) -> None:
        self.survive(lambda: self.world.refuse(records))

    @rule()
    def tell_what_is_settled(self) -> None:
        def tell() -> None:
            with contextlib.suppress(NoSpaceError, SpoolFullError):
                self.world.tell()

        self.survive(tell)

    @rule()
    def deliver_what_was_told(self) -> None:
        state = self.state(OWN_PARTITION)
        self.survive(lambda: self.world.ack(OWN_PARTITION, state.next_ordinal))

    @rule(partition=partitions, start=st.floats(0, 1), count=st.integers(1, 30))
    def park(self, partition: int, start: float, count: int) -> None:
        state = self.state(partition)
        first = state.mark + int((state.next_ordinal - state.mark) * start)
        count = min(count, state.next_ordinal - first)
        if count > 0:
            entry = ParkedEntry(partition, [(first, count)], 10, "too large", "letter")
            self.survive(lambda: self.world.append(entry))

    @rule(partition=partitions)
    def bump(self, partition: int) -> None:
        state = self.state(partition)
        row = StampRow(9, state.rows[-1].epoch + 1, state.mark, state.mark)
        self.survive(lambda: self.world.append(StampRowEntry(partition, row, "bump")))

    @rule(partition=partitions, sizes=st.lists(st.integers(1, 5), max_size=4))
    def return_a_lease(self, partition: int, sizes: list[int]) -> None:
        state = self.state(partition)
        cuts: list[BatchBounds] = []
        at = state.mark
        for size in sizes:
            if at + size <= state.next_ordinal:
                cuts.append(BatchBounds(at, size, 0))
                at += size
        self.survive(lambda: self.world.append(BatchBoundsEntry(partition, cuts, facts=True, unknown_through=None)))

    @rule(partition=partitions)
    def grant(self, partition: int) -> None:
        generation = self.state(partition).generation + 1
        self.survive(lambda: self.world.append(GrantedEntry(partition, generation, 0, 1, generation)))

    @rule()
    def write(self) -> None:
        self.survive(self.world.write)

    @rule()
    def write_and_sync(self) -> None:
        self.survive(lambda: (self.world.write(), self.world.sync()))

    @rule(client=st.sampled_from([None, "a"]), sizes=slices)
    def take_and_write_a_frame_while_a_sync_runs(self, client: str | None, sizes: list[tuple[int, int, int]]) -> None:
        def meanwhile() -> None:
            with contextlib.suppress(NoSpaceError, SpoolFullError):
                self.world.frame(client, sizes)
            self.world.write()

        self.survive(lambda: (self.world.write(), self.world.sync(meanwhile)))

    @rule(seal=st.booleans())
    def deliver_everything(self, *, seal: bool) -> None:
        """And clean, before a sync may have covered what says so. `seal`: with a segment behind it."""

        def deliver() -> None:
            for partition in range(PARTITIONS):
                self.world.ack(partition, self.state(partition).next_ordinal)
            if seal:
                with contextlib.suppress(NoSpaceError, SpoolFullError):
                    self.world.frame(None, [(0, 1, 3000)])
                self.world.write()
                self.world.log.remove_unneeded()

        self.survive(deliver)

    @rule()
    def clean(self) -> None:
        self.survive(self.world.log.remove_unneeded)

    # --- what happens to it ------------------------------------------------------------------------------------------

    @rule(full=st.booleans())
    def fill_or_free_the_disk(self, full: bool) -> None:
        self.world.disk.full = full
        self.was_full = self.was_full or full

    @precondition(lambda self: not self.world.disk.full)
    @rule(failures=st.integers(1, 2))
    def let_syncs_fail(self, failures: int) -> None:
        self.world.disk.failing_syncs = failures
        self.survive(lambda: (self.world.write(), *(self.world.sync() for _ in range(failures + 1))))
        self.world.disk.failing_syncs = 0

    @rule(calls=st.integers(0, 4), part=st.floats(0, 1))
    def die_soon(self, calls: int, part: float) -> None:
        self.world.disk.kill_in, self.world.disk.kill_after_part = calls, part

    @rule(again=kill_points)
    def kill(self, again: int | None) -> None:
        self.make_room()
        self.world.kill(again_in=again)

    @rule(seed=seeds, again=kill_points)
    def cut_the_power(self, seed: int, again: int | None) -> None:
        self.world.cut_power(random.Random(seed), again_in=again)

    @rule()
    def stop_in_order(self) -> None:
        self.make_room()
        self.survive(self.world.stop)

    @invariant()
    def the_tables_hold(self) -> None:
        for state in self.world.ledger.by_number.values():
            state.assert_consistent()
        assert self.world.log.segments.pending == len(self.world.pending)
        assert self.world.synced <= self.world.written <= len(self.world.entries)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def state(self, partition: int) -> LedgerPartition:
        return self.world.ledger.by_number[partition]

    def make_room(self) -> None:
        """A start on a disk without any room is another test."""
        self.world.disk.full = False

    def survive(self, act: Callable[[], object]) -> None:
        """Do something; where the process dies of it, start again."""
        try:
            act()
        except Killed:
            self.world.disk.failing_syncs = 0
            self.make_room()
            self.world.kill()


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(
    max_examples=model_examples(40), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_minute_told_for_the_last_time_stays_so_when_its_refusals_are_written_again(tmp_path: Path) -> None:
    world = SpoolWorld(tmp_path)
    world.append(IncarnationEntry(INCARNATION))
    world.append(world.ledger.new_partition_entry("topic", b"", 0))
    world.append(PartitionEntry(OWN_PARTITION, OWN_TOPIC, b"", 0))
    world.frame(None, [(0, 5, 100)])
    world.ack(0, 5)
    world.write()
    world.sync()
    world.refuse(4)
    world.tick(60_000)
    world.tell()
    world.write()
    world.disk.failing_syncs = 1
    world.sync()
    world.sync()
    world.kill()
    assert list(world.books.minutes) == []
    world.close()
