"""A session as the router's cores see it: one connection of one client, from greeting to close. Its bytes are the listener's.

What outlives the connection (which sequences were taken) is in `daemon/ledger/client_sequences.py`.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from ...wire.frames import Ack, Code, Detail
from ..ledger.client_sequences import ClientState
from .flow_control import SessionCredit


class RouterSessionState(Enum):
    """How far a session is."""

    GREETING = auto()
    """Nothing but HELLO may come."""
    OPEN = auto()
    """Frames are taken."""
    LEAVING = auto()
    """The client said it is done; what is open is answered still."""
    CLOSED = auto()
    """Nothing is read, and nothing but a last REFUSED is written."""


TRANSITIONS: Final[dict[RouterSessionState, frozenset[RouterSessionState]]] = {
    RouterSessionState.GREETING: frozenset({RouterSessionState.OPEN, RouterSessionState.CLOSED}),
    RouterSessionState.OPEN: frozenset({RouterSessionState.LEAVING, RouterSessionState.CLOSED}),
    RouterSessionState.LEAVING: frozenset({RouterSessionState.CLOSED}),
    RouterSessionState.CLOSED: frozenset(),
}

FLUSHES_MAX: Final = 1_024
"""FLUSH messages of one session that may be unanswered."""


class PeerCredentials(NamedTuple):
    """Who is on the other end, as the kernel says. The pid is for logs only."""

    pid: int
    uid: int
    gid: int


class HoldReason(Enum):
    """Why a session is not read past its next frame."""

    TOPIC = auto()
    """Nothing is known of the frame's topic yet."""
    SPOOL = auto()
    """The spool is at its limit."""
    CREDIT = auto()
    """Too much of the session is unanswered."""


@dataclass(slots=True)
class HeldMessage:
    """A frame that was read and is not taken yet. It stays in the listener's buffer and is offered again."""

    reason: HoldReason
    since: float
    topic: str


@dataclass(slots=True)
class OpenFlush:
    """A FLUSH: `remaining` of the frames numbered below `place` are not answered yet."""

    seq: int
    position: int
    remaining: int


@dataclass(slots=True, eq=False)
class RouterSession:
    """One connection. `unanswered` gives each open sequence its place in the order of this connection, which is what FLUSH
    counts by; `unflushed` holds the ordinal behind the last record for each partition written since the last FLUSH."""

    number: int
    peer: PeerCredentials
    credit: SessionCredit
    state: RouterSessionState = RouterSessionState.GREETING
    client: ClientState | None = None
    detail: Detail = Detail.SLICES
    hold: HeldMessage | None = None
    last_position: int = 0
    unanswered: dict[int, int] = field(default_factory=dict[int, int])
    flushes: deque[OpenFlush] = field(default_factory=deque[OpenFlush])
    unflushed: dict[int, int] = field(default_factory=dict[int, int])
    welcome: bytes = b""
    """Goes out before everything else; acks go before the other messages, so that a FLUSH is answered behind them."""
    acks: list[Ack] = field(default_factory=list[Ack])
    messages: list[bytes] = field(default_factory=list[bytes])
    messages_bytes: int = 0
    """Of `messages`, so that one round's questions cannot pile up answers without a limit."""
    end_code: Code | None = None

    def transition_to(self, state: RouterSessionState) -> None:
        """Go on to `state`; anything the table does not have is a fault of ours."""
        assert state in TRANSITIONS[self.state], f"{self.state} does not lead to {state}"
        self.state = state

    def add_unanswered(self, seq: int) -> None:
        """`seq` is owed an answer on this connection."""
        self.last_position += 1
        self.unanswered[seq] = self.last_position

    @property
    def all_answered(self) -> bool:
        """All that came was answered, and the answers were handed to the listener."""
        return not (self.unanswered or self.flushes or self.welcome or self.acks or self.messages)
