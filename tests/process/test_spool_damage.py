"""A spool whose files are cut, flipped, lost or unwritable: what a start makes of it."""

import contextlib
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from penstock.daemon.ledger.entries import CheckpointEntry, IncarnationEntry, StampRowEntry
from penstock.daemon.ledger.entry_codec import EntryType
from penstock.daemon.ledger.segment_scan import ENTRIES_AT, ENTRY, scan_segment
from penstock.daemon.ledger.slices import NoSpaceError, SpoolFullError
from penstock.daemon.spool.directory import SpoolError
from penstock.daemon.spool.disk import Buffer, Disk
from penstock.daemon.spool.report import show, verify
from penstock.daemon.spool.segment_files import segment_numbers, segment_path
from penstock.daemon.spool.tail import SpoolLimits
from penstock.wire.messages import StampRow

from tests.harness.requirements import mounted_tmpfs
from tests.model.spool_world import INCARNATION, LIMITS, SpoolWorld

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    path.mkdir(mode=0o700)
    return path


def number_two(world: SpoolWorld) -> None:
    world.append(IncarnationEntry(INCARNATION))
    for index in range(2):
        world.append(world.ledger.new_partition_entry("topic", b"", index))
        world.append(StampRowEntry(index, StampRow(9, 0, 0, 0), "new"))


def fill_with_frames(world: SpoolWorld) -> None:
    while True:
        world.frame("a", [(0, 1, 650)])


