"""What is wrong with the settings, all of it at once."""

import re
from typing import Final

from pydantic_core import ErrorDetails

_USER_OF_URL: Final = re.compile("//.*@")


class ConfigError(Exception):
    """The operator's: nothing was started. `problems` are sentences that say what to change, and where."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def expectation(detail: ErrorDetails) -> str:
    """What a wrong value should have been, as the end of a sentence."""
    context = detail.get("ctx", {})
    if detail["type"] == "value_error" and "error" in context:
        return str(context["error"])
    if detail["type"] == "literal_error":
        expected = str(context["expected"])
        return f"only {expected.lower() if expected in ('True', 'False') else expected} is taken"
    return detail["msg"][:1].lower() + detail["msg"][1:]


def redacted(value: object) -> str:
    """A wrong value as it was written, but for user and password in a URL: what is wrong with settings goes into logs."""
    return _USER_OF_URL.sub("//…@", repr(value))
