"""Audit counts: records accepted, delivered and lost per topic and minute. A fold of the log, like the ledger.

The ledger calls it with each of its own changes, live and at recovery, so both agree on every ordinal. It does no work
per record and little per slice. Only one incarnation is kept: a new one starts when the spool may be older than the
counts published under the previous one, so these cannot be continued (AUD-2). `daemon/audit/publication.py` publishes
the counts.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from ...wire.audit_records import MINUTE_MS
from ...wire.errors import FrameError
from ...wire.slices import HEADER_BYTES
from .audit_rows import Minute, MinuteKey, MinuteRange, ShardTotals
from .entries import OWN_SEQ, AckedEntry, FrameEntry, RefusedEntry
from .entry_codec import pack_minute, unpack_minute

REFUSED_TOPICS_MAX: Final = 1_000
"""Topics per minute that get a row for refusals alone. Limited, because clients may name any topic."""

_TOPIC: Final = re.compile("[a-zA-Z0-9._-]{1,249}")


class AuditedPartition(Protocol):
    """The fields of `LedgerPartition` that audit counts need."""

    @property
    def number(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def next_ordinal(self) -> int: ...


class AuditCounts:
    """All minutes that were not published as final.

    `changed`: minutes to publish again; the current ones may be missing from it. `settled`: minutes that are over and
    have nothing pending. `AuditPublication` removes minutes from both once they are spooled. `era` and `minute`: of the
    last frame, or set by `advance_to`.
    """

    def __init__(self, own_topic: str, *, weight_max: int) -> None:
        """`own_topic` is not counted. `weight_max` limits minutes plus ranges; the oldest minutes are dropped."""
        self._own_topic = own_topic
        self._entries_max = weight_max
        self._entry_count = 0
        self._open_ranges: dict[int, MinuteRange] = {}
        self._current: dict[str, Minute] = {}
        self._unsettled_ranges: dict[int, deque[MinuteRange]] = {}
        self._from_ms = self._until_ms = 0
        self._refused_only = 0
        self.incarnation = 0
        self.era = 0
        self.minute = 0
        self.minutes: dict[MinuteKey, Minute] = {}
        self.changed: dict[Minute, None] = {}
        self.settled: dict[Minute, None] = {}
        self.dropped_minutes = 0
        self.refused_unpublished = 0
        """Refused records for which no row was created."""

    @property
    def entry_count(self) -> int:
        """Minutes plus ranges kept."""
        return self._entry_count

    def current(self) -> Iterable[Minute]:
        """The rows of the current minute, one per topic."""
        return self._current.values()

    def begin_incarnation(self, incarnation: int) -> None:
        """Drop all counts if the incarnation differs: ordinals assigned from now on belong to the new one."""
        if incarnation != self.incarnation:
            self._clear()
            self.incarnation, self.era = incarnation, 0

    # --- entries -----------------------------------------------------------------------------------------------------

    def count_frame(self, entry: FrameEntry, places: Mapping[int, AuditedPartition]) -> None:
        """Count a frame, after it was applied to the ledger."""
        if not self._from_ms <= entry.wall_ms < self._until_ms or entry.era != self.era:
            self.advance_to(entry.wall_ms, entry.era)
        if not self.incarnation or (entry.seq == OWN_SEQ and entry.client_id is None):
            return
        open_spans = self._open_ranges
        for number, first, count, _, _, length in entry.slices:
            span = open_spans.get(number)
            if span is None:
                span = self._new_range(places[number], first)
            span.end = first + count
            span.nbytes += length - HEADER_BYTES
            if not entry.incarnation:
                span.minute.ids = False

    def count_recovered(self, place: AuditedPartition, end: int, nbytes: int, *, ids: bool = True) -> None:
        """During recovery: count ordinals from the next one up to `end` as assigned, even if their frames were not
        found. Call it before the ledger raises its next ordinal."""
        if place.topic == self._own_topic or not self.incarnation:
            return
        span = self._open_ranges.get(place.number)
        if span is None:
            span = self._new_range(place, place.next_ordinal)
        span.end = end
        span.nbytes += nbytes
        span.minute.ids = span.minute.ids and ids

    def count_lost(self, number: int, first: int, end: int, reason: str) -> None:
        """Count ordinals as lost: they will never be sent. Call it before the ledger's mark moves over them."""
        for span in self._unsettled_ranges.get(number, ()):
            if span.first < end and first < span.end:
                span.lose(max(first, span.settled), end, reason)
                self._mark_changed(span.minute)

    def count_resolved(self, number: int, mark: int, entry: AckedEntry | None = None) -> None:
        """Count every ordinal below the ledger's mark as delivered or lost. `entry`: the shard's report, if any."""
        waiting = self._unsettled_ranges.get(number)
        if waiting is None:
            return
        last: MinuteRange | None = None
        while waiting:
            span = waiting[0]
            through = min(span.end, mark)
            if through > span.settled:
                self._settle(span, through, entry)
                last = span
            if span.end > mark or self._open_ranges.get(number) is span:
                break
            _ = waiting.popleft()
            span.minute.unsettled_ranges -= 1
            if not span.minute.unsettled_ranges:
                self.settled[span.minute] = None
        if not waiting:
            del self._unsettled_ranges[number]
        if last is not None and entry is not None and entry.shard_id >= 0:
            totals = last.minute.outcomes.setdefault(entry.shard_id, ShardTotals())
            totals.batches += entry.batches
            totals.resent += entry.resent

    def restore_refused(self, entry: RefusedEntry) -> None:
        """During recovery: set a minute's refused records to the totals of a REFUSED entry."""
        key = MinuteKey(entry.topic, entry.minute, entry.era)
        if (key.era, key.minute) > (self.era, self.minute):
            self.advance_to(key.minute * MINUTE_MS, key.era)
        is_current = (key.minute, key.era) == (self.minute, self.era)
        minute = self._current_minute(key.topic) if is_current else self.minutes.get(key) or self._new_minute(key)
        minute.refused = dict(entry.refused)
        minute.refused_in_log = sum(minute.refused.values())
        if not is_current:
            self._close_minute(minute)

    # --- changes without an entry ------------------------------------------------------------------------------------

    def advance_to(self, accept_ms: int, era: int) -> None:
        """Follow the accept clock, and close the minutes that it has left."""
        if self._from_ms <= accept_ms < self._until_ms and era == self.era:
            return
        over = list(self._current.values())
        for span in self._open_ranges.values():
            waiting = self._unsettled_ranges.get(span.number)
            if waiting is not None and span.settled == span.end and waiting[0] is span:
                del self._unsettled_ranges[span.number]
        self._open_ranges.clear()
        self._current.clear()
        self._refused_only = 0
        self._set_minute(accept_ms // MINUTE_MS, era)
        for minute in over:
            self._close_minute(minute)

    def count_refused(self, topic: str, reason: str, records: int) -> None:
        """Count refused records of a topic in the current minute."""
        if not self.incarnation or topic == self._own_topic:
            return
        minute = self._current.get(topic)
        if minute is None:
            if self._refused_only >= REFUSED_TOPICS_MAX or _TOPIC.fullmatch(topic) is None:
                self.refused_unpublished += records
                return
            self._refused_only += 1
            minute = self._current_minute(topic)
        minute.count_refused(reason, records)

    def remove(self, minute: Minute) -> None:
        """Remove a minute that is settled and was published as final."""
        self._entry_count -= minute.entry_count
        del self.minutes[minute.key]
        self.settled.pop(minute, None)
        self.changed.pop(minute, None)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def snapshot(self) -> list[bytes]:
        """Return all minutes, packed, for a checkpoint. A long outage leaves many, nearly all unchanged since the
        previous checkpoint, so minutes that are over keep their packed form."""
        current = self._current
        found: list[bytes] = []
        for minute in self.minutes.values():
            packed = minute.packed
            if packed is None:
                packed = pack_minute(minute.snapshot())
                if current.get(minute.key.topic) is not minute:
                    minute.packed = packed
            found.append(packed)
        return found

    def restore(
        self,
        minutes: Iterable[bytes],
        *,
        incarnation: int,
        accept_ms: int,
        era: int,
        places: Mapping[int, AuditedPartition],
    ) -> None:
        """Restore the minutes of a checkpoint. `places`: its partitions by number. Unreadable minutes are dropped."""
        self._clear()
        self.incarnation = incarnation
        rows = self._unpack_minutes(minutes)
        # A minute without frames may have refusals, so the current minute may be later than that of the last frame.
        newest = max([(era, accept_ms // MINUTE_MS), *((row.key.era, row.key.minute) for row in rows)])
        self._set_minute(newest[1], newest[0])
        for minute in rows:
            self.minutes[minute.key] = minute
            self._entry_count += minute.entry_count
            is_current = (minute.key.minute, minute.key.era) == (self.minute, self.era)
            if is_current:
                self._current[minute.key.topic] = minute
            for span in minute.ranges:
                place = places.get(span.number)
                is_open = is_current and place is not None and place.next_ordinal == span.end
                if is_open:
                    self._open_ranges[span.number] = span
                if is_open or span.settled < span.end:
                    self._unsettled_ranges.setdefault(span.number, deque()).append(span)
            if not is_current:
                self._close_minute(minute)

    @property
    def clock(self) -> tuple[int, int]:
        """Lower limit of the accept clock (era, ms since 1970): earlier minutes may have been published as over."""
        return self.era, self.minute * MINUTE_MS

    # --- internal ----------------------------------------------------------------------------------------------------

    def _unpack_minutes(self, minutes: Iterable[bytes]) -> list[Minute]:
        found: list[Minute] = []
        for packed in minutes:
            try:
                found.append(Minute.restored(unpack_minute(packed)))
            except FrameError:
                self.dropped_minutes += 1
        return found

    def _clear(self) -> None:
        for table in (
            self._open_ranges,
            self._current,
            self._unsettled_ranges,
            self.minutes,
            self.changed,
            self.settled,
        ):
            table.clear()
        self._entry_count = self._refused_only = 0

    def _set_minute(self, minute: int, era: int) -> None:
        self.minute, self.era = minute, era
        self._from_ms, self._until_ms = minute * MINUTE_MS, (minute + 1) * MINUTE_MS

    def _current_minute(self, topic: str) -> Minute:
        """Return the topic's row of the current minute; create it if it is missing."""
        minute = self._current.get(topic)
        if minute is None:
            key = MinuteKey(topic, self.minute, self.era)
            minute = self._current[topic] = self.minutes.get(key) or self._new_minute(key)
        return minute

    def _new_minute(self, key: MinuteKey) -> Minute:
        minute = self.minutes[key] = Minute(key)
        self._drop_beyond_limit()
        return minute

    def _new_range(self, place: AuditedPartition, first: int) -> MinuteRange:
        minute = self._current_minute(place.topic)
        span = MinuteRange(place.number, place.index, first, first, first, minute)
        minute.ranges.append(span)
        self._open_ranges[place.number] = span
        self._unsettled_ranges.setdefault(place.number, deque()).append(span)
        self._drop_beyond_limit()
        return span

    def _drop_beyond_limit(self) -> None:
        self._entry_count += 1
        while self._entry_count > self._entries_max:
            oldest = next(iter(self.minutes.values()))
            if oldest.key.minute == self.minute and oldest.key.era == self.era:
                # Never drop the current minute: it has a range for each partition in use, and none can be left out.
                return
            self._drop(oldest)

    def _drop(self, minute: Minute) -> None:
        """Drop a minute, published or not. It gets no final record, so its hour is never reported as complete."""
        self.dropped_minutes += 1
        for span in minute.ranges:
            waiting = self._unsettled_ranges.get(span.number)
            if waiting is not None and span in waiting:
                waiting.remove(span)
                if not waiting:
                    del self._unsettled_ranges[span.number]
        self.remove(minute)

    def _settle(self, span: MinuteRange, through: int, entry: AckedEntry | None) -> None:
        """Count ordinals below `through` as resolved. Bytes are split in proportion to records, because the size of
        each record is no longer known."""
        before, left = span.settled, span.end - span.settled
        step = through - before
        delivered = step - (span.lost_within(before, through) if span.lost else 0)
        share = (span.nbytes - span.counted_bytes) * step // left
        span.settled = through
        span.counted_bytes += share
        self._mark_changed(span.minute)
        if entry is None:
            return
        # The exact offset of this range's last record is not known; that of the previous ack would be too low.
        span.offset_end = entry.offset_end
        if delivered and entry.shard_id >= 0:
            totals = span.minute.outcomes.setdefault(entry.shard_id, ShardTotals())
            totals.delivered += delivered
            totals.nbytes += share * delivered // step

    def _mark_changed(self, minute: Minute) -> None:
        minute.packed = None
        self.changed[minute] = None

    def _close_minute(self, minute: Minute) -> None:
        """Close a minute: no record is added any more. Without pending ordinals it is settled, too."""
        self._mark_changed(minute)
        if not minute.count_unsettled():
            self.settled[minute] = None