def restore(folder: Path, copy: Path) -> None:
    """The files of a copy, in the same directory."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in copy.iterdir():
        shutil.copy2(path, folder / path.name)


def test_a_last_segment_cut_at_any_byte_keeps_every_whole_entry_before_it(folder: Path, tmp_path: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    for number in range(3):
        world.frame("a", [(0, 2, 20), (1, 1, 10)], skip=number)
        world.ack(0, number)
    world.write()
    world._let_go()
    entries = list(world.entries)
    last = segment_path(folder, segment_numbers(folder)[-1])
    data = last.read_bytes()
    found = scan_segment(bytearray(data), world.identity.spool, segment_numbers(folder)[-1])
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for cut in range(ENTRIES_AT, found.end + 1):
        restore(folder, copy)
        last.write_bytes(data[:cut] + bytes(len(data) - cut) if cut % 2 else data[:cut])
        world.entries = list(entries)
        whole = [raw for raw in found.entries if raw.offset + ENTRY.size + len(raw.body) <= cut]
        world.open()
        world._compare(sum(1 for raw in whole if raw.kind not in {EntryType.CHECKPOINT, EntryType.SYNCED}))
        world._let_go()


def test_a_flipped_bit_never_stops_a_start_and_never_makes_an_ordinal_be_used_again_unnoticed(
    folder: Path, tmp_path: Path
) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    for number in range(12):
        world.frame("a", [(0, 2, 300), (1, 1, 200)])
        if number % 3 == 2:
            world.ack(0, number)
        world.write()
        world.sync()
    nexts = {number: state.next_ordinal for number, state in world.ledger.by_number.items()}
    world._let_go()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    chance = random.Random(7)
    for _ in range(120):
        restore(folder, copy)
        path = segment_path(folder, chance.choice(segment_numbers(folder)))
        data = bytearray(path.read_bytes())
        used = scan_segment(data, world.identity.spool, int(path.stem, 16)).end
        place = chance.randrange(used)
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        world.open()
        recovered = world.recovered
        for number, expected in nexts.items():
            assert world.ledger.by_number[number].next_ordinal == expected or recovered.uncertain, (path, place)
        lost = {
            (part.partition, ordinal)
            for part in recovered.report.lost
            for ordinal in range(part.first, part.first + part.count)
        }
        for part in recovered.slices:
            key = (part.partition, part.first, part.count)
            assert world.log.read_slice(part.segment, part.offset, part.length) == world.payloads[key]
        held = {(part.partition, at) for part in recovered.slices for at in range(part.first, part.end)}
        assert not lost & held
        if not recovered.uncertain:
            pending = {
                (number, at)
                for number, state in world.ledger.by_number.items()
                for at in range(state.mark, nexts[number])
            }
            assert pending <= held | lost | {
                (number, at)
                for number, state in world.ledger.by_number.items()
                for hole in state.holes
                for at in range(hole.first, hole.end)
            }
        if recovered.uncertain:
            assert world.identity.new_producer_id_reason is not None
        world._let_go()


def test_damage_is_copied_aside_and_counted_once_more_at_each_start_but_kept_once(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    world.frame("a", [(0, 2, 100)])
    world.frame("a", [(0, 2, 100)])
    world.write()
    world.sync()
    world._let_go()
    number = segment_numbers(folder)[-1]
    path = segment_path(folder, number)
    data = bytearray(path.read_bytes())
    first = next(raw for raw in scan_segment(data, world.identity.spool, number).entries if raw.kind == EntryType.FRAME)
    data[first.offset + 40] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        world.open()
        assert [(part.first, part.count) for part in world.recovered.report.lost or []] in ([(0, 2)], [])
        assert [part.first for part in world.recovered.slices] == [2]
        assert world.ledger.by_number[0].mark == 2
        kept = list((folder / "quarantine").iterdir())
        assert [entry.name for entry in kept] == [f"{number:016x}-{first.offset:08x}.bytes"]
        world._let_go()
    assert verify(folder).damaged


def test_a_lost_segment_in_the_middle_leaves_holes_and_the_rest(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    while len(segment_numbers(folder)) < 5:
        world.frame("a", [(0, 1, 600)])
        world.write()
    world.sync()
    world._let_go()
    segment_path(folder, segment_numbers(folder)[2]).unlink()
    world.open()
    assert world.recovered.report.lost
    lost = sum(part.count for part in world.recovered.report.lost)
    assert lost + len(world.recovered.slices) == world.ledger.by_number[0].next_ordinal
    assert not world.recovered.uncertain
    world.close()


def test_a_lost_newest_segment_asks_for_a_new_identity(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    world.frame("a", [(0, 1, 600)])
    world.identity.set_producer_id(77)
    world.write()
    world.sync()
    world.kill()
    assert world.identity.producer_id == 77
    world.frame("a", [(0, 1, 600)])
    world.write()
    world.sync()
    world._let_go()
    segment_path(folder, segment_numbers(folder)[-1]).unlink()
    world.open()
    assert world.recovered.uncertain
    assert (world.identity.producer_id, world.identity.new_producer_id_reason) == (
        None,
        "synced entries of the spool are missing",
    )
    world.close()


class LyingDisk(Disk):
    """Says that less was taken than was given; `takes` tells whether the bytes were taken all the same."""

    def __init__(self, *, takes: bool, lies: int) -> None:
        self.takes = takes
        self.lies = lies

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.lies:
            self.lies -= 1
            data = b"".join(buffers)
            return os.pwrite(fd, data if self.takes else b"", offset) and min(40, len(data) - 1)
        return super().write(fd, buffers, offset)


@pytest.mark.parametrize("takes", [True, False])
def test_an_answer_that_claims_fewer_bytes_does_no_harm(folder: Path, *, takes: bool) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    disk = LyingDisk(takes=takes, lies=3)
    world.log._disk = world.log._active._disk = disk
    world.frame("a", [(0, 2, 100)])
    world.write()
    assert disk.lies == 0
    world.kill()
    assert [part.first for part in world.recovered.slices] == [0]
    world.close()


def test_syncs_that_keep_failing_end_the_router(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    world.write()
    world.disk.failing_syncs = 3
    world.sync()
    world.sync()
    with pytest.raises(OSError, match="the disk fails"):
        world.sync()
    world.disk.failing_syncs = 0
    world.kill()
    world.close()


def test_after_a_failed_sync_references_to_what_was_unsynced_lead_to_the_second_copy(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    world.frame("a", [(0, 2, 100)])
    world.write()
    world.sync()
    (early,) = world.pending.values()
    early_place = (early.segment, early.offset)
    world.frame("a", [(0, 2, 100), (1, 1, 50)])
    world.write()
    world.disk.failing_syncs = 1
    world.sync()
    assert world.log.unsynced
    assert (early.segment, early.offset) == early_place
    assert {part.segment for part in world.pending.values() if part is not early} == {early.segment + 1}
    for key, part in world.pending.items():
        assert world.log.read_slice(part.segment, part.offset, part.length) == world.payloads[key]
    world.sync()
    assert not world.log.unsynced
    world.close()


def test_a_full_spool_refuses_frames_takes_facts_and_goes_on_when_something_is_delivered(folder: Path) -> None:
    world = SpoolWorld(folder, SpoolLimits(bytes_max=5 * 4096, segment_bytes=4096, control_reserve_bytes=1024))
    number_two(world)
    with pytest.raises(SpoolFullError):
        fill_with_frames(world)
    world.write()
    world.sync()
    assert world.log.bytes_used <= 5 * 4096
    world.ack(0, world.ledger.by_number[0].next_ordinal)
    world.write()
    world.sync()
    assert world.log.remove_unneeded()
    world.frame("a", [(0, 1, 700)])
    world.close()


def test_segments_are_small_enough_for_space_to_come_back_bit_by_bit() -> None:
    assert SpoolLimits(bytes_max=64 << 20, segment_bytes=64 << 20).segment_bytes_effective == 8 << 20
    assert SpoolLimits(bytes_max=10 << 30, segment_bytes=64 << 20).segment_bytes_effective == 64 << 20
    assert SpoolLimits(bytes_max=1 << 20, segment_bytes=4096).segment_bytes_effective == 4096


def test_too_much_that_waits_for_its_sync_holds_frames_up(folder: Path) -> None:
    world = SpoolWorld(folder, SpoolLimits(segment_bytes=1 << 20, control_reserve_bytes=1024, unsynced_bytes_max=4096))
    number_two(world)
    world.write()
    world.sync()
    with pytest.raises(SpoolFullError, match="sync"):
        fill_with_frames(world)
    world.write()
    world.sync()
    assert world.log.unsynced_bytes == 0
    world.frame("a", [(0, 1, 700)])
    world.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB, really full when it is full."""
    mount = tmp_path / "small"
    mount.mkdir()
    with mounted_tmpfs(mount, "size=128k,mode=700"):
        yield mount


