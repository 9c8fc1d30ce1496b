"""Finds the batches still open after a lease ended: those in the spool, merged with a dead shard's journal (JRN-6)."""

from collections.abc import Iterable
from typing import NamedTuple

from ...wire.journal import LIVE, JournalSlot
from ...wire.messages import BatchBounds, StampRow


class OpenBatches(NamedTuple):
    """The open batches, oldest first. `certain` False: they contradict each other, so they are only hints."""

    bounds: list[BatchBounds]
    certain: bool

    @property
    def end(self) -> int:
        """One past the last ordinal; 0 without batches."""
        return self.bounds[-1].first + self.bounds[-1].count if self.bounds else 0


def stamp_row_at(rows: list[StampRow], ordinal: int) -> StampRow | None:
    """The stamp row in force for an ordinal: the last one that starts at or before it."""
    found = None
    for row in rows:
        if row.start <= ordinal:
            found = row
    return found


def from_journal_slots(
    slots: Iterable[JournalSlot], known: list[BatchBounds], rows: list[StampRow], mark: int
) -> OpenBatches:
    """Merge one partition's journal slots over the batches that the spool knows.

    Slots of all its holders may be passed: a later generation overrides an earlier one, and within a generation the
    higher serial wins. A batch whose stamp row is no longer in force was settled before the newer row was written.
    """
    ordered = sorted((slot for slot in slots if slot.state == LIVE), key=lambda slot: (slot.generation, slot.serial))
    layers = list(known)
    for slot in ordered:
        row = stamp_row_at(rows, slot.first)
        if row is not None and (row.producer_id, row.epoch) == (slot.producer_id, slot.epoch):
            layers.append(BatchBounds(slot.first, slot.count, slot.epoch))
    return overlay(layers, rows, mark)


def overlay(layers: Iterable[BatchBounds], rows: list[StampRow], mark: int) -> OpenBatches:
    """Merge batch bounds, oldest first. Newer bounds replace older ones that they cover completely.

    Newer bounds that cover an older batch only in part were never sent: all children of a split are journaled before
    the first of them is sent, so the older batch remains (8.5).
    """
    standing: list[BatchBounds] = []
    # Children of a split arrive one by one; they are kept here until they cover the batch that they replace.
    fresh: list[BatchBounds] = []
    for cut in layers:
        row = stamp_row_at(rows, cut.first)
        if cut.first + cut.count <= mark or row is None or row.epoch != cut.epoch:
            continue
        if any(_overlap(cut, other) for other in standing):
            fresh = [other for other in fresh if not _overlap(cut, other)]
            fresh.append(cut)
            standing, fresh = _replace(standing, fresh, mark)
        else:
            standing.append(cut)
    # The mark moves from batch end to batch end: bounds that it splits are not a batch.
    whole = sorted(cut for cut in standing if cut.first >= mark)
    return OpenBatches(whole, certain=len(whole) == len(standing))


def _replace(
    standing: list[BatchBounds], fresh: list[BatchBounds], mark: int
) -> tuple[list[BatchBounds], list[BatchBounds]]:
    for old in standing:
        parts = sorted(cut for cut in fresh if _overlap(cut, old))
        if parts and _covers(parts, max(old.first, mark), old.first + old.count):
            standing = [cut for cut in standing if not any(_overlap(cut, part) for part in parts)] + parts
            fresh = [cut for cut in fresh if cut not in parts]
    return standing, fresh


def _covers(parts: list[BatchBounds], first: int, end: int) -> bool:
    at = first
    for part in parts:
        if part.first > at:
            return False
        at = max(at, part.first + part.count)
    return at >= end


def _overlap(one: BatchBounds, other: BatchBounds) -> bool:
    return one.first < other.first + other.count and other.first < one.first + one.count
