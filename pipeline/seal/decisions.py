"""Decides which hours to seal, and with which status, from the audit's rows, the heartbeats, the existing seals, and
the tables' current row counts. Pure: this module reads and writes nothing.

An hour is sealed when all three conditions hold:

* every daemon is past it: its newest heartbeat is past the hour, or it has closed (or was retired);
* all records that the daemons accepted in it are settled;
* the audit found every record in the tables, and the tables still have as many rows.

Records that landed more than once do not prevent sealing, which removes the extra rows. After the grace time an hour is
sealed with its gaps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..hours import HOUR_MS, start_ms
from ..report.data import HourRow, Status, worst

FOREIGN: Final = ""
"""Incarnation of the row that counts records without an id."""
_GOOD: Final = frozenset({Status.COMPLETE, Status.COUNTED, Status.DUPLICATED})


class SealStatus(StrEnum):
    """`status` in the table `seals`."""

    SEALED = "sealed"
    WITH_GAPS = "sealed-with-gaps"
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True)
class HourAudit:
    """All rows of the newest run that looked at this hour of a topic."""

    run: str
    rows: tuple[HourRow, ...]

    def total(self, *counts: str) -> int:
        """Sum these counts over all rows."""
        return sum(getattr(row, count) for row in self.rows for count in counts)


@dataclass(frozen=True, slots=True)
class SealHeartbeat:
    """The newest heartbeat of an incarnation."""

    incarnation: str
    closed: bool
    """Nothing more will come from the incarnation unless it starts again."""
    closed_before: int
    """Ms since 1970: the incarnation accepts no more records with an earlier accept time."""


@dataclass(frozen=True, slots=True)
class HourSeal:
    """The newest row of an hour in `seals`."""

    generation: int
    status: SealStatus
    rows: int
    """Rows in bronze and quarantine when the hour was sealed."""


@dataclass(frozen=True, slots=True)
class HourState:
    """Current state of an hour of a topic."""

    topic: str
    hour: str
    rows: int
    """Rows in bronze and quarantine now."""
    audited: HourAudit | None = None
    seal: HourSeal | None = None


@dataclass(frozen=True, slots=True)
class ReopenHour:
    """Reopen the hour: its number of rows changed after it was sealed."""

    topic: str
    hour: str
    generation: int


@dataclass(frozen=True, slots=True)
class SealHour:
    """Seal the hour as this generation."""

    topic: str
    hour: str
    generation: int
    status: SealStatus
    audited: HourAudit


@dataclass(frozen=True, slots=True)
class WaitingHour:
    """The hour cannot be sealed yet, and the reason."""

    topic: str
    hour: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions for one run of `seal`."""

    reopen: list[ReopenHour] = field(default_factory=list[ReopenHour])
    seal: list[SealHour] = field(default_factory=list[SealHour])
    wait: list[WaitingHour] = field(default_factory=list[WaitingHour])


def decide(
    hours: Iterable[HourState], heartbeats: Sequence[SealHeartbeat], *, now_ms: int, grace_ms: int, hours_max: int
) -> Decision:
    """Decide for each hour, oldest first. At most `hours_max` are sealed; the others wait."""
    found = Decision()
    for hour in sorted(hours, key=lambda each: (each.hour, each.topic)):
        seal = hour.seal
        if seal is not None and seal.status is not SealStatus.REOPENED:
            if hour.rows != seal.rows:
                found.reopen.append(ReopenHour(hour.topic, hour.hour, seal.generation + 1))
            continue
        generation = 1 if seal is None else seal.generation
        status, reason = _seal_status(hour, heartbeats, now_ms=now_ms, grace_ms=grace_ms)
        if status is None or hour.audited is None:
            found.wait.append(WaitingHour(hour.topic, hour.hour, reason))
        elif len(found.seal) >= hours_max:
            found.wait.append(WaitingHour(hour.topic, hour.hour, f"this run seals {hours_max} hours (seal.hours_max)"))
        else:
            found.seal.append(SealHour(hour.topic, hour.hour, generation, status, hour.audited))
    return found


def _seal_status(
    hour: HourState, heartbeats: Sequence[SealHeartbeat], *, now_ms: int, grace_ms: int
) -> tuple[SealStatus | None, str]:
    """Return the status with which the hour can be sealed; or None, and the reason why it cannot."""
    try:
        end = start_ms(hour.hour) + HOUR_MS
    except ValueError:
        return None, "its name is not an hour"
    if now_ms < end:
        return None, "it is not over"
    audited = hour.audited
    if audited is None:
        return None, "no audit has looked at it"
    counted = audited.total("landed", "foreign")
    if counted != hour.rows:
        return None, f"the audit counted {counted} rows and there are {hour.rows}: audit again"
    gaps = _gaps(audited, heartbeats, end)
    if not gaps:
        return SealStatus.SEALED, ""
    if now_ms >= end + grace_ms:
        return SealStatus.WITH_GAPS, ""
    return None, f"{gaps}; sealed with gaps in {(end + grace_ms - now_ms) / HOUR_MS:.1f} h"


def _gaps(audited: HourAudit, heartbeats: Sequence[SealHeartbeat], end: int) -> str:
    """Return why the hour is not complete; empty when it is."""
    behind = sorted(beat.incarnation for beat in heartbeats if not beat.closed and beat.closed_before < end)
    if behind:
        return f"{len(behind)} daemons are not known to be past it ({', '.join(behind[:3])})"
    unsettled = [row.incarnation for row in audited.rows if not row.settled and row.incarnation != FOREIGN]
    if unsettled:
        return f"something of {', '.join(unsettled[:3])} is still in a spool"
    # The audit counts have gaps or do not balance, or some rows are in no range. A worse status may hide this.
    doubted = [row.incarnation for row in audited.rows if row.doubts]
    if doubted:
        return f"the audit has doubts about the books of {', '.join(doubted[:3])}"
    if missing := audited.total("missing"):
        return f"{missing} records are missing"
    statuses = [row.status for row in audited.rows]
    return "" if set(statuses) <= _GOOD else f"the audit says {worst(statuses)}"


def newest_seals(rows: Iterable[Mapping[str, object]]) -> dict[tuple[str, str], HourSeal]:
    """Return the row with the highest generation for each topic and hour, from rows of `seals`."""
    found: dict[tuple[str, str], HourSeal] = {}
    for row in rows:
        key = (str(row["topic"]), str(row["hour"]))
        generation = _count(row, "generation")
        if key not in found or generation > found[key].generation:
            rows_then = _count(row, "landed") + _count(row, "foreign") - _count(row, "duplicates_removed")
            found[key] = HourSeal(generation, SealStatus(str(row["status"])), rows_then)
    return found


def _count(row: Mapping[str, object], name: str) -> int:
    value = row[name]
    return value if isinstance(value, int) else 0
