"""Which cuts are still open after a lease ended: the spool's, put together with a dead shard's journal (JRN-6)."""

from collections.abc import Iterable
from typing import NamedTuple

from ...wire.journal import LIVE, JournalSlot
from ...wire.messages import BatchBounds, StampRow


class OpenBatches(NamedTuple):
    """The open cuts, oldest first. `certain` False: they contradict each other, so they are hints."""

    bounds: list[BatchBounds]
    certain: bool

    @property
    def end(self) -> int:
        """The ordinal behind the last of them; 0: none."""
        return self.bounds[-1].first + self.bounds[-1].count if self.bounds else 0


def stamp_row_at(rows: list[StampRow], ordinal: int) -> StampRow | None:
    """The stamp row in force for an ordinal: the last one that begins at or before it."""
    found = None
    for row in rows:
        if row.start <= ordinal:
            found = row
    return found


def from_journal_slots(
    slots: Iterable[JournalSlot], known: list[BatchBounds], rows: list[StampRow], mark: int
) -> OpenBatches:
    """What one partition's journal slots say, over the cuts the spool knows.

    Slots of all its holders may be given: a later generation's stand above an earlier one's, and in one generation the higher
    serial. A slot whose stamp row is no longer in force was settled before that row was written.
    """
    ordered = sorted((slot for slot in slots if slot.state == LIVE), key=lambda slot: (slot.generation, slot.serial))
    layers = list(known)
    for slot in ordered:
        row = stamp_row_at(rows, slot.first)
        if row is not None and (row.producer_id, row.epoch) == (slot.producer_id, slot.epoch):
            layers.append(BatchBounds(slot.first, slot.count, slot.epoch))
    return overlay(layers, rows, mark)


def overlay(layers: Iterable[BatchBounds], rows: list[StampRow], mark: int) -> OpenBatches:
    """Lay cuts over each other, oldest knowledge first; newer ones replace older ones that they cover whole.

    Newer cuts that cover an older one only in part were never sent: all children of a split are journaled before the first
    of them leaves, so the older stands (8.5).
    """
    standing: list[BatchBounds] = []
    # A group of children arrives one by one: they are held until they cover what they replace.
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
    # The mark moves from batch end to batch end: what it cuts through is no batch.
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
