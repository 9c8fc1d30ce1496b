"""Answers that are on their way.

Records that travel in one frame share one `FrameOutcome`; a record's future is a reference to it and an index, and metadata is made
when somebody asks. Waiting and locking are done by the `Condition` that the producer gives.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from .errors import OutcomeUnknownError, PenstockError, RefusedError, RefusedRange, WaitTimeoutError
from .metadata import UNKNOWN, FrameMetadata, OffsetRun, RecordMetadata

T = TypeVar("T")

MAY_BE_WRITTEN: Final = "expired_may_be_written"
"""The one refusal of records that is neither yes nor no."""


class Condition(Protocol):
    """A condition variable: `threading.Condition` is one."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...


class Answer(NamedTuple):
    """The daemon's answer to a frame. `level` None: no record reached it."""

    level: str | None
    runs: Sequence[OffsetRun]
    partitions: Sequence[int] | None
    refused: Sequence[RefusedRange]
    single_replica: bool


class FrameOutcome:
    """What becomes of one frame: nothing yet, an answer, or an error for all of it."""

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
        """Fix the outcome; returns what is to be called now, before those who wait are woken (`wake_waiters`)."""
        with self.condition:
            assert not self.done, "a frame is answered once"
            self.answer, self.error = answer, error
            watchers, self._watchers = self._watchers, None
        return watchers or []

    def wake_waiters(self) -> None:
        """Wake those who wait."""
        with self.condition:
            self.condition.notify_all()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have `watcher` called when the outcome is known: at once if it is."""
        with self.condition:
            if not self.done:
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(watcher)
                return
        watcher()

    def wait(self, timeout_s: float | None) -> None:
        """
        Raises:
            WaitTimeoutError: the outcome is still open after that time.
        """
        if self.done:
            return
        with self.condition:
            if not self.condition.wait_for(lambda: self.done, timeout_s):
                raise WaitTimeoutError(f"no answer within {timeout_s} s")

    def record(self, index: int) -> RecordMetadata:
        """Metadata of one record of a frame that is done.

        Raises:
            PenstockError: what became of it instead.
        """
        if self.error is not None:
            raise self.error
        answer = self.answer
        assert answer is not None
        for refused in answer.refused:
            if refused.first <= index < refused.first + refused.count:
                # To who sent one record, the frame that it shared is nothing: it is the first and only one.
                raise error_for_refused([refused._replace(first=0, count=1)])
        if self._metadata is None:
            self._metadata = _records_metadata(self.topic, self.count, answer)
        return self._metadata[index]


def error_for_refused(refused: Sequence[RefusedRange], retry_ms: int | None = None) -> PenstockError:
    """The error for records that did not share their frame's outcome."""
    first = refused[0]
    if any(one.code == MAY_BE_WRITTEN for one in refused):
        return OutcomeUnknownError(f"{MAY_BE_WRITTEN}: {first.text}")
    return RefusedError(first.code, first.text, retry_ms=retry_ms, refused=refused)


def _records_metadata(topic: str, count: int, answer: Answer) -> list[RecordMetadata]:
    """Every record's place: walking a partition's runs in order gives each of its records an offset."""
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
    """An answer that is on its way."""

    __slots__ = ()

    @abstractmethod
    def done(self) -> bool:
        """Whether `result` would answer at once."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer, at most `timeout` seconds.

        Raises:
            RefusedError: the records were refused for good.
            OutcomeUnknownError: nobody will ever tell.
            ClosedError: the producer ended before they were handed over.
            WaitTimeoutError: no answer yet.
        """

    def exception(self, timeout: float | None = None) -> PenstockError | None:
        """Wait like `result` and return the error instead of raising it; None where there is none.

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
        """Have `callback` called with this future when it is done, on the producer's thread; at once and here if it is."""


class RecordFuture(Future[RecordMetadata]):
    """Where one record went."""

    __slots__ = ("_index", "_outcome")

    def __init__(self, outcome: FrameOutcome, index: int) -> None:
        self._outcome = outcome
        self._index = index

    @property
    def outcome(self) -> FrameOutcome:
        """What becomes of its frame."""
        return self._outcome

    @property
    def index(self) -> int:
        """The record's place in its frame."""
        return self._index

    def done(self) -> bool:
        return self._outcome.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        self._outcome.wait(timeout)
        return self._outcome.record(self._index)

    def add_done_callback(self, callback: Callable[[Future[RecordMetadata]], None]) -> None:
        self._outcome.watch(lambda: callback(self))


class FrameFuture(Future[FrameMetadata]):
    """Where the records of one `send_many` went; they may have travelled in several frames."""

    __slots__ = ("_outcomes",)

    def __init__(self, outcomes: Sequence[FrameOutcome]) -> None:
        self._outcomes: Final = outcomes

    @property
    def outcomes(self) -> Sequence[FrameOutcome]:
        """What becomes of each frame."""
        return self._outcomes

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

    def records(self) -> Iterator[tuple[RecordMetadata | None, PenstockError | None]]:
        """What became of each record, in order, when all is settled: where it is, or why that is not known."""
        for outcome in self._outcomes:
            for index in range(outcome.count):
                try:
                    yield outcome.record(index), None
                except PenstockError as error:
                    yield None, error

    def add_done_callback(self, callback: Callable[[Future[FrameMetadata]], None]) -> None:
        """Frames are settled one at a time, by one thread: the last one finds all done."""
        called: list[bool] = []

        def watch() -> None:
            if not called and self.done():
                called.append(True)
                callback(self)

        for outcome in self._outcomes:
            outcome.watch(watch)


def _refused_ranges(outcome: FrameOutcome, first: int) -> list[RefusedRange]:
    """What was refused of one of several frames, with indexes from `first` on.

    Raises:
        PenstockError: the frame ended in a way that is not a refusal.
    """
    if isinstance(outcome.error, RefusedError):
        return [RefusedRange(first, outcome.count, outcome.error.code, outcome.error.text)]
    if outcome.error is not None:
        raise outcome.error
    assert outcome.answer is not None
    return [one._replace(first=first + one.first) for one in outcome.answer.refused]


def _partitions(answer: Answer) -> Sequence[int]:
    """Each record's partition; empty where that is not known. One partition is not told for each record."""
    if answer.partitions is not None:
        return answer.partitions
    if len({run.partition for run in answer.runs}) != 1 or answer.refused:
        return ()
    return [answer.runs[0].partition] * sum(run.count for run in answer.runs)
