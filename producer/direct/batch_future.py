"""The future of a `send_many`: its records are in several chunks, and complete at different times."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from ...api.errors import OutcomeUnknownError, PenstockError, RefusedError, RefusedRange
from ...api.futures import Future
from ...api.metadata import UNKNOWN, FrameMetadata, OffsetRun, RecordMetadata
from ..kernel.chunks import ChunkSpan
from .nonblocking import WouldBlockError

if TYPE_CHECKING:
    from ..kernel.chunks import ChunkOwner  # exists only in the .pyi


class _OutcomeRun(NamedTuple):
    """Consecutive records of one partition that share an outcome."""

    partition: int
    count: int  # type: ignore[assignment]
    offset: int
    log_append_ms: int
    error: PenstockError | None


class _RecordOutcome(NamedTuple):
    """The outcome of one record. `taken`: whether it was appended to a chunk."""

    offset: int
    log_append_ms: int
    error: PenstockError | None
    taken: bool


class _RecordRef(NamedTuple):
    """A record of a span, by its index in the chunk."""

    span: ChunkSpan
    index: int  # type: ignore[assignment]


class ColumnsFuture(Future[FrameMetadata]):
    """The future of a `send_many`. `partitions`: each record's partition as a 32-bit number, -1 for a rejected record.
    `now`: CLOCK_MONOTONIC seconds. `would_block_error`: in non-blocking mode, what the remaining records wait for."""

    __slots__ = ("_front", "_now", "_partitions", "_spans", "_topic", "would_block_error")

    def __init__(
        self,
        topic: str,
        spans: Sequence[ChunkSpan],
        partitions: bytearray,
        front: "ChunkOwner",
        now: Callable[[], float],
        not_yet: WouldBlockError | None = None,
    ) -> None:
        self.would_block_error: Final = not_yet
        self._topic: Final = topic
        self._spans: Final = spans
        self._partitions: Final = memoryview(partitions).cast("i")
        self._front: Final = front
        self._now: Final = now

    def __len__(self) -> int:
        return len(self._partitions)

    def concatenated(self, more: "ColumnsFuture") -> "ColumnsFuture":
        """One future for these records and those of `more`, as if one call had sent them."""
        partitions = bytearray(self._partitions) + bytearray(more._partitions)  # noqa: SLF001  (same class)
        spans = [*self._spans, *more._spans]  # noqa: SLF001
        return ColumnsFuture(self._topic, spans, partitions, self._front, self._now, more.would_block_error)

    def done(self) -> bool:
        return self._resolved() and all(self._front.callbacks_done(span.chunk) for span in self._spans)

    def _resolved(self) -> bool:
        return all(_first_unresolved(span) is None for span in self._spans)

    def result(self, timeout: float | None = None) -> FrameMetadata:
        deadline = None if timeout is None else self._now() + timeout
        for span in self._spans:
            while (mark := _first_unresolved(span)) is not None:
                self._wait(mark, deadline)
            # The last record's callbacks must have run as well.
            self._wait(_RecordRef(span, span.first + span.count - 1), deadline)
        runs = [run for span in self._spans for run in _outcome_runs(span)]
        errors = [run.error for run in runs if run.error is not None]
        if errors:
            raise self._failure(runs, errors)
        partitions = self._partitions.tolist()
        told = [OffsetRun(run.partition, run.offset, run.count, run.log_append_ms) for run in runs]
        return FrameMetadata(self._topic, len(partitions), "delivered", told, partitions, self._front.single_replica)

    def _wait(self, mark: _RecordRef, deadline: float | None) -> None:
        left = None if deadline is None else max(0.0, deadline - self._now())
        self._front.wait(mark.span.chunk, mark.index, left)

    def _failure(self, runs: Sequence[_OutcomeRun], errors: Sequence[PenstockError]) -> PenstockError:
        """The error of the whole call: an unknown outcome first, then any error that is not a refusal. Several
        different refusals become one `RefusedError`, with a range for each run of records."""
        grave = [error for error in errors if not isinstance(error, RefusedError)]
        unknown = [error for error in grave if isinstance(error, OutcomeUnknownError)]
        if grave:
            return (unknown or grave)[0].with_traceback(None)
        first = errors[0]
        assert isinstance(first, RefusedError)
        if len(errors) == len(runs) and all(error is first for error in errors):
            return first.with_traceback(None)
        return RefusedError(first.code, first.text, refused=list(self._refused(runs)))

    def _refused(self, runs: Sequence[_OutcomeRun]) -> Iterator[RefusedRange]:
        """The refused ranges, by the positions of the records in the columns."""
        places: dict[int, list[int]] = {}
        for place, partition in enumerate(self._partitions):
            places.setdefault(partition, []).append(place)
        refused: dict[int, RefusedError] = {}
        taken = dict.fromkeys(places, 0)
        for run in runs:
            begun = taken[run.partition]
            taken[run.partition] = begun + run.count
            if isinstance(run.error, RefusedError):
                refused |= dict.fromkeys(places[run.partition][begun : begun + run.count], run.error)
        following: RefusedRange | None = None
        for place, error in sorted(refused.items()):
            if following is not None and (place, error.code) == (following.first + following.count, following.code):
                following = following._replace(count=following.count + 1)
                continue
            if following is not None:
                yield following
            following = RefusedRange(place, 1, error.code, error.text)
        if following is not None:
            yield following

    def records(self) -> Iterator[tuple[RecordMetadata, PenstockError | None, bool]]:
        """For each record in order: metadata, error or None, and whether it was appended to a chunk. Call it when all
        records have completed."""
        ends: dict[int, list[_RecordOutcome]] = {}
        for span in self._spans:
            taken = span.chunk.serial >= 0
            for run in _outcome_runs(span):
                each = ends.setdefault(run.partition, [])
                for i in range(run.count):
                    offset = run.offset + i if run.offset >= 0 else UNKNOWN
                    each.append(_RecordOutcome(offset, run.log_append_ms, run.error, taken))
        iterators = {partition: iter(each) for partition, each in ends.items()}
        for partition in self._partitions:
            offset, stamp, error, taken = next(iterators[partition])
            level = "delivered" if error is None else ""
            weak = error is None and self._front.single_replica
            yield RecordMetadata(self._topic, partition, offset, stamp, level, weak), error, taken

    def add_done_callback(self, callback: Callable[[Future[FrameMetadata]], None]) -> None:
        waiting = [callback]

        def again(mark: _RecordRef) -> None:
            look(mark.span)

        def look(span: ChunkSpan) -> None:
            while (mark := _first_unresolved(span)) is not None:
                if self._front.watch(span.chunk, (mark, again, False)):
                    return
            # A caller and the sender thread may both get here; only one of them pops the callback.
            if self._resolved():
                with suppress(IndexError):
                    waiting.pop()(self)

        for span in self._spans:
            look(span)


def _first_unresolved(span: ChunkSpan) -> _RecordRef | None:
    """The first record of a span without an outcome, or None."""
    end = span.first + span.count
    index = span.chunk.next_open(span.first, end)
    return None if index == end else _RecordRef(span, index)


def _outcome_runs(span: ChunkSpan) -> Iterator[_OutcomeRun]:
    """The outcomes of a resolved span, one for each run of records that share it."""
    end = span.first + span.count
    for first, last, offset, log_append_ms, error in span.chunk.outcomes:
        begun, ended = max(first, span.first), min(last, end)
        if begun < ended:
            place = offset + begun - first if offset >= 0 else UNKNOWN
            yield _OutcomeRun(span.chunk.part.index, ended - begun, place, log_append_ms, error)
