"""Real power cuts: a file system that forgets everything it was not made to keep, under a real writer."""

import fcntl
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.daemon.ledger.slice_rows import check_slice, read_rows
from penstock.daemon.spool.identity_file import read_identity

from tests.harness.requirements import missing, need_program, need_root

from .spool_writer import ROOT, WRITER, put_identity, recover

pytestmark = pytest.mark.process

SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
CUTS = int(os.environ.get("PENSTOCK_POWER_CUTS", "6"))


class LoopDisk:
    """A small ext4 in a file, and a switch for its power."""

    def __init__(self, home: Path) -> None:
        self.image = home / "image"
        self.mount_point = home / "mount"
        self.mount_point.mkdir()
        with self.image.open("wb") as file:
            file.truncate(64 << 20)
        run("mkfs.ext4", "-q", str(self.image))

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def cut(self) -> None:
        directory = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(directory)

    def unmount(self) -> None:
        run("umount", str(self.mount_point))

    def let_go(self) -> None:
        """Whatever a failing test still holds open."""
        run("umount", "--lazy", str(self.mount_point))


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[LoopDisk]:
    need_root("mount a loop file system")
    need_program("mkfs.ext4", package="e2fsprogs")
    try:
        disk = LoopDisk(tmp_path)
        disk.mount()
    except OSError as error:
        missing(f"needs a loop file system, which this machine does not allow: {error}")
    yield disk
    disk.let_go()


def test_what_a_writer_said_was_synced_is_there_after_a_power_cut(loop_disk: LoopDisk) -> None:
    folder = loop_disk.mount_point / "spool"
    chance = random.Random(11)
    for _ in range(CUTS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(chance.randrange(2, 80))]
        # What is said from here on may be said after the lights went out.
        loop_disk.cut()
        writer.kill()
        writer.communicate()
        loop_disk.unmount()
        loop_disk.mount()
        put_identity(folder, read_identity(folder), boot_id="before the cut")
        recovered, spool, identity = recover(folder)
        assert identity.power_cut
        said = [line.split() for line in lines if line.startswith(("begun", "synced"))][-1]
        state = recovered.ledger.by_number[0]
        assert state.next_ordinal >= int(said[1])
        assert recovered.clients.by_id["app"].high >= int(said[2]) if int(said[2]) >= 0 else True
        assert (recovered.report.corrupt_entries, recovered.report.lost, recovered.report.repaired) == (0, [], 0)
        at = state.mark
        for part in recovered.slices:
            data = spool.read_slice(part.segment, part.offset, part.length)
            check_slice(data, "topic", 0)
            assert part.first == at
            assert [row.value for row in read_rows(data)] == [b"%d" % (at + number) for number in range(3)]
            at += 3
        assert at == state.next_ordinal
        spool.close(clean=True)
        identity.close()
