"""Decides which ordinals of a refused batch are dead-lettered, and the stamp rows after them (10.2, IDN-5, IDN-6)."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...producer.protocol.error_codes import error_name
from ...producer.records import sequence_ranges
from ...wire.messages import BatchRefused, StampRow
from ..ledger.partition_state import LedgerPartition
from ..ledger.slices import PendingSlice
from .backlog import Backlog, DeadLetterRange
from .states import DeadLetterBatch


@dataclass(frozen=True, slots=True)
class DeadLetterPart:
    """Records [index, index + count) of a slice."""

    slice: PendingSlice
    index: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class DeadLetterRequest:
    """Records to sync in the dead letters before `Leases.dead_lettered`. `may_be_written`: they may be in Kafka too."""

    partition: int
    topic: str
    index: int
    code: int
    error: str
    message: str
    may_be_written: bool
    ranges: list[DeadLetterRange]
    parts: list[DeadLetterPart]


def dead_letter_request(state: LedgerPartition, errand: DeadLetterBatch, backlog: Backlog) -> DeadLetterRequest:
    """The dead letter request for a refused batch."""
    refused = errand.refused
    pieces = _pieces(refused, unsure=errand.may_be_written)
    parts = [part for piece in pieces for part in _parts(backlog.unresolved, piece)]
    error = error_name(refused.code)
    return DeadLetterRequest(
        state.number,
        state.topic,
        state.index,
        refused.code,
        error,
        refused.message,
        errand.may_be_written,
        pieces,
        parts,
    )


def stamp_rows_for(
    state: LedgerPartition, parked: Iterable[DeadLetterRange], producer_id: int, epoch: int
) -> tuple[StampRow, list[StampRow]]:
    """The row that starts an epoch at the first ordinal left, and one row after every later hole."""
    holes = [*((hole.first, hole.end) for hole in state.holes), *((p.first, p.first + p.count) for p in parked)]
    return sequence_ranges.stamp_rows_from(state.mark, holes, producer_id, epoch)


def _pieces(refused: BatchRefused, *, unsure: bool) -> list[DeadLetterRange]:
    """The listed records, or the whole batch when none is listed. Neighbours with the same text are merged."""
    name = error_name(refused.code)
    tail = "; an earlier attempt may have written it" if unsure else ""
    # If the batch may be in the log, its unlisted records must not be resent either.
    listed = [] if unsure else sorted(set(refused.record_errors))
    if not listed:
        text = f"{name}: {refused.message}{tail}" if refused.message else name + tail
        return [DeadLetterRange(refused.first, refused.count, text)]
    pieces: list[DeadLetterRange] = []
    for index, message in listed:
        text = f"{name}: {message or refused.message}"
        ordinal = refused.first + index
        if pieces and pieces[-1].text == text and pieces[-1].first + pieces[-1].count == ordinal:
            pieces[-1] = DeadLetterRange(pieces[-1].first, pieces[-1].count + 1, text)
        elif not pieces or pieces[-1].first + pieces[-1].count <= ordinal:
            pieces.append(DeadLetterRange(ordinal, 1, text))
    return pieces


def _parts(slices: Iterable[PendingSlice], piece: DeadLetterRange) -> list[DeadLetterPart]:
    parts: list[DeadLetterPart] = []
    for candidate in slices:
        if candidate.first >= piece.first + piece.count:
            break
        first, end = max(candidate.first, piece.first), min(candidate.end, piece.first + piece.count)
        if end > first:
            parts.append(DeadLetterPart(candidate, first - candidate.first, end - first, piece.text))
    return parts
