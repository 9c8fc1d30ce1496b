"""What was recorded, in all and over the last windows of time: sums, counts and maxima, as Kafka's clients sample them.

A sample takes what is recorded for one window's time from its first value on; so many samples are looked at together. What is read
changes nothing, so another thread than the recording one may read.
"""

import math
from collections import deque
from typing import Final, NamedTuple


class SampleWindows(NamedTuple):
    """How far averages, maxima and rates look back: `samples` windows of `window_s` seconds."""

    window_s: float = 30.0
    samples: int = 2


class _Sample(NamedTuple):
    began: float
    last: float
    total: float
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    largest: float


class SampledSensor:
    """Values of one kind. Times are seconds of one clock."""

    __slots__ = (
        "_began",
        "_count",
        "_count_before",
        "_ends",
        "_largest",
        "_last",
        "_older",
        "_total",
        "_total_before",
        "_window_s",
        "_windows",
    )

    def __init__(self, windows: SampleWindows) -> None:
        self._windows: Final = windows
        self._window_s: Final = windows.window_s
        # One more than is looked at: the oldest reaches back beyond the windows, and part of it lies in them.
        self._older: Final[deque[_Sample]] = deque(maxlen=windows.samples)
        self._began = -math.inf
        self._ends = -math.inf
        self._last = -math.inf
        self._total_before = 0.0
        self._count_before = 0
        self._total = 0.0
        self._count = 0
        self._largest = -math.inf

    def add(self, value: float, now: float) -> None:
        """One more value."""
        if now >= self._ends:
            self._advance(now)
        self._last = now
        self._total += value
        self._count += 1
        if value > self._largest:  # noqa: PLR1730  (several times for each batch: a call costs as much as all the rest)
            self._largest = value

    def _advance(self, now: float) -> None:
        if self._count:
            self._older.append(_Sample(self._began, self._last, self._total, self._count, self._largest))
        # No call from here on: other threads read totals, which must never be seen to fall.
        self._began = now
        self._ends = now + self._window_s
        self._total_before += self._total
        self._count_before += self._count
        self._total = 0.0
        self._count = 0
        self._largest = -math.inf

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def total(self) -> float:
        """Sum of all that was ever recorded."""
        return self._total_before + self._total

    @property
    def count(self) -> int:
        """How often something was recorded."""
        return self._count_before + self._count

    def average(self, now: float) -> float:
        """Mean of the values in the windows; NaN: there are none."""
        samples = self._samples(now)
        count = sum(sample.count for sample in samples)
        return sum(sample.total for sample in samples) / count if count else math.nan

    def largest(self, now: float) -> float:
        """The largest value in the windows; NaN: there are none."""
        return max((sample.largest for sample in self._samples(now)), default=math.nan)

    def rate(self, now: float) -> float:
        """Sum of the values in the windows, a second."""
        samples = self._samples(now)
        return sum(sample.total for sample in samples) / self._elapsed(samples, now) if samples else 0.0

    def frequency(self, now: float) -> float:
        """Number of values in the windows, a second."""
        samples = self._samples(now)
        return sum(sample.count for sample in samples) / self._elapsed(samples, now) if samples else 0.0

    def _samples(self, now: float) -> list[_Sample]:
        """Those with a value in the windows; oldest first."""
        newest = _Sample(self._began, self._last, self._total, self._count, self._largest)
        reach = self._windows.samples * self._window_s
        return [sample for sample in (*self._older, newest) if sample.count and now - sample.last < reach]

    def _elapsed(self, samples: list[_Sample], now: float) -> float:
        """The time that a rate is about, in seconds: at least all windows but one and the part of that one which is over, so that
        the first values after silence do not look like a burst."""
        elapsed = now - samples[0].began
        missing = self._windows.samples - 1 - math.floor(elapsed / self._window_s)
        return max(elapsed + max(0, missing) * self._window_s, 0.001)
