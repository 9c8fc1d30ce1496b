"""Makes the golden files of this version, by the code that writes them in production: `python -m tests.golden.make VERSION`.

Existing files are never overwritten. What was written stands in `expected.json`, from the values that went in.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from crc32c import crc32c
from penstock.daemon.deadletters.files import DeadLetterStore, list_dead_letters
from penstock.daemon.leases.backlog import DeadLetterRange
from penstock.daemon.leases.refused_batches import DeadLetterPart, DeadLetterRequest
from penstock.daemon.ledger.entries import CheckpointEntry, FrameEntry, Lsn, SliceEntry
from penstock.daemon.ledger.entry_codec import EntryType, pack_control, pack_frame_meta
from penstock.daemon.ledger.segment_scan import EntryHeaders, SegmentHeader, pack_segment_header, padded
from penstock.daemon.ledger.slice_rows import SliceRow
from penstock.daemon.ledger.slices import PendingFrame, PendingSlice
from penstock.daemon.spool.identity import SpoolIdentity
from penstock.daemon.spool.identity_file import read_identity
from penstock.producer.kernel import frames
from penstock.shards.journal import Journal
from penstock.wire.audit_records import (
    RUNNING,
    AuditHeartbeat,
    AuditHole,
    AuditIntake,
    AuditOutcome,
    AuditRange,
    AuditRecord,
)
from penstock.wire.journal import MAGIC, VERSION, JournalHeader, JournalSlot
from penstock.wire.slices import CRC_FROM, HEADER, RECORD_IDS, SliceHeader, crc_prefix, segment_name
from penstock.wire.slices import VERSION as SLICE_VERSION

from tests.core.kernel_cases import Columns, scatter_frame
from tests.core.test_spool_entries import CONTROLS, MINUTE
from tests.golden.reading import EXPECTED, GOLDEN, READERS, TOPICS, difference, plain

SPOOL, SEGMENT = 0x1234_5678_9ABC_DEF0, 7
NOW_MS = 1_760_000_000_000
BOOT = b"\x07" * 16
HEADERS = [("trace", b"\x00\xff"), ("empty", b""), ("none", None)]
ROWS = [
    SliceRow(NOW_MS + 5, b"key", b"value", HEADERS),
    SliceRow(NOW_MS - 7, None, None, []),
    SliceRow(NOW_MS, b"", b"", []),
]


def sealed_slice(number: int, first: int, rows: list[SliceRow], flags: int) -> tuple[bytes, dict[str, Any]]:
    """A slice as the router makes it of a client's frame, and what is in it."""
    topic, index = TOPICS[number]
    columns = Columns(
        [index] * len(rows),
        [row.key for row in rows],
        [row.value for row in rows],
        [[part for pair in row.headers for part in pair] for row in rows],
        [row.timestamp_ms for row in rows],
    )
    found = scatter_frame(frames, columns.packed(topic=topic), now_ms=NOW_MS, partition_count=index + 1, sticky=0)
    (made,) = found.slices
    size = len(made.data) - HEADER.size
    header = SliceHeader(
        0, SLICE_VERSION, made.flags | flags, 0, first, made.count, size, NOW_MS, made.base_ts, made.max_ts
    )
    data = bytearray(made.data)
    HEADER.pack_into(data, 0, *header)
    crc = crc32c(memoryview(data)[CRC_FROM:], crc32c(crc_prefix(topic, index)))
    data[:CRC_FROM] = crc.to_bytes(CRC_FROM, "little")
    return bytes(data), {"header": header._replace(crc=crc), "rows": rows}


