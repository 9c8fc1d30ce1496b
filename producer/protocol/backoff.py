"""Exponential backoff with jitter and a cap. The random number is an argument."""

from typing import Final, NamedTuple

_BASE: Final = 2.0
_JITTER: Final = 0.2
_DOUBLINGS_MAX: Final = 62
"""Enough to reach any cap; keeps the power finite however many attempts there were."""


class Backoff(NamedTuple):
    """First and longest wait, in seconds. If `initial_s` is at or above `max_s`, every wait is `max_s` minus jitter."""

    initial_s: float
    max_s: float

    def wait_s(self, attempts: int, chance: float) -> float:
        """Seconds to wait after `attempts` earlier attempts (0: the first wait).

        The caller draws `chance` in [0, 1) once per attempt. It varies the wait by up to 20 % in either direction; the
        cap is applied afterwards, so the result never exceeds `max_s`.
        """
        assert attempts >= 0, "attempts are counted from 0"
        assert 0.0 <= chance < 1.0, "chance lies in [0, 1)"
        initial = min(self.initial_s, self.max_s)
        grown = min(initial * _BASE ** min(attempts, _DOUBLINGS_MAX), self.max_s)
        return min(grown * (1.0 - _JITTER + 2.0 * _JITTER * chance), self.max_s)
