"""Counts the arguments that a function of the application takes."""

from collections.abc import Callable

MANY = 1 << 10
"""The function takes any number of arguments."""


def wanted_arguments(function: Callable[..., object]) -> int:
    """Number of positional arguments without a default; `MANY` for `*arguments`; 1 if Python cannot tell."""
    import inspect  # noqa: PLC0415  (importing it takes milliseconds, and most programs pass no functions)

    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 1
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return MANY
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for one in parameters if one.kind in places and one.default is one.empty)
