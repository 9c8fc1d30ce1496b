"""What a request comes with beside its fields, and what becomes of it."""

from __future__ import annotations

from typing import NamedTuple

from kafka.protocol.api_message import ApiMessage

from ..log.ports import BrokerTime


class RequestContext(NamedTuple):
    """Who asks, how, and when."""

    version: int
    client_id: str
    arrived: float
    """Seconds, of the clock that `BrokerTime.now` reads."""

    moment: BrokerTime


class ImmediateResponse(NamedTuple):
    """Send this."""

    response: ApiMessage
    mute_s: float = 0.0
    """Take nothing more from this connection for so long (seconds)."""


class NoResponse(NamedTuple):
    """The client wants no answer."""


class DelayedResponse(NamedTuple):
    """Ask again when something changed, at the latest at `deadline` (seconds)."""

    deadline: float
    pending: object = None
    """What was done already; it is given in again with the request. None: nothing was."""


class CloseConnection(NamedTuple):
    """Close this connection."""

    why: str


RequestOutcome = ImmediateResponse | NoResponse | DelayedResponse | CloseConnection