def segment(folder: Path) -> Any:
    one, in_one = sealed_slice(0, 40, ROWS, RECORD_IDS)
    other, in_other = sealed_slice(1, 7, ROWS[:1], 0)
    parts = [
        SliceEntry(0, 40, 3, NOW_MS + 5, 0, len(one)),
        SliceEntry(1, 7, 1, NOW_MS + 5, len(one), len(other)),
    ]
    frame = FrameEntry("client", 7, 3, 1, 2, NOW_MS, 4, b"\x02\0\0\0" * 3 + b"\0\0\0\0", parts, 77, 1)
    anonymous = FrameEntry(None, 0, 0, -1, 1, NOW_MS, 3, None, parts[:1])
    bodies = [(entry, *pack_control(entry), {}) for entry in CONTROLS]
    bodies += [
        (frame, EntryType.FRAME, pack_frame_meta(frame) + one + other, {"slices": [in_one, in_other]}),
        (anonymous, EntryType.FRAME, pack_frame_meta(anonymous) + one, {"slices": [in_one]}),
    ]
    header = SegmentHeader(SPOOL, SEGMENT, 5 << 32 | 9, 6 << 32 | 4096)
    headers = EntryHeaders(SPOOL, SEGMENT)
    data = bytearray(pack_segment_header(header))
    entries: list[dict[str, Any]] = []
    for entry, kind, body, more in bodies:
        entries.append({"offset": len(data), "kind": int(kind), "fields": entry, **more})
        if isinstance(entry, CheckpointEntry) and entry.audit_minutes is not None:
            entries[-1]["minutes"] = [MINUTE]
        data += headers.pack(len(data), kind, len(body), crc32c(body)) + body
        data += bytes(padded(len(data)) - len(data))
    _ = (folder / segment_name(SEGMENT)).write_bytes(data + bytes(256))
    return {"header": header, "entries": entries, "damages": [], "end": len(data), "torn": None}


