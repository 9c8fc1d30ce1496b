"""Converts durations such as `30s` or `5m` to seconds."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator

_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def seconds_of(given: object) -> float:
    """Return seconds, from a number or from a string with a unit (`ms`, `s`, `m`, `h`, `d`).

    Raises:
        ValueError: `given` is neither.
    """
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    found = _TEXT.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        raise ValueError("a time is wanted: a number of seconds, or a text such as 500ms, 30s, 5m, 24h, 7d")
    return float(found[1]) * _SECONDS[found[2]]


Duration = Annotated[float, BeforeValidator(seconds_of)]
"""Seconds; in files also texts with a unit."""


def text_of(seconds: float) -> str:
    """Return a duration as text, in its largest whole unit."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds // _SECONDS[unit])}{unit}"
    return f"{int(seconds * 1_000)}ms"
