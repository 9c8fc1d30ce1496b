"""The audit told by sets: for small worlds of books and rows, what every number and verdict must be.

Nothing is shared with the job but the record codec and the names of verdicts: each id is a tuple, and all is counted one by one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.pipeline.hours import hour_of_ms
from penstock.pipeline.report.data import MissingClass, Status
from penstock.wire import audit_records
from penstock.wire.audit_records import AuditHeartbeat, AuditIntake, AuditOutcome
from penstock.wire.errors import FrameError

MINUTE_MS = 60_000
HOUR_MS = 3_600_000


class Id(NamedTuple):
    """A record id, and the topic that it is unique in."""

    topic: str
    incarnation: str
    origin: int
    ordinal: int


class Row(NamedTuple):
    """A row of bronze, or of quarantine."""

    topic: str
    partition: int
    offset: int
    incarnation: str | None
    origin: int | None
    ordinal: int | None
    accept_ms: int | None
    landed_ms: int
    quarantined: bool = False
    odd_hour: str | None = None
    """The hour it lies in, where that is not the one of its accept time."""

    @property
    def hour(self) -> str:
        """As `land` would say."""
        return self.odd_hour or hour_of_ms(self.landed_ms if self.accept_ms is None else self.accept_ms)


class Key(NamedTuple):
    """Of a row of the report."""

    topic: str
    hour: str
    incarnation: str


@dataclass
class World:
    """Everything an audit can see."""

    now_ms: int
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Of the audit topic, in any order."""
    rows: list[Row] = field(default_factory=list)
    read_to: dict[str, dict[int, int]] = field(default_factory=dict)
    log_starts: dict[str, dict[int, int]] = field(default_factory=dict)
    log_ends: dict[str, dict[int, int]] = field(default_factory=dict)
    late_after_ms: int = 900_000
    heartbeat_stale_ms: int = 120_000


@dataclass
class Line:
    """A row of the report."""

    status: Status = Status.COMPLETE
    accepted: int = 0
    holes: int = 0
    expected: int = 0
    landed: int = 0
    distinct: int = 0
    pending: int = 0
    late: int = 0
    lost: int = 0
    duplicated: int = 0
    recovered: int = 0
    foreign: int = 0


@dataclass
class Answer:
    """What an audit must say."""

    lines: dict[Key, Line]
    missing: dict[Id, MissingClass]
    duplicates: dict[Id, list[tuple[int, int]]]

    @property
    def exit_code(self) -> int:
        """The worst."""
        return max((line.status.exit_code for line in self.lines.values()), default=0)


class _Home(NamedTuple):
    """Where an ordinal was given out."""

    minute: int
    settled_end: int
    offset_end: int
    sent_at: int
    ids: bool


