"""A program that writes a spool for as long as it lives and says how far it is, and the start that follows its end."""

import json
from dataclasses import asdict
from pathlib import Path

from crc32c import crc32c
from penstock.daemon.ledger.entries import CheckpointEntry
from penstock.daemon.spool.identity import SpoolIdentity
from penstock.daemon.spool.identity_file import IdentityFile, canonical_fields, load_identity
from penstock.daemon.spool.log import Spool
from penstock.daemon.spool.recovery import Recovered
from penstock.daemon.spool.tail import SpoolLimits

ROOT = Path(__file__).resolve().parents[2]
LIMITS = "SpoolLimits(segment_bytes=1 << 16, control_reserve_bytes=4096)"
WRITER = f"""
import sys
from pathlib import Path
from penstock.daemon.ledger.entries import AckedEntry, CheckpointEntry, FrameEntry, SliceEntry
from penstock.daemon.spool.identity import SpoolIdentity
from penstock.daemon.spool.log import Spool
from penstock.daemon.spool.tail import SpoolLimits
from penstock.wire.messages import Anchor
from tests.fakes.segments import Row, slice_bytes

folder = Path(sys.argv[1])
identity = SpoolIdentity.open(folder)
spool, recovered = Spool.open(folder, {LIMITS}, identity=identity)
ledger, sessions = recovered.ledger, recovered.clients
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
        acked = spool.append(entry := AckedEntry(0, state.mark + 90, Anchor(0, 1, 1, 1), 0))
        ledger.apply(entry)
        for segment in pending[:30]:
            spool.segments.slices_resolved(segment, acked)
        del pending[:30]
    spool.write()
    print("written", state.next_ordinal, high, state.mark, flush=True)
    spool.start_sync()
    spool.finish_sync()
    print("synced", state.next_ordinal, high, state.mark, flush=True)
    spool.remove_unneeded()
"""


def recover(folder: Path) -> tuple[Recovered, Spool, SpoolIdentity]:
    identity = SpoolIdentity.open(folder)
    spool, recovered = Spool.open(
        folder, SpoolLimits(segment_bytes=1 << 16, control_reserve_bytes=4096), identity=identity
    )
    spool.begin(lambda: CheckpointEntry(recovered.ledger.snapshot(), recovered.clients.snapshot(now_ms=0, wall_ms=0)))
    return recovered, spool, identity


def put_identity(folder: Path, stored: IdentityFile, **changes: object) -> None:
    """What the identity file might say had another machine, boot or version written it."""
    fields = {**asdict(stored), **changes}
    serial = load_identity(folder).serial + 1
    slot = json.dumps([serial, crc32c(canonical_fields(fields)), fields]).encode().ljust(4095) + b"\n"
    with (folder / "identity").open("r+b") as file:
        file.seek(serial % 2 * 4096)
        file.write(slot)
