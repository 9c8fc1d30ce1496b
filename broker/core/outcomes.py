"""What becomes of a request."""

from __future__ import annotations

from typing import NamedTuple

from kafka.protocol.api_message import ApiMessage


class Answer(NamedTuple):
    """Send this."""

    response: ApiMessage


class Silence(NamedTuple):
    """The client wants no answer."""


class Wait(NamedTuple):
    """Ask again when a batch was appended, at the latest at `deadline` (seconds)."""

    deadline: float


class HangUp(NamedTuple):
    """Close this connection."""

    why: str


Outcome = Answer | Silence | Wait | HangUp