class Books:
    """The newest record of each key."""

    def __init__(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        newest: dict[tuple[str, bytes], AuditIntake | AuditOutcome | AuditHeartbeat] = {}
        for key, value in records:
            try:
                record = audit_records.decode(key, value)
            except FrameError:
                continue
            place = (record.kind, key)
            if place not in newest or newest[place].version < record.version:
                newest[place] = record
        found = list(newest.values())
        self.intakes = [each for each in found if isinstance(each, AuditIntake)]
        self.outcomes = [each for each in found if isinstance(each, AuditOutcome)]
        self.beats = {each.incarnation: each for each in found if isinstance(each, AuditHeartbeat)}
        self.homes: dict[Id, _Home] = {}
        self.holes: set[Id] = set()
        self.doubted: set[Key] = set()
        for intake in self.intakes:
            self._take(intake)
        self._tile()
        self._balance()

    def _take(self, intake: AuditIntake) -> None:
        for part in intake.ranges:
            for ordinal in range(part.first, part.end):
                home = _Home(intake.minute, part.settled_end, part.offset_end, intake.sent_at, intake.ids)
                self.homes[Id(intake.topic, intake.incarnation, part.origin, ordinal)] = home
        for hole in intake.holes:
            self.holes |= {
                Id(intake.topic, intake.incarnation, hole.origin, ordinal) for ordinal in range(hole.first, hole.end)
            }

    def _tile(self) -> None:
        parts = defaultdict(list)
        for intake in self.intakes:
            for part in intake.ranges:
                parts[intake.topic, intake.incarnation, part.origin].append((part.first, part.end, intake.minute))
        for (topic, incarnation, _), found in parts.items():
            found.sort()
            reached, earlier = found[0][1], found[0][2]
            for first, end, minute in found[1:]:
                if first != reached:
                    low, high = sorted((earlier // 60, minute // 60))
                    self.doubted |= {
                        Key(topic, hour_of_ms(hour * HOUR_MS), incarnation) for hour in range(low, high + 1)
                    }
                reached, earlier = max(reached, end), minute

    def _balance(self) -> None:
        delivered: dict[tuple[str, str, int, int], int] = defaultdict(int)
        for outcome in self.outcomes:
            delivered[outcome.incarnation, outcome.topic, outcome.minute, outcome.era] += outcome.delivered
        taken = {(each.incarnation, each.topic, each.minute, each.era): each for each in self.intakes}
        for key in taken.keys() | delivered.keys():
            incarnation, topic, minute, _ = key
            if self._differ(taken.get(key), delivered[key], minute, self.beats.get(incarnation)):
                self.doubted.add(Key(topic, hour_of_ms(minute * MINUTE_MS), incarnation))

    @staticmethod
    def _differ(intake: AuditIntake | None, delivered: int, minute: int, beat: AuditHeartbeat | None) -> bool:
        ended = beat is not None and beat.state == audit_records.CLOSED
        after = (minute + 1) * MINUTE_MS
        if intake is None:
            return delivered > 0 and beat is not None and (ended or beat.closed_before >= after)
        given = sum(part.end - part.first for part in intake.ranges)
        if given != intake.accepted:
            return True
        if beat is None:
            return False
        open_yet = sum(part.end - part.settled_end for part in intake.ranges)
        if beat.settled_before >= after and not ended and open_yet:
            return True
        told = beat.settled_before >= after or ended
        holes = sum(hole.end - hole.first for hole in intake.holes)
        return told and not open_yet and delivered + holes != intake.accepted


def answer(world: World, *, hours: set[str] | None = None) -> Answer:
    """Judge a world. `hours`: those asked for; None: all."""
    books = Books(world.records)
    lines: dict[Key, Line] = defaultdict(Line)
    asked = _Asked(hours)
    landed: dict[Id, list[tuple[int, int]]] = defaultdict(list)
    unknown: set[Key] = set()
    waits: set[Key] = set()
    for row in world.rows:
        key = Key(row.topic, row.hour, row.incarnation or "")
        if row.incarnation is not None:
            place = Id(row.topic, row.incarnation, row.origin or 0, row.ordinal or 0)
            landed[place].append((row.partition, row.offset))
        if key.hour not in asked:
            continue
        if row.incarnation is None:
            lines[key].foreign += 1
            continue
        lines[key].landed += 1
        if place not in books.homes:
            beat = books.beats.get(row.incarnation)
            ahead = beat is not None and beat.state == "running" and (row.accept_ms or 0) >= beat.closed_before
            (waits if ahead else unknown).add(key)
    result = Answer(lines, {}, {})
    _intakes(books, lines, asked, waits)
    for place, home in books.homes.items():
        key = Key(place.topic, hour_of_ms(home.minute * MINUTE_MS), place.incarnation)
        if key.hour in asked and home.ids:
            _judge(world, books, place, home, landed.get(place, []), lines[key], result)
    for key in books.doubted:
        if key.hour in asked:
            unknown.add(key)
            _ = lines[key]
    for key, line in lines.items():
        line.status = _status(world, books, key, line, key in unknown, key in waits)
    return result


class _Asked:
    def __init__(self, hours: set[str] | None) -> None:
        self._hours = hours

    def __contains__(self, hour: object) -> bool:
        return self._hours is None or hour in self._hours


def _intakes(books: Books, lines: dict[Key, Line], asked: _Asked, waits: set[Key]) -> None:
    delivered: dict[tuple[str, str, int, int], int] = defaultdict(int)
    for outcome in books.outcomes:
        delivered[outcome.incarnation, outcome.topic, outcome.minute, outcome.era] += outcome.delivered
    for intake in books.intakes:
        key = Key(intake.topic, hour_of_ms(intake.minute * MINUTE_MS), intake.incarnation)
        if key.hour not in asked:
            continue
        line = lines[key]
        holes = sum(hole.end - hole.first for hole in intake.holes)
        line.accepted += intake.accepted
        line.holes += holes
        beat = books.beats.get(intake.incarnation)
        ended = beat is not None and beat.state == audit_records.CLOSED
        if not ended and any(part.settled_end < part.end for part in intake.ranges):
            waits.add(key)
        if not intake.ids:
            line.expected += intake.accepted - holes
            sent = delivered[intake.incarnation, intake.topic, intake.minute, intake.era]
            line.pending += max(intake.accepted - holes - sent, 0)


def _judge(
    world: World, books: Books, place: Id, home: _Home, landed: list[tuple[int, int]], line: Line, result: Answer
) -> None:
    if len(landed) > 1:
        result.duplicates[place] = sorted(landed)
        line.duplicated += len(landed) - 1
    if place in books.holes:
        line.recovered += bool(landed)
        return
    line.expected += 1
    if landed:
        line.distinct += 1
        return
    found = _class(world, place, home, books.beats.get(place.incarnation))
    result.missing[place] = found
    match found:
        case MissingClass.PENDING:
            line.pending += 1
        case MissingClass.LATE:
            line.late += 1
        case MissingClass.LOST:
            line.lost += 1


def _class(world: World, place: Id, home: _Home, beat: AuditHeartbeat | None) -> MissingClass:
    def known(offsets: Mapping[str, Mapping[int, int]]) -> int | None:
        return offsets.get(place.topic, {}).get(place.origin)

    read_to, start, end = known(world.read_to), known(world.log_starts), known(world.log_ends)
    if place.ordinal >= home.settled_end:
        if beat is None or beat.state != "closed":
            return MissingClass.PENDING
        whole = read_to is not None and end is not None and read_to >= end
        return MissingClass.LOST if whole or world.now_ms - beat.sent_at >= world.late_after_ms else MissingClass.LATE
    if home.offset_end < 0:
        return MissingClass.LOST if world.now_ms - home.sent_at >= world.late_after_ms else MissingClass.LATE
    lost = (
        (read_to is not None and read_to >= home.offset_end)
        or (end is not None and end < home.offset_end)
        or (start is not None and start >= home.offset_end)
    )
    return MissingClass.LOST if lost else MissingClass.LATE


def _status(world: World, books: Books, key: Key, line: Line, unknown: bool, waits: bool) -> Status:
    flags = {
        each.ids
        for each in books.intakes
        if (each.topic, hour_of_ms(each.minute * MINUTE_MS), each.incarnation) == tuple(key)
    }
    if not key.incarnation or flags == {False}:
        return Status.COUNTED
    if line.lost:
        return Status.LOST
    if line.duplicated:
        return Status.DUPLICATED
    beat = books.beats.get(key.incarnation)
    if beat is None or unknown:
        return Status.UNKNOWN
    end = int(_start(key.hour)) + HOUR_MS
    closed = beat.state == "closed" or beat.closed_before >= end
    patience = max(world.heartbeat_stale_ms, 3_000 * beat.interval_s)
    if not closed and world.now_ms - beat.sent_at > patience:
        return Status.UNKNOWN
    return Status.LATE if waits or not closed or line.pending or line.late else Status.COMPLETE


def _start(hour: str) -> int:
    from datetime import UTC, datetime

    return int(datetime.strptime(hour, "%Y-%m-%d-%H").replace(tzinfo=UTC).timestamp()) * 1_000
