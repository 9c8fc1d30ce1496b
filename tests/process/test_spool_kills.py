"""Real writers of a spool, killed for real at any moment: what they said was written is there."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.daemon.ledger.slice_rows import check_slice, read_rows

from .spool_writer import ROOT, WRITER, recover

pytestmark = pytest.mark.process


def test_what_a_killed_writer_said_was_written_is_there_whole_and_once(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    for lines in (1, 2, 7, 30, 3, 90, 11, 1, 60):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(lines + 1)]
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.readlines()
        assert writer.wait() == -signal.SIGKILL
        word, *numbers = [line for line in said if line.endswith("\n")][-1].split()
        recovered, spool, identity = recover(folder)
        state = recovered.ledger.by_number[0]
        next_ordinal, high = int(numbers[0]), int(numbers[1])
        assert state.next_ordinal >= next_ordinal
        assert recovered.clients.by_id["app"].high >= high
        assert word == "begun" or state.mark >= int(numbers[2])
        assert (recovered.report.corrupt_entries, recovered.report.lost, recovered.report.repaired) == (0, [], 0)
        assert recovered.report.checkpoint_mismatches == 0
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
