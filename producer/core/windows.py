"""What was recorded, in all and over the last windows of time: sums, counts and maxima, as Kafka's clients sample them.

A sample takes what is recorded for one window's time from its first value on; so many samples are looked at together. What is read
changes nothing, so another thread than the recording one may read.
"""

import math
from collections import deque
from typing import Final, NamedTuple


class Windows(NamedTuple):
    """How far averages, maxima and rates look back: `samples` windows of `window_s` seconds."""

    window_s: float = 30.0
    samples: int = 2


class _Sample(NamedTuple):
    began: float
    last: float
    total: float
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    largest: float


class Sampled:
    """Values of one kind. `total` and `count` are of all that was ever recorded. Times are seconds of one clock."""

    __slots__ = ("_began", "_count", "_largest", "_last", "_older", "_total", "_window_s", "_windows", "count", "total")

    def __init__(self, windows: Windows) -> None:
        self.total = 0.0
        self.count = 0
        self._windows: Final = windows
        self._window_s: Final = windows.window_s
        # One more than is looked at: the oldest reaches back beyond the windows, and part of it lies in them.
        self._older: Final[deque[_Sample]] = deque(maxlen=windows.samples)
        self._began = -math.inf
        self._last = -math.inf
        self._total = 0.0
        self._count = 0
        self._largest = -math.inf

    def add(self, value: float, now: float) -> None:
        """One more value."""
        if now - self._began >= self._window_s:
            self._advance(now)
        self._last = now
        self._total += value
        self._count += 1
        self._largest = max(self._largest, value)
        self.total += value
        self.count += 1

    def _advance(self, now: float) -> None:
        if self._count:
            self._older.append(_Sample(self._began, self._last, self._total, self._count, self._largest))
        self._began = now
        self._total = 0.0
        self._count = 0
        self._largest = -math.inf

    # --- reading -----------------------------------------------------------------------------------------------------

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
