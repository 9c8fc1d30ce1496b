"""What a journal says after its writer was killed: every cut that was announced, and no torn one."""

import os
import resource
import select
import sys
from pathlib import Path
from random import Random

import pytest
from penstock.daemon.leases import journals
from penstock.runtime.host import boot_id
from penstock.shards.journal import open_journal

from tests.harness.processes import Deadline, start_tied

pytestmark = pytest.mark.process

WRITER = """
import os, sys
from pathlib import Path
from penstock.shards.journal import open_journal
journal = open_journal(Path(sys.argv[1]), seat=3, shard_start=int(sys.argv[2]), router_start=7, slots=50)
live = []
first = 0
while True:
    slot = journal.record(1, 2, first, 10, producer_id=99, epoch=4)
    os.write(1, first.to_bytes(8, "big"))
    live.append(slot)
    if len(live) > 40:
        journal.release(live[:20])
        del live[:20]
    first += 10
"""


@pytest.mark.parametrize("life", range(5))
def test_every_announced_cut_is_there_after_a_kill_at_any_moment(tmp_path: Path, life: int) -> None:
    goal = Random(life).randrange(200, 20_000)
    writer = start_tied([sys.executable, "-c", WRITER, str(tmp_path), str(life)], stdout=-1)
    assert writer.stdout is not None
    announced = b""
    deadline = Deadline(30, "cuts are announced")
    while len(announced) < 8 * goal:
        _ = select.select([writer.stdout], [], [], deadline.left())
        announced += os.read(writer.stdout.fileno(), 1 << 16)
    writer.kill()
    _ = writer.wait(60)
    while more := os.read(writer.stdout.fileno(), 1 << 16):
        announced += more
    writer.stdout.close()
    last = int.from_bytes(announced[len(announced) // 8 * 8 - 8 :][:8], "big")
    read = journals.read(tmp_path / f"shard-3-{life}.journal", boot_id())
    assert read.is_complete
    firsts = sorted(slot.first for slot in read.slots)
    # The last 20 are never freed before they are announced; the one being written may be there or not.
    assert firsts[-20:-1] == list(range(firsts[-1] - 190, firsts[-1], 10))
    assert last in firsts
    assert firsts[-1] in (last, last + 10)
    assert all((slot.generation, slot.count, slot.producer_id, slot.epoch) == (2, 10, 99, 4) for slot in read.slots)


def test_a_journal_is_locked_for_life_and_never_made_twice(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, seat=0, shard_start=5, router_start=1, slots=10)
    path = tmp_path / journal.name
    assert journals.is_locked(path)
    with pytest.raises(FileExistsError):
        _ = open_journal(tmp_path, seat=0, shard_start=5, router_start=1, slots=10)
    journal.close()
    assert not journals.is_locked(path)


def test_a_full_journal_takes_no_cut_until_one_is_freed_and_serials_rise(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, seat=0, shard_start=5, router_start=1, slots=2)
    slots = [journal.record(1, 1, first, 1, producer_id=9, epoch=0) for first in range(2)]
    assert journal.free_slots == 0
    with pytest.raises(AssertionError):
        _ = journal.record(1, 1, 2, 1, producer_id=9, epoch=0)
    journal.release(slots[:1])
    _ = journal.record(1, 1, 2, 1, producer_id=9, epoch=0)
    read = journals.read(tmp_path / journal.name, boot_id())
    assert sorted((slot.serial, slot.first) for slot in read.slots) == [(2, 1), (3, 2)]
    journal.close()


def test_a_disk_without_space_is_an_error_before_the_first_cut(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        _ = open_journal(tmp_path / "nowhere" / ("x" * 300), seat=0, shard_start=5, router_start=1)


def test_a_journal_that_finds_no_space_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError):
            _ = open_journal(tmp_path, seat=0, shard_start=5, router_start=1, slots=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