def fill(path: Path) -> None:
    """Write until there is no block left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError):
        while os.write(fd, bytes(4096)):
            pass
    os.close(fd)
    assert os.statvfs(path).f_bavail == 0


def test_a_disk_that_is_really_full_refuses_frames_takes_facts_and_keeps_everything(small_disk: Path) -> None:
    folder = small_disk / "spool"
    folder.mkdir(mode=0o700)
    world = SpoolWorld(folder, SpoolLimits(segment_bytes=16384, control_reserve_bytes=4096))
    number_two(world)
    with pytest.raises(NoSpaceError):
        fill_with_frames(world)
    assert world.log.has_spare
    world.write()
    world.sync()
    filler = small_disk / "filler"
    fill(filler)
    for _ in range(150):
        world.append(StampRowEntry(1, StampRow(9, 0, 0, 0), "a fact that takes some room"))
    world.write()
    world.sync()
    assert not world.log.has_spare
    pending = set(world.pending)
    world.kill()
    assert set(world.pending) == pending
    with pytest.raises(NoSpaceError):
        world.frame("a", [(0, 1, 3000), (1, 1, 3000)])
    world.ack(0, world.ledger.by_number[0].next_ordinal)
    world.write()
    world.sync()
    assert len(world.log.remove_unneeded()) > 1
    assert world.log.has_spare
    world.frame("a", [(0, 1, 600)])
    world.stop()
    world.close()


class CountingWorld(SpoolWorld):
    """Counts how often the tables are asked for."""

    snapshots = 0

    def _checkpoint(self) -> CheckpointEntry:
        self.snapshots += 1
        return super()._checkpoint()


def test_frames_that_a_full_disk_refuses_do_not_cost_a_snapshot_each(folder: Path) -> None:
    world = CountingWorld(folder, SpoolLimits(segment_bytes=16384, control_reserve_bytes=4096))
    number_two(world)
    world.disk.full = True
    with pytest.raises(NoSpaceError):
        fill_with_frames(world)
    before = world.snapshots
    for _ in range(100):
        with pytest.raises(NoSpaceError):
            world.frame("a", [(0, 1, 12_000)])
    assert world.snapshots - before < 20
    world.close()


def test_a_report_of_a_live_spool_says_what_is_in_it_and_changes_nothing(folder: Path) -> None:
    world = SpoolWorld(folder, LIMITS)
    number_two(world)
    for _ in range(6):
        world.frame("a", [(0, 2, 600), (1, 1, 100)], skip=1)
    world.ack(0, 4)
    world.write()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    report = show(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert sum(part.records for part in report.segments) == 18
    assert sum(part.kinds.get("frame", 0) for part in report.segments) == 6
    assert [(part.partition, part.mark, part.next_ordinal, part.pending) for part in report.partitions] == [
        (0, 4, 12, 8),
        (1, 0, 6, 6),
    ]
    assert [(part.client_id, part.high, part.gaps, part.pending_frames) for part in report.clients] == [("a", 11, 6, 6)]
    assert report.pending_slices == len(world.pending)
    assert "topic-0: resolved below 4, next 12, 8 pending" in report.text()
    world.close()


def flip(world: SpoolWorld, folder: Path, frame: int) -> None:
    """Flip a bit in the payload of the nth frame of the last segment."""
    number = segment_numbers(folder)[-1]
    path = segment_path(folder, number)
    data = bytearray(path.read_bytes())
    raws = [raw for raw in scan_segment(data, world.identity.spool, number).entries if raw.kind == EntryType.FRAME]
    data[raws[frame].offset + ENTRY.size + len(raws[frame].body) - 3] ^= 1
    path.write_bytes(data)


def test_after_a_power_cut_damage_in_what_was_surely_synced_costs_only_itself(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    for _ in range(3):
        world.frame("a", [(0, 2, 100)])
        world.write()
        world.sync()
    world._let_go()
    flip(world, folder, 1)
    world.open(power_cut=True)
    assert [part.first for part in world.recovered.slices] == [0, 4]
    assert [(part.first, part.count) for part in world.recovered.report.lost] == [(2, 2)]
    assert world.recovered.report.corrupt_entries == 1
    world.close()


def test_after_a_power_cut_damage_in_the_unsynced_tail_ends_the_log(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    world.frame("a", [(0, 2, 100)])
    world.write()
    world.sync()
    for _ in range(3):
        world.frame("a", [(0, 2, 100)])
    world.write()
    world._let_go()
    flip(world, folder, 2)
    world.open(power_cut=True)
    assert [part.first for part in world.recovered.slices] == [0, 2]
    assert world.ledger.by_number[0].next_ordinal == 4
    assert world.sessions.by_id["a"].high == 1
    assert (world.recovered.report.corrupt_entries, world.recovered.report.lost) == (0, [])
    assert world.recovered.report.dropped_bytes > 0
    assert len(list((folder / "quarantine").iterdir())) == 1
    world.close()


def test_the_same_damage_without_a_power_cut_is_never_taken_for_a_torn_tail(folder: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    for _ in range(3):
        world.frame("a", [(0, 2, 100)])
    world.write()
    world.identity.set_producer_id(77)
    world.identity.confirm_producer_id()
    world._let_go()
    flip(world, folder, 2)
    world.open()
    assert [part.first for part in world.recovered.slices] == [0, 2]
    assert world.recovered.report.corrupt_entries == 1
    assert world.recovered.uncertain
    assert world.identity.producer_id is None
    assert world.identity.new_producer_id_reason == "synced entries of the spool are missing"
    world.close()


def vandalise(folder: Path, chance: random.Random) -> None:
    """One of the things that disks and people do to files."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != "lock"]
    path, other = chance.choice(paths), chance.choice(paths)
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice([1, 8, 64, 512, 4096]))
    match chance.randrange(8):
        case 0:
            path.write_bytes(data[:start])
        case 1:
            path.write_bytes(data[:start] + bytes(end - start) + data[end:])
        case 2:
            path.write_bytes(data[:start] + chance.randbytes(end - start) + data[end:])
        case 3:
            path.write_bytes(data[:start] + data[end:])
        case 4:
            path.write_bytes(data[:start] + data[start:end] + data[start:])
        case 5:
            path.write_bytes(other.read_bytes())
        case 6:
            path.unlink()
        case _:
            path.write_bytes(data + chance.randbytes(100))


