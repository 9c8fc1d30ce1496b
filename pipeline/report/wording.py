"""Formats numbers, times and ids for the report. Rounding is pessimistic: a share is never rounded up to 100 %."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Decimal
from typing import Final

from ..hours import MINUTE_MS, start_ms

MINUTES_A_DAY: Final = 1_440
DECIMALS_MAX: Final = 10
NONE: Final = "\N{EN DASH}"
"""Shown where there is no figure."""
UNKNOWN_HOST: Final = "unknown host"


def number(count: int) -> str:
    """Format `1,234,567`."""
    return f"{count:,}"


def count_text(count: int, one: str, many: str = "") -> str:
    """Format `1 record`, `7 records`; `many` is for irregular plurals."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share(part: int, whole: int) -> str:
    """Return `part` of `whole` in percent, with enough decimals that it reads 100 % (or 0 %) only when exact."""
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
    """Whether the last decimal is not a 9, so that the missing share is visible."""
    return shown.as_tuple().digits[-1] != 9 or decimals == DECIMALS_MAX


def seconds(value: float | None) -> str:
    """Format a duration: `3 ms`, `1.4 s`, `2 min 5 s`, `3 h 20 min`, `4 d 1 h`."""
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
    """Format `2026-11-22 03:14:07 UTC`; a time outside the calendar is given in ms."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def minute_text(minute: int) -> str:
    """Format `2026-11-22 03:14`, UTC."""
    return moment(minute * 60_000)[:16]


def hour_text(hour: str) -> str:
    """Format `2026-11-22-03` as `2026-11-22 03:00`; return any other text unchanged."""
    day, _, of_day = hour.rpartition("-")
    return f"{day} {of_day}:00" if len(hour) == 13 and of_day.isdigit() else hour


def hour_minute(hour: str) -> int | None:
    """Return the first minute (since 1970) of an hour `YYYY-MM-DD-HH`; None for any other text."""
    try:
        return start_ms(hour) // MINUTE_MS
    except ValueError:
        return None


def record_ids(incarnation: str, origin: int, first: int, end: int) -> str:
    """Format an id, or a range as its first id and its last ordinal."""
    text = f"{incarnation}-{origin}-{first}"
    return text if end == first + 1 else f"{text} … {end - 1}"


def visible(text: str) -> str:
    """Escape characters that are invisible or reverse the text direction, so that a name shows its real content."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join `a`, `a and b`, `a, b and c`, `a, b, c and 12 more`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {number(len(names) - most)} more"
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def distinct(names: Iterable[str]) -> list[str]:
    """Each name once, sorted, without empty names."""
    return sorted({name for name in names if name})
