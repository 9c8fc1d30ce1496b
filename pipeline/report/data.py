"""What one run of `audit` found, as plain data: filled by the audit, shown by `pipeline/report/page.py`, counted by `pipeline/audit/metrics.py`.

Nothing here is computed from anything else but what the properties say. Texts (topics, hosts, reasons) may hold whatever came
from outside. Minutes are whole minutes since 1970 (UTC), hours are `YYYY-MM-DD-HH` (UTC), times end in `_ms` or `_s`.

The lists of names may be cut by whoever fills them, the worst first; each cut is told in `ReportData.left_out`. The counters in
`rows` are never cut: what the page says in words comes from them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ..exits import PipelineExit


class Status(StrEnum):
    """Verdict about an hour of a topic and an incarnation, the best first."""

    COMPLETE = "complete"
    COUNTED = "counted"
    """Records without ids: they can be counted, not compared."""
    LATE = "late"
    UNKNOWN = "unknown"
    DUPLICATED = "duplicated"
    LOST = "lost"

    @property
    def rank(self) -> int:
        """0 for the best; the highest wins."""
        return list(Status).index(self)

    @property
    def exit_code(self) -> int:
        """What the audit ends with when this is the worst verdict."""
        return int(PipelineExit.OK if self in {Status.COMPLETE, Status.COUNTED} else PipelineExit[self.name])


class MissingClass(StrEnum):
    """Why an id has not landed, the mildest first."""

    PENDING = "pending"
    """Still in a spool."""
    LATE = "late"
    """Settled, and `land` has not read that far."""
    LOST = "lost"
    """Settled, and `land` has read past it, or the log ends before it."""


def worst(statuses: Iterable[Status]) -> Status:
    """The verdict that wins; COMPLETE when there is none."""
    return max(statuses, key=lambda status: status.rank, default=Status.COMPLETE)


@dataclass(frozen=True, slots=True)
class HourRow:
    """One row of `audit_report`: an hour of a topic, for one incarnation."""

    topic: str
    hour: str
    incarnation: str
    """12 hex digits; empty for a row that only counts foreign records."""
    host: str
    """Of the incarnation's newest audit record; empty when none is known."""
    status: Status
    accepted: int
    """Records the daemon took in this hour."""
    holes: int
    """Of these, ordinals that will never be sent."""
    expected: int
    """`accepted - holes`."""
    landed: int
    """Rows with an id of this incarnation and hour, quarantine included, doubled ones as often as they are there."""
    distinct: int
    """Expected ids that have landed."""
    pending: int
    late: int
    lost: int
    duplicated: int
    """Rows beyond the first of an id."""
    recovered: int
    """Landed ids that lie in a hole."""
    foreign: int
    """Rows without an id. Counted once for a topic and hour: in one of its rows."""
    latency_p50_s: float | None = None
    """From accept to landed; None when nothing landed."""
    latency_p99_s: float | None = None
    doubts: tuple[str, ...] = ()
    """Why the status is `unknown`, a sentence each: "no heartbeat since 12:03", "origin 3: ordinals 120 to 180 are in no range"."""

    @property
    def missing(self) -> int:
        """Expected ids that have not landed, whatever their class."""
        return self.pending + self.late + self.lost


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Ordinals `first` to `end - 1` of one origin have not landed: a row of `audit_missing`."""

    topic: str
    hour: str
    incarnation: str
    host: str
    origin: int
    first: int
    end: int
    missing_class: MissingClass
    evidence: str = ""
    """What the class rests on: "partition 3 was read to 8,120, the range ends at 7,440"."""

    @property
    def count(self) -> int:
        """Ids in the range."""
        return self.end - self.first


class KafkaPosition(NamedTuple):
    """Where a row lay in Kafka."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class DuplicateId:
    """One id that has landed more than once: a row of `audit_duplicates`."""

    topic: str
    hour: str
    incarnation: str
    host: str
    origin: int
    ordinal: int
    places: tuple[KafkaPosition, ...]
    """Sorted; the first is the one that `seal` keeps."""


@dataclass(frozen=True, slots=True)
class HoleRange:
    """Ordinals `first` to `end - 1` will never be sent: a row of `audit_holes`."""

    topic: str
    hour: str
    incarnation: str
    host: str
    origin: int
    first: int
    end: int
    reason: str
    """`parked`, `expired`, `aborted` or `quarantined`."""

    @property
    def count(self) -> int:
        """Ids in the range."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class MinutePoint:
    """What became of the records that were accepted in one minute, or in the `ReportData.step_minutes` from it on."""

    minute: int
    expected: int
    distinct: int
    pending: int = 0
    late: int = 0
    lost: int = 0
    duplicated: int = 0


@dataclass(frozen=True, slots=True)
class TopicMinutes:
    """Completeness of one topic over time. Minutes without intake are left out; sorted by minute."""

    topic: str
    points: tuple[MinutePoint, ...]


@dataclass(frozen=True, slots=True)
class HostMinutes:
    """The same of one host, over all topics."""

    host: str
    points: tuple[MinutePoint, ...]


@dataclass(frozen=True, slots=True)
class IncarnationState:
    """What the newest heartbeat of an incarnation says."""

    incarnation: str
    host: str
    state: str
    """`running`, `closed`, or `silent`: no heartbeat at all, or one that is too old."""
    heartbeat_ms: int | None = None
    """`sent_at` of the newest heartbeat."""
    settled_before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A list that was cut."""

    what: str
    """Plural, as it goes on after a number: "ranges of lost ids of topic clicks"."""
    shown: int
    total: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything the report shows."""

    run_id: str
    ran_at_ms: int
    """Wall time of the run: what "now" was when `pending` and `late` were told apart."""
    took_s: float
    exit_code: int
    hours: tuple[str, ...]
    """The hours that were looked at, sorted; those without any row, too."""
    hours_sealed: int = 0
    """Hours of topics in the range that are sealed and were not looked at again."""
    tables: str = ""
    """Where the tables are."""
    audit_topic: str = "penstock.audit"
    rows: tuple[HourRow, ...] = ()
    missing: tuple[MissingRange, ...] = ()
    duplicates: tuple[DuplicateId, ...] = ()
    holes: tuple[HoleRange, ...] = ()
    step_minutes: int = 1
    """Minutes of a point in `topics` and `hosts`."""
    topics: tuple[TopicMinutes, ...] = ()
    hosts: tuple[HostMinutes, ...] = ()
    incarnations: tuple[IncarnationState, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def status(self) -> Status:
        """The worst verdict of all rows."""
        return worst(row.status for row in self.rows)
