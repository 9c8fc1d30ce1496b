"""How the report says numbers, times and ids. Everything here errs on the bad side: a share is never rounded up to 100 %."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Decimal
from typing import Final

MINUTES_A_DAY: Final = 1_440
DECIMALS_MAX: Final = 10
NONE: Final = "\N{EN DASH}"
"""Stands where there is no figure."""
UNKNOWN_HOST: Final = "unknown host"


def number(count: int) -> str:
    """`1,234,567`."""
    return f"{count:,}"


def count_text(count: int, one: str, many: str = "") -> str:
    """`1 record`, `7 records`; `many` where an s is not enough."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share(part: int, whole: int) -> str:
    """`part` of `whole` in percent, with as many decimals as it takes not to read 100 % (or 0 %) where it is not."""
    if whole <= 0:
        return NONE
    if part >= whole:
        return "100 %"
    if part <= 0:
        return "0 %"
    exact = Decimal(part) * 100 / Decimal(whole)
    for decimals in range(1, DECIMALS_MAX + 1):
        shown = exact.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_DOWN)
        if shown > 0 and (shown < Decimal("99.9") or shown == exact or _shows_gap(shown, decimals)):
            return f"{shown} %"
    return "almost 100 %" if part * 2 > whole else "almost 0 %"


def _shows_gap(shown: Decimal, decimals: int) -> bool:
    """Whether the last decimal is not a 9, so that the size of what is missing can be read."""
    return shown.as_tuple().digits[-1] != 9 or decimals == DECIMALS_MAX


def seconds(value: float | None) -> str:
    """A span: `3 ms`, `1.4 s`, `2 min 5 s`, `3 h 20 min`, `4 d 1 h`."""
    if value is None:
        return NONE
    if value < 1:
        return f"{round(value * 1000)} ms"
    if value < 59.95:
        return f"{value:.1f}".removesuffix(".0") + " s"
    whole = round(value)
    if whole < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    if whole < 86_400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def _two(first: int, first_unit: str, second: int, second_unit: str) -> str:
    return f"{first} {first_unit}" + (f" {second} {second_unit}" if second else "")


def moment(ms: int) -> str:
    """`2026-11-22 03:14:07 UTC`; what no calendar has is given as the number it is."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def minute_text(minute: int) -> str:
    """`2026-11-22 03:14`, UTC."""
    return moment(minute * 60_000)[:16]


def hour_text(hour: str) -> str:
    """`2026-11-22-03` as `2026-11-22 03:00`; anything else as it is."""
    day, _, of_day = hour.rpartition("-")
    return f"{day} {of_day}:00" if len(hour) == 13 and of_day.isdigit() else hour


def hour_minute(hour: str) -> int | None:
    """The first minute (since 1970) of an hour `YYYY-MM-DD-HH`; None for a text that is none."""
    try:
        at = datetime.strptime(hour, "%Y-%m-%d-%H").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) // 60


def record_ids(incarnation: str, origin: int, first: int, end: int) -> str:
    """Text form of ids: one as it is, a range as its first and its last ordinal."""
    text = f"{incarnation}-{origin}-{first}"
    return text if end == first + 1 else f"{text} … {end - 1}"


def visible(text: str) -> str:
    """Characters that nobody sees, or that turn the order of others around, as escapes: a name reads as what it is."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def join_names(names: Sequence[str], most: int = 3) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 12 more`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {number(len(names) - most)} more"
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def distinct(names: Iterable[str]) -> list[str]:
    """Each once, sorted, without empty ones."""
    return sorted({name for name in names if name})
