"""Drafts audit records from the audit counts: which minutes are due, as which records, and when a minute is final.

A round starts when it is due, publishes every minute that changed since it was last published, and ends with a
heartbeat. Records are drafted just before they are spooled, so that each counts everything before it in the log
(AUD-3). The caller reports drafts it spooled (`spooled`); the others are published in a later round.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...wire.audit_records import (
    CLOSED,
    MINUTE_MS,
    RUNNING,
    AuditHeartbeat,
    AuditHole,
    AuditIntake,
    AuditOutcome,
    AuditRange,
    AuditRecord,
)
from ...wire.record_ids import incarnation_text
from ..ledger.audit_counts import AuditCounts
from ..ledger.audit_rows import Minute, MinuteKey
from ..ledger.entries import RefusedEntry

SETTLED_AFTER_S: Final = 1.0
"""Delay after the previous round before a settled minute is published, if that is sooner than the next round."""


@dataclass(slots=True)
class Draft:
    """Records for one frame, in order. `refusals` go into the log before the frame."""

    records: list[AuditRecord] = field(default_factory=list[AuditRecord])
    refusals: list[RefusedEntry] = field(default_factory=list[RefusedEntry])
    minutes: list["_DraftedMinute"] = field(default_factory=list["_DraftedMinute"])
    is_last: bool = False
    """The draft ends its round."""


class _DraftedMinute(NamedTuple):
    """A minute and its totals in a draft. `is_final`: the minute is settled and not published again."""

    minute: Minute
    totals: tuple[int, ...]
    outcomes: dict[int, tuple[int, int]]
    is_final: bool


class AuditPublication:
    """Owner of the rounds and of the record versions. `now` is CLOCK_MONOTONIC seconds."""

    def __init__(self, books: AuditCounts, *, host: str, starts: int, interval_s: float) -> None:
        """`starts`: number of router starts on this spool, this one included. Versions of a later start are higher."""
        self._audit_counts = books
        self._host = host
        self._version = starts << 32
        self._interval_s = interval_s
        self._queue: deque[Minute] = deque()
        self._in_round = False
        self._closing = False
        self._last_at: float | None = None

    @property
    def in_round(self) -> bool:
        """Whether a round has started and its heartbeat is not spooled yet."""
        return self._in_round

    def due_at(self) -> float:
        """When the next round should start."""
        if self._last_at is None:
            return 0.0
        wait_s = min(self._interval_s, SETTLED_AFTER_S) if self._audit_counts.settled else self._interval_s
        return self._last_at + wait_s

    def begin(self, now: float) -> None:
        """Start a round: settled minutes first, then changed ones."""
        books = self._audit_counts
        self._last_at = now
        self._in_round = True
        self._queue = deque(dict.fromkeys((*books.settled, *books.changed, *books.current())))

    def begin_closing(self, now: float) -> bool:
        """Start the last round. Returns False if records are pending, so that nothing can be closed."""
        if any(minute.pending for minute in self._audit_counts.minutes.values()):
            return False
        self._closing = True
        self.begin(now)
        return True

    def draft(self, *, sent_ms: int, minutes_max: int, bytes_max: int) -> Draft:
        """The next records of the round, from at most `minutes_max` minutes and about `bytes_max` bytes."""
        draft = Draft()
        nbytes = 0
        while self._queue and minutes_max > 0 and nbytes < bytes_max:
            minute = self._queue.popleft()
            minutes_max -= 1
            if self._audit_counts.minutes.get(minute.key) is not minute:
                continue
            nbytes += self._draft_minute(draft, minute, sent_ms)
        if not self._queue:
            draft.records.append(self._heartbeat(sent_ms, {told.minute.key for told in draft.minutes if told.is_final}))
            draft.is_last = True
        return draft

    def spooled(self, draft: Draft) -> None:
        """The draft's records are in the log, after the entries they count."""
        books = self._audit_counts
        for minute, totals, outcomes, is_final in draft.minutes:
            minute.published = totals
            minute.refused_in_log = sum(minute.refused.values())
            minute.published_outcomes.update(outcomes)
            if is_final:
                books.remove(minute)
            else:
                books.changed.pop(minute, None)
        if draft.is_last:
            self._in_round = False

    def not_spooled(self, draft: Draft) -> None:
        """The spool had no space. The round ends; its remaining minutes are published in the next one."""
        self._queue.clear()
        self._in_round = False
        for told in draft.minutes:
            self._audit_counts.changed[told.minute] = None

    # --- records -----------------------------------------------------------------------------------------------------

    def _draft_minute(self, draft: Draft, minute: Minute, sent_ms: int) -> int:
        """Add one minute to the draft and return the approximate bytes added."""
        books = self._audit_counts
        is_final = minute in books.settled
        totals = _totals(minute)
        outcomes: dict[int, tuple[int, int]] = {}
        nbytes = 0
        if totals != minute.published:
            refused = sum(minute.refused.values())
            if refused != minute.refused_in_log:
                draft.refusals.append(RefusedEntry(*minute.key, sorted(minute.refused.items())))
            draft.records.append(self._intake(minute, sent_ms))
            nbytes += 300 + 40 * sum(1 + len(span.lost) for span in minute.ranges)
        for seat, row in sorted(minute.outcomes.items()):
            if minute.published_outcomes.get(seat) == (row.delivered, row.batches):
                continue
            outcomes[seat] = (row.delivered, row.batches)
            draft.records.append(
                AuditOutcome(
                    incarnation_text(books.incarnation),
                    self._host,
                    self._next_version(),
                    sent_ms,
                    seat,
                    *minute.key,
                    row.delivered,
                    row.nbytes,
                    row.batches,
                    row.resent,
                )
            )
            nbytes += 250
        draft.minutes.append(_DraftedMinute(minute, totals, outcomes, is_final))
        return nbytes

    def _intake(self, minute: Minute, sent_ms: int) -> AuditIntake:
        return AuditIntake(
            incarnation_text(self._audit_counts.incarnation),
            self._host,
            self._next_version(),
            sent_ms,
            *minute.key,
            ids=minute.ids,
            accepted=minute.accepted,
            bytes=minute.nbytes,
            refused=dict(sorted(minute.refused.items())),
            ranges=tuple(
                sorted(
                    AuditRange(span.index, span.first, span.end, span.settled, span.offset_end)
                    for span in minute.ranges
                )
            ),
            holes=tuple(
                sorted(
                    AuditHole(span.index, part.first, part.end, part.reason)
                    for span in minute.ranges
                    for part in span.lost
                )
            ),
        )

    def _heartbeat(self, sent_ms: int, final: Iterable[MinuteKey]) -> AuditHeartbeat:
        """`final`: minutes published for the last time, earlier in the same frame."""
        books = self._audit_counts
        told = set(final)
        closed_before = books.minute * MINUTE_MS
        open_minutes = [key.minute for key in books.minutes if key not in told]
        return AuditHeartbeat(
            incarnation_text(books.incarnation),
            self._host,
            self._next_version(),
            sent_ms,
            books.era,
            closed_before,
            closed_before if self._closing else min([closed_before, *(minute * MINUTE_MS for minute in open_minutes)]),
            CLOSED if self._closing else RUNNING,
            self._interval_s,
        )

    def _next_version(self) -> int:
        self._version += 1
        return self._version


def _totals(minute: Minute) -> tuple[int, ...]:
    """The values whose change makes the minute worth publishing again."""
    settled = lost = offsets = 0
    for span in minute.ranges:
        settled += span.settled
        offsets += span.offset_end
        lost += sum(part.end - part.first for part in span.lost)
    return minute.accepted, minute.nbytes, settled, lost, offsets, sum(minute.refused.values()), minute.ids
