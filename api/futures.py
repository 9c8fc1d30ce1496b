"""Futures for answers that have not arrived yet.

Records sent in one frame share one `FrameOutcome`. A record's future is a reference to it and an index; metadata is
created on demand. Waiting and locking use the `Condition` that the producer passes in.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from .errors import OutcomeUnknownError, PenstockError, RefusedError, RefusedRange, WaitTimeoutError
from .metadata import UNKNOWN, FrameMetadata, OffsetRun, RecordMetadata

T = TypeVar("T")

MAY_BE_WRITTEN: Final = "expired_may_be_written"
"""The only refusal code that leaves open whether the records were written."""


RecordOutcome = tuple[RecordMetadata | None, PenstockError | None, bool]
"""Metadata, error, and whether the record was buffered, of a record sent with others."""


class Condition(Protocol):
    """A condition variable, for example `threading.Condition`."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...


class Answer(NamedTuple):
    """The daemon's answer to a frame. `level` is None if no record reached it."""

    level: str | None
    runs: Sequence[OffsetRun]
    partitions: Sequence[int] | None
    refused: Sequence[RefusedRange]
    single_replica: bool


class FrameOutcome:
    """Outcome of one frame: pending, an answer, or an error for the whole frame."""

    __slots__ = ("_metadata", "_watchers", "answer", "condition", "count", "error", "topic")

    def __init__(self, topic: str, gate: Condition) -> None:
        self.topic = topic
        self.condition = gate
        self.count = 0
        self.answer: Answer | None = None
        self.error: PenstockError | None = None
        self._watchers: list[Callable[[], None]] | None = None
        self._metadata: list[RecordMetadata] | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None

    def settle(self, answer: Answer | None, error: PenstockError | None) -> list[Callable[[], None]]:
        """Set the outcome and return the watchers. Call these first, then `wake_waiters`."""
        with self.condition:
            assert not self.done, "a frame is answered once"
            self.answer, self.error = answer, error
            watchers, self._watchers = self._watchers, None
        return watchers or []

    def wake_waiters(self) -> None:
        """Wake all threads in `wait`."""
        with self.condition:
            self.condition.notify_all()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` once the outcome is set; at once if it already is."""
        with self.condition:
            if not self.done:
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(watcher)
                return
        watcher()

    def wait(self, timeout_s: float | None) -> None:
        """Block until the outcome is set.

        Raises:
            WaitTimeoutError: the outcome is still pending after `timeout_s` seconds.
        """
        if self.done:
            return
        with self.condition:
            if not self.condition.wait_for(lambda: self.done, timeout_s):
                raise WaitTimeoutError(f"no answer within {timeout_s} s")

    def record(self, index: int) -> RecordMetadata:
        """Metadata of one record of a settled frame.

        Raises:
            PenstockError: the record failed.
        """
        if self.error is not None:
            raise self.error
        answer = self.answer
        assert answer is not None
        for refused in answer.refused:
            if refused.first <= index < refused.first + refused.count:
                # The sender of one record does not know the frame: report its record as the first and only one.
                raise error_for_refused([refused._replace(first=0, count=1)])
        if self._metadata is None:
            self._metadata = _records_metadata(self.topic, self.count, answer)
        return self._metadata[index]

    def poll(self, index: int) -> tuple[RecordMetadata | None, PenstockError | None]:
        """Metadata or error of one record of a settled frame; the other is None."""
        try:
            return self.record(index), None
        except PenstockError as error:
            return None, error


def error_for_refused(refused: Sequence[RefusedRange], retry_ms: int | None = None) -> PenstockError:
    """The error for refused records of a frame whose other records may have succeeded."""
    first = refused[0]
    if any(one.code == MAY_BE_WRITTEN for one in refused):
        return OutcomeUnknownError(f"{MAY_BE_WRITTEN}: {first.text}")
    return RefusedError(first.code, first.text, retry_ms=retry_ms, refused=refused)


def _records_metadata(topic: str, count: int, answer: Answer) -> list[RecordMetadata]:
    """Metadata of every record. The runs of a partition, in order, give each of its records an offset."""
    level = answer.level or ""
    nowhere = RecordMetadata(topic, UNKNOWN, UNKNOWN, UNKNOWN, level, answer.single_replica)
    if not answer.runs and answer.partitions is None:
        return [nowhere] * count
    named = {run.partition for run in answer.runs}
    if answer.partitions is None and len(named) > 1:
        return [nowhere] * count
    offsets: dict[int, list[tuple[int, int]]] = {index: [] for index in named}
    for run in answer.runs:
        for i in range(run.count):
            offsets[run.partition].append((run.offset + i if run.offset >= 0 else UNKNOWN, run.timestamp_ms))
    rest = {index: iter(pairs) for index, pairs in offsets.items()}
    only = next(iter(named), UNKNOWN)
    refused = {i for one in answer.refused for i in range(one.first, one.first + one.count)}
    places: list[RecordMetadata] = []
    for i in range(count):
        partition = only if answer.partitions is None else answer.partitions[i]
        offset, stamp = UNKNOWN, UNKNOWN
        if i not in refused:
            offset, stamp = next(rest.get(partition, iter(())), (UNKNOWN, UNKNOWN))
        places.append(RecordMetadata(topic, partition, offset, stamp, level, answer.single_replica))
    return places


class Future(ABC, Generic[T]):
    """An answer that has not arrived yet."""

    __slots__ = ()

    @abstractmethod
    def done(self) -> bool:
        """Whether `result` would return without waiting."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer, at most `timeout` seconds.

        Raises:
            RefusedError: the records were refused and will not be retried.
            OutcomeUnknownError: the outcome will never be known.
            ClosedError: the producer ended before the records were handed over.
            WaitTimeoutError: no answer yet.
        """

    def exception(self, timeout: float | None = None) -> PenstockError | None:
        """Wait like `result` and return the error instead of raising it, or None on success.

        Raises:
            WaitTimeoutError: no answer yet.
        """
        try:
            _ = self.result(timeout)
        except WaitTimeoutError:
            raise
        except PenstockError as error:
            return error
        return None

    @abstractmethod
    def add_done_callback(self, callback: Callable[["Future[T]"], None]) -> None:
        """Call `callback` with this future once it is done, on the producer's thread. If it is done already, call it at
        once on the caller's thread."""


def poll(future: Future[T]) -> tuple[Any, PenstockError | None] | None:
    """The result and the error of a future, one of them None; None as a whole if it is not done."""
    return result_of(future) if future.done() else None


def result_of(done: Future[T]) -> tuple[Any, PenstockError | None]:
    """The result and the error of a done future; one of them is None."""
    error = done.exception()
    return (None, error) if error is not None else (done.result(), None)


class RecordFuture(Future[RecordMetadata]):
    """Future of one record's metadata: the record at `index` of a frame."""

    __slots__ = ("index", "outcome")

    def __init__(self, outcome: FrameOutcome, index: int) -> None:
        self.outcome = outcome
        self.index = index

    def done(self) -> bool:
        return self.outcome.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        self.outcome.wait(timeout)
        return self.outcome.record(self.index)

    def add_done_callback(self, callback: Callable[[Future[RecordMetadata]], None]) -> None:
        self.outcome.watch(lambda: callback(self))


class FrameFuture(Future[FrameMetadata]):
    """Future of one `send_many`, whose records may have been sent in several frames."""

    __slots__ = ("_outcomes",)

    def __init__(self, outcomes: Sequence[FrameOutcome]) -> None:
        self._outcomes: Final = outcomes

    def done(self) -> bool:
        return all(outcome.done for outcome in self._outcomes)

    def result(self, timeout: float | None = None) -> FrameMetadata:
        for outcome in self._outcomes:
            outcome.wait(timeout)
        refused: list[RefusedRange] = []
        first = 0
        for outcome in self._outcomes:
            refused += _refused_ranges(outcome, first)
            first += outcome.count
        if refused:
            errors = [outcome.error for outcome in self._outcomes if isinstance(outcome.error, RefusedError)]
            raise error_for_refused(refused, errors[0].retry_ms if errors else None)
        answers = [outcome.answer for outcome in self._outcomes if outcome.answer is not None]
        partitions = [index for answer in answers for index in _partitions(answer)]
        return FrameMetadata(
            self._outcomes[0].topic,
            first,
            answers[0].level or "",
            [run for answer in answers for run in answer.runs],
            partitions if len(partitions) == first else None,
            any(answer.single_replica for answer in answers),
        )

    def records(self) -> Iterator[RecordOutcome]:
        """Yield the outcome of each record, in order. Call when the future is done."""
        for outcome in self._outcomes:
            for index in range(outcome.count):
                yield *outcome.poll(index), True

    def add_done_callback(self, callback: Callable[[Future[FrameMetadata]], None]) -> None:
        """Call `callback` once. One thread settles the frames one after another, so the last one finds all done."""
        called: list[bool] = []

        def watch() -> None:
            if not called and self.done():
                called.append(True)
                callback(self)

        for outcome in self._outcomes:
            outcome.watch(watch)


def _refused_ranges(outcome: FrameOutcome, first: int) -> list[RefusedRange]:
    """The refused records of one frame out of several, with indexes counted from `first`.

    Raises:
        PenstockError: the frame failed with an error other than a refusal.
    """
    if isinstance(outcome.error, RefusedError):
        return [RefusedRange(first, outcome.count, outcome.error.code, outcome.error.text)]
    if outcome.error is not None:
        raise outcome.error
    assert outcome.answer is not None
    return [one._replace(first=first + one.first) for one in outcome.answer.refused]


def _partitions(answer: Answer) -> Sequence[int]:
    """Each record's partition, or an empty sequence if unknown. A single partition is not listed per record."""
    if answer.partitions is not None:
        return answer.partitions
    if len({run.partition for run in answer.runs}) != 1 or answer.refused:
        return ()
    return [answer.runs[0].partition] * sum(run.count for run in answer.runs)
