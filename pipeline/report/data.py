"""Results of one `audit` run as plain data. The audit fills it; `pipeline/report/page.py` shows it and
`pipeline/audit/metrics.py` counts it.

Nothing in this module is computed except by the properties. Texts (topics, hosts, reasons) may contain any outside
input. Minutes are whole minutes since 1970 (UTC), hours are `YYYY-MM-DD-HH` (UTC), times end in `_ms` or `_s`.

The audit may cut the lists of names, worst first; `ReportData.left_out` records each cut. The counters in `rows` are
never cut, so the page's sentences are based on them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from ..exits import PipelineExit


class Status(StrEnum):
    """Verdict on one hour of a topic and incarnation, best first."""

    COMPLETE = "complete"
    COUNTED = "counted"
    """Records without ids: they can only be counted, not compared."""
    LATE = "late"
    UNKNOWN = "unknown"
    DUPLICATED = "duplicated"
    LOST = "lost"

    @property
    def rank(self) -> int:
        """0 for the best; the highest rank wins."""
        return list(Status).index(self)

    @property
    def exit_code(self) -> int:
        """Exit code of the audit when this is the worst verdict."""
        return int(PipelineExit.OK if self in {Status.COMPLETE, Status.COUNTED} else PipelineExit[self.name])


class MissingClass(StrEnum):
    """Why an id has not landed, mildest first."""

    PENDING = "pending"
    """Still in a spool."""
    LATE = "late"
    """Settled, but `land` has not read that far."""
    LOST = "lost"
    """Settled, but `land` has read past it, or the log ends before it."""


COUNTS: Final = (
    *("accepted", "holes", "expected", "landed", "distinct", "pending", "late", "lost"),
    *("duplicated", "recovered", "foreign"),
)
"""The counts of a row of `audit_report`."""


def worst(statuses: Iterable[Status]) -> Status:
    """The worst status; COMPLETE when there is none."""
    return max(statuses, key=lambda status: status.rank, default=Status.COMPLETE)


@dataclass(frozen=True, slots=True)
class HourRow:
    """One row of `audit_report`: an hour of a topic, for one incarnation."""

    topic: str
    hour: str
    incarnation: str
    """12 hex digits; empty for a row that only counts foreign records."""
    host: str
    """Host in the incarnation's newest audit record; empty when none is known."""
    status: Status
    accepted: int
    """Records the daemon accepted in this hour."""
    holes: int
    """Ordinals among them that will never be sent."""
    expected: int
    """`accepted - holes`."""
    landed: int
    """Rows with an id of this incarnation and hour, quarantine included, every duplicate counted."""
    distinct: int
    """Expected ids that have landed."""
    pending: int
    late: int
    lost: int
    duplicated: int
    """Rows after the first of each id."""
    recovered: int
    """Landed ids that are in a hole."""
    foreign: int
    """Rows without an id. Counted once per topic and hour, in one of its rows."""
    latency_p50_s: float | None = None
    """From accept to landed; None when nothing landed."""
    latency_p99_s: float | None = None
    doubts: tuple[str, ...] = ()
    """Why the status is `unknown`, one sentence each: "no heartbeat since 12:03", "origin 3: ordinals 120 to 180 are in
    no range"."""
    settled: bool = True
    """Every ordinal assigned in the hour is delivered, or a hole."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From a row of `audit_report`. Null counts are 0."""
        return cls(
            topic=row["topic"],
            hour=row["hour"],
            incarnation=row["incarnation"] or "",
            host=row["host"] or "",
            status=Status(row["status"]),
            **{name: row[name] or 0 for name in COUNTS},
            latency_p50_s=row["latency_p50_s"],
            latency_p99_s=row["latency_p99_s"],
            doubts=tuple(row["doubts"] or ()),
            settled=bool(row["settled"]),
        )

    @property
    def missing(self) -> int:
        """Expected ids that have not landed, whatever their class."""
        return self.pending + self.late + self.lost


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ordinals `first` to `end - 1` of one origin."""

    topic: str
    hour: str
    incarnation: str
    host: str
    origin: int
    first: int
    end: int

    @property
    def count(self) -> int:
        """Number of ids in the range."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class MissingRange(IdRange):
    """Ids that have not landed: a row of `audit_missing`."""

    missing_class: MissingClass
    evidence: str = ""
    """The reason for the class: "partition 3 was read to 8,120, the range ends at 7,440"."""


@dataclass(frozen=True, slots=True)
class HoleRange(IdRange):
    """Ids that will never be sent: a row of `audit_holes`."""

    reason: str
    """One of `wire.audit_records.HOLE_REASONS`; today's daemons have no `expired`."""


class KafkaPosition(NamedTuple):
    """Position of a row in Kafka."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class DuplicateId:
    """An id that has landed more than once: a row of `audit_duplicates`."""

    topic: str
    hour: str
    incarnation: str
    host: str
    origin: int
    ordinal: int
    places: tuple[KafkaPosition, ...]
    """Sorted; `seal` keeps the first."""


@dataclass(frozen=True, slots=True)
class MinutePoint:
    """Counts of the records accepted in one minute, or in the `ReportData.step_minutes` from it on."""

    minute: int
    expected: int
    distinct: int
    pending: int = 0
    late: int = 0
    lost: int = 0
    duplicated: int = 0


@dataclass(frozen=True, slots=True)
class MinuteSeries:
    """Completeness of one topic, or of one host over all topics, sorted by minute. Minutes without intake are left
    out."""

    name: str
    points: tuple[MinutePoint, ...]


@dataclass(frozen=True, slots=True)
class IncarnationState:
    """State of an incarnation according to its newest heartbeat."""

    incarnation: str
    host: str
    state: str
    """`running`, `closed`, or `silent`: no heartbeat at all, or the newest one is too old."""
    heartbeat_ms: int | None = None
    """`sent_at` of the newest heartbeat."""
    settled_before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A list that was cut."""

    what: str
    """Plural, to follow a number: "ranges of lost ids of topic clicks"."""
    shown: int
    total: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything the report shows."""

    run_id: str
    ran_at_ms: int
    """Wall time of the run, which separates `pending` from `late`."""
    took_s: float
    exit_code: int
    hours: tuple[str, ...]
    """The hours that the audit looked at, sorted, including those without rows."""
    hours_sealed: int = 0
    """Hours of topics in the range that were skipped because they are sealed."""
    tables: str = ""
    """Location of the tables."""
    audit_topic: str = "penstock.audit"
    rows: tuple[HourRow, ...] = ()
    missing: tuple[MissingRange, ...] = ()
    duplicates: tuple[DuplicateId, ...] = ()
    holes: tuple[HoleRange, ...] = ()
    step_minutes: int = 1
    """Minutes per point in `topics` and `hosts`."""
    topics: tuple[MinuteSeries, ...] = ()
    hosts: tuple[MinuteSeries, ...] = ()
    incarnations: tuple[IncarnationState, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def status(self) -> Status:
        """The worst verdict of all rows."""
        return worst(row.status for row in self.rows)
