"""Sums, counts and maxima of recorded values, in total and over recent windows of time, sampled as in Kafka's clients.

A sample collects the values of one window's length, counted from its first value; statistics combine several samples.
Reading changes nothing, so other threads than the recording one may read.
"""

import math
from collections import deque
from typing import Final, NamedTuple


class SampleWindows(NamedTuple):
    """How far averages, maxima and rates reach back: `samples` windows of `window_s` seconds."""

    window_s: float = 30.0
    samples: int = 2


class _Sample(NamedTuple):
    began: float
    last: float
    total: float
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    largest: float


class SampledSensor:
    """Recorded values of one sensor. Times are seconds of one clock."""

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
        # One more than the windows, because the oldest sample may be partly inside them.
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
        """Record a value."""
        if now >= self._ends:
            self._advance(now)
        self._last = now
        self._total += value
        self._count += 1
        if value > self._largest:  # noqa: PLR1730  (runs several times per batch, and a call would double the cost)
            self._largest = value

    def _advance(self, now: float) -> None:
        if self._count:
            self._older.append(_Sample(self._began, self._last, self._total, self._count, self._largest))
        # No call from here on: other threads read totals, which must never appear to fall.
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
        """Sum of all recorded values."""
        return self._total_before + self._total

    @property
    def count(self) -> int:
        """Number of recorded values."""
        return self._count_before + self._count

    def average(self, now: float) -> float:
        """Mean of the values in the windows; NaN if there are none."""
        samples = self._samples(now)
        count = sum(sample.count for sample in samples)
        return sum(sample.total for sample in samples) / count if count else math.nan

    def largest(self, now: float) -> float:
        """The largest value in the windows; NaN if there are none."""
        return max((sample.largest for sample in self._samples(now)), default=math.nan)

    def rate(self, now: float) -> float:
        """Sum of the values in the windows per second."""
        samples = self._samples(now)
        return sum(sample.total for sample in samples) / self._elapsed(samples, now) if samples else 0.0

    def frequency(self, now: float) -> float:
        """Number of values in the windows per second."""
        samples = self._samples(now)
        return sum(sample.count for sample in samples) / self._elapsed(samples, now) if samples else 0.0

    def _samples(self, now: float) -> list[_Sample]:
        """The samples with a value in the windows, oldest first."""
        newest = _Sample(self._began, self._last, self._total, self._count, self._largest)
        reach = self._windows.samples * self._window_s
        return [sample for sample in (*self._older, newest) if sample.count and now - sample.last < reach]

    def _elapsed(self, samples: list[_Sample], now: float) -> float:
        """The seconds that a rate divides by: at least all windows but one plus the elapsed part of that one, so that
        the first values after a silence do not look like a burst."""
        elapsed = now - samples[0].began
        missing = self._windows.samples - 1 - math.floor(elapsed / self._window_s)
        return max(elapsed + max(0, missing) * self._window_s, 0.001)
