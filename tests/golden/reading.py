"""Reads files of every format with today's code, as plain values that JSON can hold."""

from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final

from penstock.daemon.deadletters.files import read_dead_letter
from penstock.daemon.leases import journals
from penstock.daemon.ledger.entries import CheckpointEntry, FrameEntry
from penstock.daemon.ledger.entry_codec import unpack, unpack_minute
from penstock.daemon.ledger.segment_scan import read_segment_header, scan_segment
from penstock.daemon.ledger.slice_rows import check_slice, read_rows
from penstock.daemon.spool.identity_file import read_identity
from penstock.wire.audit_records import decode

GOLDEN: Final = Path(__file__).parent
EXPECTED: Final = "expected.json"
TOPICS: Final = (("orders", 2), ("clicks", 0))
"""Topic and partition index of the partitions 0 and 1 in a golden segment."""


def plain(value: Any) -> Any:
    """A value without classes: NamedTuples as lists in the order of their fields, bytes as hex digits."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def difference(found: Any, expected: Any, where: str = "") -> str | None:
    """The first value of an older file that did not come back; None: all did. `found`: not plain yet, because a NamedTuple
    may have gained fields since, and so may a mapping."""
    if is_dataclass(found) and not isinstance(found, type):
        found = asdict(found)
    if isinstance(expected, dict) and isinstance(found, dict):
        for name, part in expected.items():
            if name not in found:
                return f"{where}.{name} is missing"
            if (mismatch := difference(found[name], part, f"{where}.{name}")) is not None:
                return mismatch
        return None
    if isinstance(expected, list) and isinstance(found, list | tuple):
        grown = hasattr(found, "_fields") and len(found) > len(expected)
        if len(found) != len(expected) and not grown:
            return f"{where} has {len(found)} parts, not {len(expected)}"
        for place, part in enumerate(expected):
            if (mismatch := difference(found[place], part, f"{where}[{place}]")) is not None:
                return mismatch
        return None
    shown = plain(found)
    # True is 1 to `==`.
    if type(shown) is type(expected) and shown == expected:
        return None
    return f"{where} is {shown!r}, not {expected!r}"


def segment(folder: Path) -> Any:
    (path,) = folder.glob("*.seg")
    data = path.read_bytes()
    header = read_segment_header(data)
    scan = scan_segment(data, header.spool, header.segment)
    entries: list[Any] = []
    for raw in scan.entries:
        entry, payload = unpack(raw.kind, raw.body)
        fields: dict[str, Any] = {"offset": raw.offset, "kind": raw.kind, "fields": entry}
        if isinstance(entry, FrameEntry):
            body = bytes(raw.body[payload:])
            slices = [(part.partition, body[part.offset : part.offset + part.length]) for part in entry.slices]
            fields["slices"] = [
                {"header": check_slice(data, *TOPICS[number]), "rows": read_rows(data)} for number, data in slices
            ]
        if isinstance(entry, CheckpointEntry) and entry.audit_minutes is not None:
            fields["minutes"] = [unpack_minute(packed) for packed in entry.audit_minutes]
        entries.append(fields)
    return {"header": header, "entries": entries, "damages": scan.damages, "end": scan.end, "torn": scan.torn}


def identity(folder: Path) -> Any:
    return read_identity(folder)


def journal(folder: Path) -> Any:
    (path,) = folder.glob("*.journal")
    found = journals.read(path, b"\x07" * 16)
    return {"header": found.header, "slots": found.slots, "is_complete": found.is_complete}


def dead_letter(folder: Path) -> Any:
    (path,) = folder.glob("*.jsonl")
    letter, records = read_dead_letter(folder, path.stem)
    return {"letter": letter, "records": records}


def audit_record(folder: Path) -> Any:
    return {
        path.stem: decode(path.with_suffix(".key").read_bytes(), path.read_bytes())
        for path in sorted(folder.glob("*.value"))
    }


READERS: Final[dict[str, Callable[[Path], Any]]] = {
    "segment": segment,
    "identity": identity,
    "journal": journal,
    "dead_letter": dead_letter,
    "audit_record": audit_record,
}
