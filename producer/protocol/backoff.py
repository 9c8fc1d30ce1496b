"""How long to wait before something is tried again: exponential, jittered, capped. Chance is an argument."""

from typing import Final, NamedTuple

_BASE: Final = 2.0
_JITTER: Final = 0.2
_DOUBLINGS_MAX: Final = 62
"""Enough to reach any cap; keeps the power finite however many attempts there were."""


class Backoff(NamedTuple):
    """First and longest wait, in seconds. With `initial_s` at or above `max_s` every wait is `max_s` (less the jitter)."""

    initial_s: float
    max_s: float

    def wait_s(self, attempts: int, chance: float) -> float:
        """Seconds to wait after `attempts` earlier tries (0: the first wait).

        `chance` in [0, 1) is drawn once per try by the caller; it spreads the wait by 20 % to either side, and the cap
        holds after that, so the answer never exceeds `max_s`.
        """
        assert attempts >= 0, "attempts are counted from 0"
        assert 0.0 <= chance < 1.0, "chance lies in [0, 1)"
        initial = min(self.initial_s, self.max_s)
        grown = min(initial * _BASE ** min(attempts, _DOUBLINGS_MAX), self.max_s)
        return min(grown * (1.0 - _JITTER + 2.0 * _JITTER * chance), self.max_s)
