"""How many arguments a function of the application wants."""

from collections.abc import Callable

MANY = 1 << 10
"""It takes as many as there are."""


def wanted_arguments(function: Callable[..., object]) -> int:
    """Positional arguments that have no default; `MANY` for `*arguments`; 1 where Python cannot tell."""
    import inspect  # noqa: PLC0415  (it takes milliseconds, and most programs give no functions)

    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 1
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return MANY
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for one in parameters if one.kind in places and one.default is one.empty)