def identity(folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as place:
        spool = Path(place) / "spool"
        started = SpoolIdentity.open(spool, allow_unsafe_filesystem=True)
        started.set_producer_id(4711)
        started.confirm_producer_id()
        started.mark_recovered(3)
        started.mark_clean()
        started.close()
        found = read_identity(spool)
        assert found == replace(found, starts=1, producer_id=4711, reason=None, clean=True, segment=3)
        _ = (folder / "identity").write_bytes((spool / "identity").read_bytes())
        return found


def journal(folder: Path) -> Any:
    header = JournalHeader(MAGIC, VERSION, 3, 5 << 32 | 1, 5 << 32 | 9, 4242, 16, BOOT)
    made = Journal(folder, header)
    cuts = [(0, 1, 0, 5, 0, 0), (1, 2, 1 << 40, 500, 4711, 7), (1, 2, 2, 1, 4711, 7), (2, 1, 9, 9, -1, -1)]
    slots = [
        made.record(partition, generation, first, count, producer_id=producer_id, epoch=epoch)
        for partition, generation, first, count, producer_id, epoch in cuts
    ]
    made.release([slots[2]])
    made.close()
    kept = [
        JournalSlot(serial, partition, generation, first, count, epoch, 1, producer_id)
        for serial, (partition, generation, first, count, producer_id, epoch) in enumerate(cuts, 1)
        if serial != 3
    ]
    return {"header": header, "slots": kept, "is_complete": True}


def dead_letter(folder: Path) -> Any:
    data, _ = sealed_slice(0, 40, ROWS, 0)
    frame = PendingFrame("client", 7, 9, 2, 4, 10, Lsn(1), 0, b"\x02\0\0\0" * 2 + b"\0\0\0\0\x02\0\0\0", 1)
    lost = PendingFrame(None, 0, 0, 1, 1, 10, Lsn(1), 0, None, 1)
    parts = [
        DeadLetterPart(PendingSlice(4, 40, 3, 1, 0, len(data), 1, 0, Lsn(1), frame), 0, 3, "MESSAGE_TOO_LARGE: larger"),
        DeadLetterPart(PendingSlice(4, 43, 1, 2, 0, 10, 1, 0, Lsn(1), lost), 0, 1, "the batch"),
    ]
    ranges = [DeadLetterRange(part.slice.first + part.index, part.count, part.text) for part in parts]
    request = DeadLetterRequest(
        4, "orders", 2, 10, "MESSAGE_TOO_LARGE", "larger than ä", may_be_written=True, ranges=ranges, parts=parts
    )

    def read_slice(segment: int, offset: int, length: int) -> bytes:
        if segment == 2:
            raise OSError(5, "the disk cannot read it")
        return data[offset : offset + length]

    with tempfile.TemporaryDirectory() as place:
        letters = Path(place)
        name = DeadLetterStore(letters, f"{SPOOL:016x}").park(request, read_slice)
        _ = (folder / f"{name}.jsonl").write_bytes((letters / f"{name}.jsonl").read_bytes())
        (stored,) = list_dead_letters(letters)
    records = [
        {"ordinal": 40 + at, "client_id": "client", "seq": 9, "index": (0, 1, 3)[at], "timestamp_ms": row.timestamp_ms}
        | {"key": row.key, "value": row.value, "headers": row.headers, "unreadable": None}
        for at, row in enumerate(ROWS)
    ]
    records.append(
        {"ordinal": 43, "client_id": None, "seq": 0, "index": 0, "timestamp_ms": None, "key": None, "value": None}
        | {"headers": [], "unreadable": "[Errno 5] the disk cannot read it"}
    )
    letter = {
        "name": name,
        "wall_ms": stored.wall_ms,
        "topic": "orders",
        "partition": 2,
        "code": 10,
        "error": "MESSAGE_TOO_LARGE",
        "message": "larger than ä",
        "unsure": True,
        "records": 4,
        "ordinals": [(40, 3, "MESSAGE_TOO_LARGE: larger"), (43, 1, "the batch")],
        "frames": [
            ("client", 9, [(0, 2, "MESSAGE_TOO_LARGE: larger"), (3, 1, "MESSAGE_TOO_LARGE: larger")]),
            (None, 0, [(0, 1, "the batch")]),
        ],
    }
    return {"letter": letter, "records": records}


def audit_record(folder: Path) -> Any:
    common: dict[str, Any] = {
        "incarnation": "00c0ffee0001",
        "host": "host-1.example",
        "version": 9,
        "sent_at": NOW_MS,
        "era": 2,
    }
    minute: dict[str, Any] = {"topic": "orders", "minute": NOW_MS // 60_000}
    ranges = (AuditRange(0, 1, 40, 20, 1 << 40), AuditRange(3, 0, 9, 9, -1))
    holes = (AuditHole(0, 12, 13, "parked"), AuditHole(3, 4, 5, "quarantined"))
    records: dict[str, AuditRecord] = {
        "heartbeat": AuditHeartbeat(
            **common, closed_before=NOW_MS - 1, settled_before=NOW_MS - 2, state=RUNNING, interval_s=2.5
        ),
        "intake": AuditIntake(
            **common,
            **minute,
            ids=True,
            accepted=50,
            bytes=5_000,
            refused={"too_large": 3},
            ranges=ranges,
            holes=holes,
        ),
        "outcome": AuditOutcome(**common, **minute, shard=3, delivered=40, bytes=4_000, batches=4, resent=1),
    }
    for name, record in records.items():
        _ = (folder / f"{name}.key").write_bytes(record.key())
        _ = (folder / f"{name}.value").write_bytes(record.encode())
    return records


MAKERS = {
    "segment": segment,
    "identity": identity,
    "journal": journal,
    "dead_letter": dead_letter,
    "audit_record": audit_record,
}


def main(version: str) -> None:
    """Make the files of every format, unless the version has them already, and read each back."""
    for name in MAKERS:
        folder = GOLDEN / name / version
        if folder.exists():
            sys.exit(f"{folder} exists, and golden files are never changed: give another version")
    for name, make in MAKERS.items():
        folder = GOLDEN / name / version
        folder.mkdir(parents=True)
        expected = plain(make(folder))
        mismatch = difference(READERS[name](folder), expected)
        assert mismatch is None, f"{name}: {mismatch}"
        _ = (folder / EXPECTED).write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
