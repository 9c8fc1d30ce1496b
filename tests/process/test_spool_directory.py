"""The spool's directory and its identity file: who gets in, and what a start concludes from what it finds."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from penstock.daemon.ledger.entries import StampRowEntry
from penstock.daemon.ledger.segment_scan import HEADER_CRC
from penstock.daemon.spool.directory import SpoolError
from penstock.daemon.spool.identity import SpoolIdentity
from penstock.daemon.spool.identity_file import IdentityFile, read_identity
from penstock.daemon.spool.segment_files import segment_numbers, segment_path
from penstock.wire.messages import StampRow

from tests.harness.requirements import need_root
from tests.model.spool_world import SpoolWorld

from .spool_writer import put_identity

pytestmark = pytest.mark.process

HOLDER = """
import sys
from pathlib import Path
from penstock.daemon.spool.identity import SpoolIdentity
held = SpoolIdentity.open(Path(sys.argv[1]), allow_unsafe_filesystem=True)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def start(folder: Path, *, restored: bool = False) -> SpoolIdentity:
    return SpoolIdentity.open(folder, allow_unsafe_filesystem=True, restored=restored)


def start_and_end(folder: Path, *, clean: bool = False, producer_id: int | None = None) -> IdentityFile:
    """One start of a router, as far as the identity goes."""
    identity = start(folder)
    identity.mark_recovered(-1)
    if producer_id is not None:
        identity.set_producer_id(producer_id)
        identity.confirm_producer_id()
    if clean:
        identity.mark_clean()
    identity.close()
    return read_identity(folder)


def test_a_second_daemon_is_refused_and_told_who_holds_the_spool(folder: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(SpoolError, match=rf"in use by another daemon .process {holder.pid}"):
            start(folder)
    finally:
        holder.kill()
        holder.communicate()
    start(folder).close()


def test_a_directory_that_others_may_read_is_refused_with_the_remedy(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o750)
    with pytest.raises(SpoolError, match=r"mode 0750.*chmod 700"):
        start(folder)
    folder.chmod(0o700)
    start(folder).close()


def test_a_directory_of_another_user_is_refused(folder: Path) -> None:
    need_root("give a directory away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(SpoolError, match="belongs to uid 12345"):
        start(folder)


def test_a_directory_in_memory_is_refused_unless_it_is_allowed_by_name() -> None:
    folder = Path("/dev/shm") / f"penstock-test-{os.getpid()}"
    try:
        with pytest.raises(SpoolError, match=r"lies on tmpfs.*allow_unsafe_filesystem"):
            SpoolIdentity.open(folder)
        allowed = start(folder)
        assert "tmpfs" in allowed.claim.warnings[0]
        allowed.close()
    finally:
        shutil.rmtree(folder)


def test_a_new_spool_needs_a_producer_id_and_keeps_the_one_it_gets(folder: Path) -> None:
    first = start(folder)
    assert (first.producer_id, first.new_producer_id_reason) == (None, "the spool is new")
    first.close()
    again = start(folder)
    assert again.new_producer_id_reason == "the spool is new"
    again.set_producer_id(77)
    again.confirm_producer_id()
    again.close()
    (folder / "0000000000000001.seg").touch(mode=0o600)
    kept = start(folder)
    assert (kept.producer_id, kept.new_producer_id_reason) == (77, None)
    kept.close()


def test_a_new_producer_id_is_the_spools_only_when_its_stamp_rows_are_on_disk(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    world = SpoolWorld(folder)
    world.append(world.ledger.new_partition_entry("topic", b"", 0))
    world.write()
    world.sync()
    world.identity.set_producer_id(77)
    world.append(StampRowEntry(0, StampRow(77, 0, 0, 0), "new identity"))
    world.write()
    world.kill()
    assert (world.identity.producer_id, world.identity.new_producer_id_reason) == (None, "the spool is new")
    world.identity.set_producer_id(78)
    world.append(StampRowEntry(0, StampRow(78, 0, 0, 0), "new identity"))
    world.write()
    world.sync()
    world.kill()
    assert (world.identity.producer_id, world.identity.new_producer_id_reason) == (78, None)
    world.close()


def test_start_numbers_differ_and_the_spool_number_stays(folder: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    for _ in range(3):
        identity = start(folder)
        seen.append((identity.spool, identity.starts, identity.start))
        identity.close()
    assert len({spool for spool, _, _ in seen}) == 1
    assert [starts for _, starts, _ in seen] == [1, 2, 3]
    assert len({number for _, _, number in seen}) == 3
    assert all(0 < number < 1 << 63 for _, _, number in seen)


def test_only_another_boot_without_a_clean_mark_is_a_power_cut(folder: Path) -> None:
    for clean, boot, power_cut in [(False, None, False), (False, "other", True), (True, "other", False)]:
        stored = start_and_end(folder, clean=clean)
        if boot is not None:
            put_identity(folder, stored, boot_id=boot)
        identity = start(folder)
        assert identity.power_cut is power_cut
        identity.close()


def test_a_power_cut_is_remembered_until_recovery_is_over(folder: Path) -> None:
    put_identity(folder, start_and_end(folder), boot_id="other")
    start(folder).close()
    second = start(folder)
    assert second.power_cut
    second.mark_recovered(-1)
    second.close()
    third = start(folder)
    assert not third.power_cut
    third.close()


def test_a_clean_mark_counts_once(folder: Path) -> None:
    assert start_and_end(folder, clean=True).clean
    assert not start_and_end(folder).clean


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"machine_id": "other"}, "another machine"),
        ({"inode": 1}, "inode"),
        ({"device": 1 << 20}, "another device"),
        ({"born": 1}, "made at another time"),
        ({"file_inode": 1}, "another file"),
        ({"file_born": 1}, "another file"),
    ],
)
def test_a_copied_spool_takes_a_new_producer_id(folder: Path, changes: dict[str, object], reason: str) -> None:
    stored = start_and_end(folder, producer_id=77)
    (folder / "0000000000000001.seg").touch(mode=0o600)
    if "device" in changes and os.major(folder.stat().st_dev) == 0:
        pytest.skip("the file system has no device of its own")
    put_identity(folder, stored, **changes)
    identity = start(folder)
    assert identity.producer_id is None
    assert reason in str(identity.new_producer_id_reason)
    assert identity.spool == stored.spool
    identity.close()


