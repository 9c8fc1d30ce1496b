"""Real writers of a spool, killed for real at any moment: what they said was written is there."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.daemon.core.entries import CheckpointEntry
from penstock.daemon.core.slice_rows import check_slice, read_rows
from penstock.daemon.identity import Identity
from penstock.daemon.recovery import Recovered
from penstock.daemon.spool import Spool, SpoolLimits

pytestmark = pytest.mark.process

LIMITS = "SpoolLimits(segment_bytes=1 << 16, control_reserve_bytes=4096)"
WRITER = f"""
import sys
from pathlib import Path
from penstock.daemon.core.entries import AckedEntry, CheckpointEntry, FrameEntry, SliceEntry
from penstock.daemon.identity import Identity
from penstock.daemon.spool import Spool, SpoolLimits
from penstock.wire.messages import Anchor
from tests.fakes.segments import Row, slice_bytes

folder = Path(sys.argv[1])
identity = Identity.open(folder)
spool, recovered = Spool.open(folder, {LIMITS}, identity=identity)
ledger, sessions = recovered.ledger, recovered.sessions
pending = [part.segment for part in recovered.slices]
spool.begin(lambda: CheckpointEntry(ledger.snapshot(), sessions.snapshot(now_ms=0, wall_ms=0)))
if not ledger.by_number:
    entry = ledger.new_partition_entry("topic", b"", 0)
    spool.append(entry)
    ledger.apply(entry)
state = ledger.by_number[0]
high = sessions.by_id["app"].high if sessions.by_id else -1
print("begun", state.next_ordinal, high, flush=True)
while True:
    for _ in range(5):
        rows = [Row(b"%d" % (state.next_ordinal + at)) for at in range(3)]
        data = slice_bytes("topic", 0, state.next_ordinal, rows)
        part = SliceEntry(0, state.next_ordinal, 3, 1, 0, len(data))
        frame = FrameEntry("app", 7, high + 1, high, 1, 1, 3, None, [part])
        place = spool.append_frame(frame, [data], created_ms=0)
        ledger.apply(frame)
        sessions.apply(frame, now_ms=0, wall_ms=0)
        pending.append(place.segment)
        high += 1
    if len(pending) > 60:
        spool.append(entry := AckedEntry(0, state.mark + 90, Anchor(0, 1, 1, 1), 0))
        ledger.apply(entry)
        for segment in pending[:30]:
            spool.slice_ended(segment)
        del pending[:30]
    spool.write()
    print("written", state.next_ordinal, high, state.mark, flush=True)
    spool.start_sync()
    spool.finish_sync()
    spool.clean()
"""


def recover(folder: Path) -> tuple[Recovered, Spool, Identity]:
    identity = Identity.open(folder)
    spool, recovered = Spool.open(
        folder, SpoolLimits(segment_bytes=1 << 16, control_reserve_bytes=4096), identity=identity
    )
    spool.begin(lambda: CheckpointEntry(recovered.ledger.snapshot(), recovered.sessions.snapshot(now_ms=0, wall_ms=0)))
    return recovered, spool, identity


def test_what_a_killed_writer_said_was_written_is_there_whole_and_once(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    for lines in (1, 2, 7, 30, 3, 90, 11, 1, 60):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
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
        assert recovered.sessions.by_id["app"].high >= high
        assert word == "begun" or state.mark >= int(numbers[2])
        assert (recovered.report.corrupt_entries, recovered.report.lost, recovered.report.mended) == (0, [], 0)
        assert recovered.report.differences == 0
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
