"""A client's ledger: what it sent and what became of it, line by line, appended as it happens.

    client NAME SHAPE-AS-JSON
    sent FRAME COUNT AT                                   before the call
    ok FRAME FIRST COUNT LEVEL PARTITION OFFSET AT        partition and offset -1 where the answer did not tell them
    fail FRAME FIRST COUNT CODE AT                        a definite no
    unknown FRAME FIRST COUNT CODE AT                     an end that is neither yes nor no

AT is CLOCK_MONOTONIC in seconds, which all processes of a host share. Each line is one write(2) to a descriptor opened
with O_APPEND: lines of several threads do not mix, and a killed client leaves whole lines. A record without an outcome
is unknown.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from .records import Shape


class Level(IntEnum):
    """The ack levels, as the local protocol numbers them."""

    ACCEPTED = 0
    SPOOLED = 1
    DELIVERED = 2


class Kind(StrEnum):
    """How a record ended."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One end, for the records `first` … `first + count - 1` of a frame."""

    kind: Kind
    first: int
    count: int
    at: float
    level: Level = Level.ACCEPTED
    partition: int = -1
    offset: int = -1
    code: str = ""


@dataclass(slots=True)
class Frame:
    """One call of a client."""

    count: int
    sent_at: float
    outcomes: list[Outcome] = field(default_factory=list[Outcome])


@dataclass(slots=True)
class Ledger:
    """What one client says of its run."""

    client: str
    shape: Shape
    frames: dict[int, Frame] = field(default_factory=dict[int, Frame])

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Every outcome with its frame's number."""
        for number, frame in self.frames.items():
            for outcome in frame.outcomes:
                yield number, outcome

    @property
    def sent(self) -> int:
        """How many records the client sent."""
        return sum(frame.count for frame in self.frames.values())


class LedgerWriter:
    """Writes a ledger. Threads may share it."""

    def __init__(self, path: Path, client: str, shape: Shape) -> None:
        """Begin a new ledger. Raise FileExistsError rather than mix two runs."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._line(f"client {client} {json.dumps(shape._asdict())}")

    def _line(self, text: str) -> None:
        line = text.encode() + b"\n"
        assert os.write(self._file, line) == len(line)

    def sent(self, frame: int, count: int) -> None:
        """To be called before the frame is handed over."""
        self._line(f"sent {frame} {count} {time.monotonic():.6f}")

    def ok(self, frame: int, first: int, count: int, level: Level, *, partition: int = -1, offset: int = -1) -> None:
        """Acknowledged at `level`; with a partition and offset, the records stand there one after the other."""
        self._line(f"ok {frame} {first} {count} {int(level)} {partition} {offset} {time.monotonic():.6f}")

    def ok_places(self, frame: int, level: Level, count: int, places: Sequence[tuple[int, int]] | None) -> None:
        """All `count` records of a frame acknowledged, in one write; `places` are (partition, offset), if they were told."""
        if places is None:
            self.ok(frame, 0, count, level)
            return
        at = f"{time.monotonic():.6f}"
        lines: list[str] = []
        first = 0
        while first < count:
            partition, offset = places[first]
            end = first + 1
            # As long as offsets go on one by one.
            while end < count and offset >= 0 and places[end] == (partition, offset + end - first):
                end += 1
            lines.append(f"ok {frame} {first} {end - first} {int(level)} {partition} {offset} {at}")
            first = end
        self._line("\n".join(lines))

    def fail(self, frame: int, first: int, count: int, code: str) -> None:
        """Refused for good."""
        self._line(f"fail {frame} {first} {count} {code} {time.monotonic():.6f}")

    def unknown(self, frame: int, first: int, count: int, code: str) -> None:
        """Ended without a yes or no."""
        self._line(f"unknown {frame} {first} {count} {code} {time.monotonic():.6f}")

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def read_ledger(path: Path) -> Ledger:
    """The ledger in a file. A last line without its end is dropped: its writer was killed. Raise ValueError on others."""
    lines = path.read_text().split("\n")[:-1]
    word, client, shape = lines[0].split(" ", 2)
    if word != "client":
        raise ValueError(f"{path}: not a ledger")
    ledger = Ledger(client, Shape(**json.loads(shape)))
    for line in lines[1:]:
        _enter(ledger, line.split(" "))
    return ledger


def _enter(ledger: Ledger, words: list[str]) -> None:
    match words:
        case ["sent", frame, count, at]:
            ledger.frames[int(frame)] = Frame(int(count), float(at))
        case ["ok", frame, first, count, level, partition, offset, at]:
            outcome = Outcome(
                Kind.OK, int(first), int(count), float(at), Level(int(level)), int(partition), int(offset)
            )
            ledger.frames[int(frame)].outcomes.append(outcome)
        case ["fail" | "unknown" as kind, frame, first, count, code, at]:
            ledger.frames[int(frame)].outcomes.append(Outcome(Kind(kind), int(first), int(count), float(at), code=code))
        case _:
            raise ValueError(f"not a ledger's line: {' '.join(words)!r}")
