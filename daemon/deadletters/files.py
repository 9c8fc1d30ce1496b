"""Dead letters: records that Kafka rejected permanently. One file (mode 0600) per parked group, in a folder (0700).

A file is JSON lines. The first line describes the group::

    {"version": 1, "partition_number": 7, "topic": "t", "partition": 0, "code": 10, "error": "MESSAGE_TOO_LARGE",
     "message": "…", "unsure": false, "wall_ms": 1, "ordinals": [[first, count, text], …],
     "frames": [{"client_id": "a", "seq": 3, "refused": [[first index, count, text], …]}, …]}

Each further line describes one record: ordinal, timestamp_ms, client_id, seq, index (its position in the frame), key,
value, headers (base64; null if absent), or "unreadable" with the reason instead of them. The file name consists of
spool, partition and first ordinal, so a group that is parked again after a crash replaces its own file. A file is
written under a temporary name, synced and renamed, and the folder is synced, before the group is reported or logged as
parked. Files stay until a person removes them.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from ...runtime.clock import wall_ms
from ...wire.errors import FrameError
from ...wire.frames import Code, RefusedRecords
from ..leases.refused_batches import DeadLetterPart, DeadLetterRequest
from ..ledger.slice_rows import SliceRow, check_slice, read_rows
from ..ledger.slices import PendingFrame, PendingSlice
from ..sessions.acks import partition_indexes
from ..spool.disk import Disk

VERSION: Final = 1
_SUFFIX: Final = ".jsonl"
_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9]+-[0-9]+")

ReadSlice = Callable[[int, int, int], bytes]
"""Segment, offset, length -> bytes; raises OSError."""


class DeadLetterError(Exception):
    """No dead letter has this name, or it cannot be read. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One parked group, without its records. `unsure`: an earlier attempt may have written the records to Kafka."""

    name: str
    wall_ms: int
    topic: str
    partition: int
    code: int
    error: str
    message: str
    unsure: bool
    records: int
    ordinals: list[tuple[int, int, str]]
    frames: list[tuple[str | None, int, list[tuple[int, int, str]]]]


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """One record of a dead letter. `unreadable`: why key, value and headers are missing."""

    ordinal: int
    client_id: str | None
    seq: int
    index: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    unreadable: str | None


class DeadLetterStore:
    """The folder of dead letters, and an index of its records by client id and sequence. `spool_id`:
    `SpoolIdentity.spool_id`."""

    def __init__(self, directory: Path, spool_id: str, *, disk: Disk | None = None) -> None:
        self._directory = directory
        self._spool_id = spool_id
        self._disk = disk or Disk()
        self._refused: dict[tuple[str, int], list[RefusedRecords]] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for letter in list_dead_letters(directory):
            if letter.name.startswith(spool_id):
                self._index(letter)

    def park(self, request: DeadLetterRequest, read_slice: ReadSlice) -> str:
        """Write the records of a request to a dead letter, which is on disk when this returns. Returns its name.

        Raises:
            OSError: the file cannot be written; nothing is parked.
        """
        first = request.ranges[0].first
        name = f"{self._spool_id}-{request.partition}-{first}"
        records = [record for part in request.parts for record in _records(request, part, read_slice)]
        letter = DeadLetter(
            name=name,
            wall_ms=wall_ms(),
            topic=request.topic,
            partition=request.index,
            code=request.code,
            error=request.error,
            message=request.message,
            unsure=request.may_be_written,
            records=len(records),
            ordinals=[(piece.first, piece.count, piece.text) for piece in request.ranges],
            frames=_frames(request),
        )
        lines = [_letter_line(letter, request.partition), *(_record_line(record) for record in records)]
        self._store(name, "".join(lines).encode())
        self._index(letter)
        return name

    def lookup(self, client_id: str, seq: int) -> tuple[RefusedRecords, ...]:
        """Return the parked records of a frame; most frames have none. Used as `ClientStates.parked`."""
        return tuple(self._refused.get((client_id, seq), ()))

    def restore(self, frames: Iterable[PendingFrame]) -> None:
        """Set `refused` of recovered frames to their records that were parked before the start."""
        for frame in frames:
            if frame.client_id is not None:
                frame.refused = list(self.lookup(frame.client_id, frame.seq))

    def _index(self, letter: DeadLetter) -> None:
        for client_id, seq, refused in letter.frames:
            if client_id is not None:
                known = self._refused.setdefault((client_id, seq), [])
                found = {RefusedRecords(first, count, Code.PARKED, text) for first, count, text in refused}
                known[:] = sorted({*known, *found})

    def _store(self, name: str, data: bytes) -> None:
        temporary = self._directory / f"{name}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(data)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        temporary.replace(self._directory / (name + _SUFFIX))
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._disk.sync_directory(folder)
        finally:
            os.close(folder)


def list_dead_letters(directory: Path) -> list[DeadLetter]:
    """Return all dead letters of a folder, oldest first. Other and unreadable files are skipped."""
    letters: list[DeadLetter] = []
    for path in directory.glob("*" + _SUFFIX):
        try:
            with path.open("rb") as file:
                letters.append(_letter(path.stem, file.readline()))
        except (OSError, DeadLetterError):
            continue
    return sorted(letters, key=lambda letter: (letter.wall_ms, letter.name))


def read_dead_letter(directory: Path, name: str) -> tuple[DeadLetter, list[DeadLetterRecord]]:
    """Read one dead letter with its records.

    Raises:
        DeadLetterError: no dead letter has this name, or it cannot be read.
    """
    if _NAME.fullmatch(name) is None:
        raise DeadLetterError(f"{name!r} is not the name of a dead letter")
    try:
        first, *lines = (directory / (name + _SUFFIX)).read_bytes().splitlines()
    except (OSError, ValueError) as error:
        raise DeadLetterError(f"there is no readable dead letter {name} in {directory}") from error
    return _letter(name, first), [_record(name, line) for line in lines]


def _records(request: DeadLetterRequest, part: DeadLetterPart, read_slice: ReadSlice) -> list[DeadLetterRecord]:
    piece, frame = part.slice, part.slice.frame
    rows: list[SliceRow] = []
    unreadable: str | None = None
    try:
        data = read_slice(piece.segment, piece.offset, piece.length)
        _ = check_slice(data, request.topic, request.index)
        rows = read_rows(data)[part.index : part.index + part.count]
    except (OSError, FrameError) as error:
        # Park the group all the same: records that cannot be read can never be sent.
        unreadable = str(error)
    places = _frame_indexes(piece, request.index)
    return [
        DeadLetterRecord(
            ordinal=piece.first + at,
            client_id=frame.client_id,
            seq=frame.seq,
            index=places[at],
            timestamp_ms=rows[at - part.index].timestamp_ms if rows else None,
            key=rows[at - part.index].key if rows else None,
            value=rows[at - part.index].value if rows else None,
            headers=rows[at - part.index].headers if rows else [],
            unreadable=unreadable,
        )
        for at in range(part.index, part.index + part.count)
    ]


def _frame_indexes(piece: PendingSlice, index: int) -> list[int]:
    """Return the index in the frame of each record of a slice."""
    if piece.frame.partitions is None:
        return list(range(piece.count))
    return [place for place, partition in enumerate(partition_indexes(piece.frame.partitions)) if partition == index]


def _frames(request: DeadLetterRequest) -> list[tuple[str | None, int, list[tuple[int, int, str]]]]:
    """Return the request's records by frame: (client id, seq, ranges of (first index, count, text) in the frame)."""
    found: dict[tuple[str | None, int], list[tuple[int, int, str]]] = {}
    for part in request.parts:
        frame = part.slice.frame
        ranges = found.setdefault((frame.client_id, frame.seq), [])
        for place in _frame_indexes(part.slice, request.index)[part.index : part.index + part.count]:
            if ranges and ranges[-1][0] + ranges[-1][1] == place and ranges[-1][2] == part.text:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1, part.text)
            else:
                ranges.append((place, 1, part.text))
    return [(client_id, seq, ranges) for (client_id, seq), ranges in found.items()]


