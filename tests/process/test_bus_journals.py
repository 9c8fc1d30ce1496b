"""Journals read after their owners, real processes, are gone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.daemon.leases import journals
from penstock.runtime.clock import monotonic
from penstock.runtime.host import boot_id
from penstock.shards.journal import Journal, open_journal
from penstock.wire.journal import SLOT_BYTES, SLOTS_AT

pytestmark = pytest.mark.process

HOLDER = """
import sys
from pathlib import Path
from penstock.shards.journal import open_journal
journal = open_journal(Path(sys.argv[1]), seat=0, shard_start=5, router_start=9, slots=8)
journal.record(3, 1, 0, 4, producer_id=7, epoch=0)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return open_journal(tmp_path, seat=1, shard_start=6, router_start=9, slots=8)


def test_a_starting_router_ends_the_shards_of_the_one_before_and_has_their_cuts(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    found = journals.kill_owners(tmp_path, boot_id(), wait_s=20.0, clock=monotonic)

    assert holder.wait() == -9
    assert [(slot.partition, slot.first, slot.count) for slot in found[0].slots] == [(3, 0, 4)]
    assert found[0].is_complete


def test_a_journal_nobody_holds_is_read_as_it_is(tmp_path: Path, journal: Journal) -> None:
    kept = journal.record(3, 1, 0, 4, producer_id=7, epoch=0)
    freed = journal.record(3, 1, 4, 4, producer_id=7, epoch=0)
    journal.release([freed])
    journal.close()

    found = journals.kill_owners(tmp_path, boot_id(), wait_s=20.0, clock=monotonic)

    assert kept == 0
    assert [slot.first for slot in found[0].slots] == [0]
    assert found[0].is_complete


def test_a_lock_whose_owner_cannot_be_told_stops_the_router(tmp_path: Path, journal: Journal) -> None:
    with journal.path.open("r+b") as file:
        file.write(bytes(128))

    with pytest.raises(journals.JournalError, match="cannot be told"):
        journals.kill_owners(tmp_path, boot_id(), wait_s=0.1, clock=monotonic)


def test_a_torn_slot_was_never_sent_and_is_skipped(journal: Journal) -> None:
    journal.record(3, 1, 0, 4, producer_id=7, epoch=0)
    journal.record(3, 1, 4, 4, producer_id=7, epoch=0)
    journal.close()
    with journal.path.open("r+b") as file:
        file.seek(SLOTS_AT + SLOT_BYTES + 16)
        file.write(b"\x09")

    found = journals.read(journal.path, boot_id())

    assert [slot.first for slot in found.slots] == [0]
    assert found.is_complete


def test_a_journal_of_another_boot_gives_hints(journal: Journal) -> None:
    journal.record(3, 1, 0, 4, producer_id=7, epoch=0)
    journal.close()

    found = journals.read(journal.path, bytes(16))

    assert len(found.slots) == 1
    assert not found.is_complete


def test_a_damaged_header_gives_nothing_and_says_so(journal: Journal) -> None:
    journal.record(3, 1, 0, 4, producer_id=7, epoch=0)
    journal.close()
    with journal.path.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff\xff")

    found = journals.read(journal.path, boot_id())

    assert (found.header, found.slots, found.is_complete) == (None, [], False)


def test_a_file_whose_owner_died_before_the_header_holds_no_cuts(tmp_path: Path) -> None:
    path = tmp_path / "shard-0-1.journal"
    path.write_bytes(bytes(4_096))

    found = journals.read(path, boot_id())

    assert (found.slots, found.is_complete) == ([], True)


def test_a_missing_journal_is_no_fact(tmp_path: Path) -> None:
    assert not journals.read(tmp_path / "gone.journal", boot_id()).is_complete


def test_the_journal_of_a_shard_that_never_named_it_is_found(tmp_path: Path, journal: Journal) -> None:
    assert journals.journal_of_shard(tmp_path, 6) == journal.path
    assert journals.journal_of_shard(tmp_path, 7) is None