def test_whatever_is_done_to_the_files_a_start_works_or_says_why(folder: Path, tmp_path: Path) -> None:
    world = SpoolWorld(folder)
    number_two(world)
    for number in range(16):
        world.frame("a", [(0, 2, 300), (1, 1, 200)])
        if number % 3 == 2:
            world.ack(0, number)
        world.write()
        if number % 2:
            world.sync()
    world._let_go()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    refused: list[str] = []
    payloads = dict(world.payloads)
    for seed in range(int(os.environ.get("PENSTOCK_VANDALS", "150"))):
        chance = random.Random(seed)
        restore(folder, copy)
        for _ in range(chance.randrange(1, 4)):
            vandalise(folder, chance)
        power_cut = chance.random() < 0.5
        try:
            world.open(power_cut=power_cut)
        except SpoolError as error:
            refused.append(str(error))
            world._let_go()
            continue
        for part in world.recovered.slices:
            key = (part.partition, part.first, part.count)
            assert world.log.read_slice(part.segment, part.offset, part.length) == payloads[key], seed
        for number in world.ledger.by_number:
            world.frame(None, [(number, 1, 50)])
        world.write()
        world.sync()
        found = set(world.pending)
        world._let_go()
        _ = show(folder), verify(folder)
        world.open()
        assert set(world.pending) == found, seed
        world._let_go()
    assert all("version" in text for text in refused)
    assert len(refused) < 10
