"""What a request comes with beside its fields, and what becomes of it."""

from __future__ import annotations

from typing import NamedTuple

from kafka.protocol.api_message import ApiMessage

from ..log.ports import Moment


class Call(NamedTuple):
    """Who asks, how, and when."""

    version: int
    client_id: str
    arrived: float
    """Seconds, of the clock that `Moment.now` reads."""

    moment: Moment


class Answer(NamedTuple):
    """Send this."""

    response: ApiMessage
    mute_s: float = 0.0
    """Take nothing more from this connection for so long (seconds)."""


class Silence(NamedTuple):
    """The client wants no answer."""


class Wait(NamedTuple):
    """Ask again when something changed, at the latest at `deadline` (seconds)."""

    deadline: float
    pending: object = None
    """What was done already; it is given in again with the request. None: nothing was."""


class HangUp(NamedTuple):
    """Close this connection."""

    why: str


Outcome = Answer | Silence | Wait | HangUp