def test_a_real_copy_is_told_by_its_inode(folder: Path, tmp_path: Path) -> None:
    start_and_end(folder, producer_id=77)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copy2)
    copy.chmod(0o700)
    identity = start(copy)
    assert identity.producer_id is None
    assert "copied or restored" in str(identity.new_producer_id_reason)
    identity.close()


def copy_back(copy: Path, folder: Path) -> None:
    """The directory is deleted and made anew; its inode's number is free for that."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def fill_again(copy: Path, folder: Path) -> None:
    """The directory stays, and its files are deleted and made anew."""
    for file in folder.iterdir():
        file.unlink()
    shutil.copytree(copy, folder, dirs_exist_ok=True)


@pytest.mark.parametrize("put_back", [copy_back, fill_again])
def test_a_backup_that_is_put_back_in_place_is_told_from_the_spool(
    folder: Path, tmp_path: Path, put_back: Callable[[Path, Path], None]
) -> None:
    for producer_id in range(10):
        stored = start_and_end(folder, producer_id=producer_id)
        (folder / "0000000000000001.seg").touch(mode=0o600)
        backup = tmp_path / f"backup-{producer_id}"
        shutil.copytree(folder, backup, copy_function=shutil.copy2)
        start_and_end(folder)
        put_back(backup, folder)
        folder.chmod(0o700)
        identity = start(folder)
        assert "copied or restored" in str(identity.new_producer_id_reason)
        assert (identity.producer_id, identity.spool) == (None, stored.spool)
        assert identity.incarnation != stored.incarnation
        identity.close()


def test_an_identity_of_a_program_that_did_not_note_when_it_was_made_is_no_copy(folder: Path) -> None:
    stored = start_and_end(folder, producer_id=77)
    (folder / "0000000000000001.seg").touch(mode=0o600)
    put_identity(folder, stored, born=None, file_inode=None, file_born=None)
    identity = start(folder)
    assert (identity.producer_id, identity.new_producer_id_reason) == (77, None)
    identity.close()
    assert read_identity(folder) == replace(stored, starts=stored.starts + 1)


def test_a_spool_that_is_moved_within_its_disk_stays_itself(folder: Path, tmp_path: Path) -> None:
    stored = start_and_end(folder, producer_id=77)
    (folder / "0000000000000001.seg").touch(mode=0o600)
    moved = folder.rename(tmp_path / "elsewhere")
    identity = start(moved)
    assert (identity.producer_id, identity.incarnation) == (77, stored.incarnation)
    identity.close()


def test_a_restored_or_emptied_spool_takes_a_new_producer_id(folder: Path) -> None:
    start_and_end(folder, producer_id=77)
    emptied = start(folder)
    assert (emptied.producer_id, emptied.new_producer_id_reason) == (None, "the spool was emptied")
    emptied.close()
    start_and_end(folder, producer_id=78)
    (folder / "0000000000000001.seg").touch(mode=0o600)
    restored = start(folder, restored=True)
    assert (restored.producer_id, restored.new_producer_id_reason) == (None, "told to be restored")
    restored.close()


def test_a_torn_write_of_the_identity_leaves_the_one_before(folder: Path) -> None:
    start_and_end(folder, producer_id=77)
    before = (folder / "identity").read_bytes()
    identity = start(folder)
    identity.close()
    after = (folder / "identity").read_bytes()
    (slot,) = [at for at in (0, 4096) if before[at : at + 4096] != after[at : at + 4096]]
    for torn in (1, 20, 200):
        (folder / "identity").write_bytes(after[: slot + torn] + before[slot + torn :])
        stored = read_identity(folder)
        assert stored.producer_id == 77
        assert stored.starts == 1


def test_a_missing_identity_is_made_anew_for_the_segments_that_are_there(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    world = SpoolWorld(folder)
    world.append(world.ledger.new_partition_entry("topic", b"", 0))
    world.frame("a", [(0, 3, 100)])
    world.write()
    spool = world.identity.spool
    world.identity.set_producer_id(77)
    world.identity.confirm_producer_id()
    world._let_go()
    (folder / "identity").unlink()
    world.open()
    assert world.identity.spool == spool
    assert world.identity.producer_id is None
    assert world.identity.new_producer_id_reason == "the identity file was missing or damaged"
    assert [part.first for part in world.recovered.slices] == [0]
    world.close()


def test_an_unknown_version_is_refused_and_nothing_is_changed(folder: Path) -> None:
    put_identity(folder, start_and_end(folder), version=2)
    before = (folder / "identity").read_bytes()
    with pytest.raises(SpoolError, match="version 2, this program knows version 1"):
        start(folder)
    assert (folder / "identity").read_bytes() == before


def test_a_segment_of_an_unknown_version_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    from crc32c import crc32c

    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    world = SpoolWorld(folder)
    world._let_go()
    number = segment_numbers(folder)[-1]
    path = segment_path(folder, number)
    data = bytearray(path.read_bytes())
    data[8] = 9
    data[48:52] = HEADER_CRC.pack(crc32c(data[:48]))
    path.write_bytes(data)
    with pytest.raises(SpoolError, match=r"spool version 9.*nothing was changed"):
        world.open()
    assert path.read_bytes() == data
    world._let_go()


def test_what_is_not_a_segment_of_this_spool_is_moved_aside(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    world = SpoolWorld(folder)
    world.append(world.ledger.new_partition_entry("topic", b"", 0))
    world.frame("a", [(0, 3, 100)])
    world.write()
    world._let_go()
    own = segment_path(folder, segment_numbers(folder)[-1])
    shutil.copy2(own, segment_path(folder, 90))
    os.mkfifo(segment_path(folder, 91))
    segment_path(folder, 92).symlink_to(own)
    with segment_path(folder, 93).open("wb") as huge:
        huge.truncate(1 << 40)
    segment_path(folder, 94).mkdir()
    world.open()
    moved = {f"{number:016x}.seg" for number in range(90, 95)}
    assert set(world.recovered.report.foreign_files) == moved
    assert {path.name for path in (folder / "quarantine").iterdir()} == moved
    assert [part.first for part in world.recovered.slices] == [0]
    assert segment_numbers(folder)[-1] == 95
    world.close()
