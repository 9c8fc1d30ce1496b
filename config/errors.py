"""The error that reports all problems of the settings at once."""

import re
from typing import Final

from pydantic_core import ErrorDetails

_USER_OF_URL: Final = re.compile("//.*@")


class ConfigError(Exception):
    """A configuration error, raised before anything starts. `problems`: one sentence each, with place and remedy."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def expectation(detail: ErrorDetails) -> str:
    """Return the expected value as the end of a sentence."""
    context = detail.get("ctx", {})
    if detail["type"] == "value_error" and "error" in context:
        return str(context["error"])
    if detail["type"] == "literal_error":
        expected = str(context["expected"])
        return f"only {expected.lower() if expected in ('True', 'False') else expected} is taken"
    return detail["msg"][:1].lower() + detail["msg"][1:]


def redacted(value: object) -> str:
    """Return a wrong value as written, without user and password of a URL, because the message goes into logs."""
    return _USER_OF_URL.sub("//…@", repr(value))
