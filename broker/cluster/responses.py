"""Context of a request, and the possible outcomes of serving it."""

from __future__ import annotations

from typing import NamedTuple

from kafka.protocol.api_message import ApiMessage

from ..log.ports import BrokerTime


class RequestContext(NamedTuple):
    """API version, client and time of a request."""

    version: int
    client_id: str
    arrived: float
    """Seconds, of the clock that `BrokerTime.now` reads."""

    moment: BrokerTime


class ImmediateResponse(NamedTuple):
    """Send this response."""

    response: ApiMessage
    mute_s: float = 0.0
    """Serve no more requests of this connection for this long (seconds)."""


class NoResponse(NamedTuple):
    """The client expects no response."""


class DelayedResponse(NamedTuple):
    """Serve the request again when something changes, at the latest at `deadline` (seconds)."""

    deadline: float
    pending: object = None
    """Progress to pass in with the request next time. None: no progress."""


class CloseConnection(NamedTuple):
    """Close this connection."""

    why: str


RequestOutcome = ImmediateResponse | NoResponse | DelayedResponse | CloseConnection
