"""Hours, `YYYY-MM-DD-HH` in UTC: the partitions of tables, and the ranges of audits."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
MINUTES: Final = 60
MINUTE_MAX: Final = 4_223_371_679
"""The last minute of the year 9999. Later hours cannot be written in this form."""
_FORMAT: Final = "%Y-%m-%d-%H"


def hour_of_ms(ms: int) -> str:
    """Return the hour of a time in ms since 1970. Raise OverflowError or ValueError beyond the year 9999."""
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime(_FORMAT)


def start_ms(hour: str) -> int:
    """Return the start of an hour in ms since 1970. Raise ValueError for any other text."""
    moment = datetime.strptime(hour, _FORMAT).replace(tzinfo=UTC)
    if moment.strftime(_FORMAT) != hour:
        raise ValueError(f"{hour!r} is not an hour of the form YYYY-MM-DD-HH")
    return int(moment.timestamp()) * 1_000


@dataclass(frozen=True, slots=True)
class HourRange:
    """The hours from `first` to `last`, inclusive. None leaves that side open."""

    first: str | None = None
    last: str | None = None

    @classmethod
    def parse(cls, first: str | None, last: str | None) -> Self | None:
        """Parse an operator's input; None when neither end is given. Raise ValueError with a sentence."""
        if first is None and last is None:
            return None
        for given in (first, last):
            if given is not None:
                _check(given)
        if first is not None and last is not None and first > last:
            raise ValueError(f"the hours from {first} to {last} are none")
        return cls(first, last)

    def __contains__(self, hour: object) -> bool:
        return (
            isinstance(hour, str)
            and (self.first is None or hour >= self.first)
            and (self.last is None or hour <= self.last)
        )

    def select(self, hours: Iterable[str]) -> list[str]:
        """Return the hours inside the range, sorted."""
        return sorted(hour for hour in set(hours) if hour in self)


def _check(hour: str) -> None:
    try:
        _ = start_ms(hour)
    except ValueError:
        raise ValueError(f"{hour!r} is not an hour of the form YYYY-MM-DD-HH") from None