def _letter_line(letter: DeadLetter, number: int) -> str:
    fields = asdict(letter)
    del fields["name"]
    fields["frames"] = [{"client_id": who, "seq": seq, "refused": refused} for who, seq, refused in letter.frames]
    return json.dumps({"version": VERSION, "partition_number": number, **fields}) + "\n"


def _record_line(record: DeadLetterRecord) -> str:
    fields = asdict(record)
    fields["key"], fields["value"] = _text(record.key), _text(record.value)
    fields["headers"] = [[name, _text(content)] for name, content in record.headers]
    return json.dumps(fields) + "\n"


def _letter(name: str, line: bytes) -> DeadLetter:
    try:
        fields = cast("dict[str, Any]", json.loads(line))
        return DeadLetter(
            name=name,
            wall_ms=fields["wall_ms"],
            topic=fields["topic"],
            partition=fields["partition"],
            code=fields["code"],
            error=fields["error"],
            message=fields["message"],
            unsure=fields["unsure"],
            records=fields["records"],
            ordinals=[(first, count, text) for first, count, text in fields["ordinals"]],
            frames=[
                (frame["client_id"], frame["seq"], [(first, count, text) for first, count, text in frame["refused"]])
                for frame in fields["frames"]
            ],
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DeadLetterError(f"the dead letter {name} cannot be read: {error}") from error


def _record(name: str, line: bytes) -> DeadLetterRecord:
    try:
        fields = cast("dict[str, Any]", json.loads(line))
        fields["key"], fields["value"] = _bytes(fields["key"]), _bytes(fields["value"])
        fields["headers"] = [(header, _bytes(content)) for header, content in fields["headers"]]
        return DeadLetterRecord(**fields)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DeadLetterError(f"a record of the dead letter {name} cannot be read: {error}") from error


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
