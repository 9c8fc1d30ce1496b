"""A session as the router's cores see it: one client connection, from HELLO to close. The listener owns its bytes.

State that outlives the connection (which sequences were accepted) is in `daemon/ledger/client_sequences.py`.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from ...wire.frames import Ack, Code, Detail
from ..ledger.client_sequences import ClientState
from .flow_control import SessionCredit


class RouterSessionState(Enum):
    """State of a session."""

    GREETING = auto()
    """Only HELLO is allowed."""
    OPEN = auto()
    """Frames are accepted."""
    LEAVING = auto()
    """The client finished sending; open frames are still acked."""
    CLOSED = auto()
    """Nothing is read, and only a final REFUSED is written."""


TRANSITIONS: Final[dict[RouterSessionState, frozenset[RouterSessionState]]] = {
    RouterSessionState.GREETING: frozenset({RouterSessionState.OPEN, RouterSessionState.CLOSED}),
    RouterSessionState.OPEN: frozenset({RouterSessionState.LEAVING, RouterSessionState.CLOSED}),
    RouterSessionState.LEAVING: frozenset({RouterSessionState.CLOSED}),
    RouterSessionState.CLOSED: frozenset(),
}

FLUSHES_MAX: Final = 1_024
"""FLUSH messages of one session that may be unanswered."""


class PeerCredentials(NamedTuple):
    """The peer's credentials from the kernel. The pid is for logs only."""

    pid: int
    uid: int
    gid: int


class HoldReason(Enum):
    """Why a session is not read past its next frame."""

    TOPIC = auto()
    """The frame's topic is still unknown."""
    SPOOL = auto()
    """The spool is at its limit."""
    CREDIT = auto()
    """Too much of the session is unanswered."""


@dataclass(slots=True)
class HeldMessage:
    """A frame that was read and is not accepted yet. It stays in the listener's buffer and is offered again."""

    reason: HoldReason
    since: float
    topic: str


@dataclass(slots=True)
class OpenFlush:
    """A FLUSH: `remaining` of the frames before `position` are not answered yet."""

    seq: int
    position: int
    remaining: int


@dataclass(slots=True, eq=False)
class RouterSession:
    """One connection. `unanswered` maps each open sequence to its position in the order of this connection, by which
    FLUSH counts. `unflushed` maps each partition written since the last FLUSH to one past its last ordinal."""

    number: int
    peer: PeerCredentials
    credit: SessionCredit
    state: RouterSessionState = RouterSessionState.GREETING
    client: ClientState | None = None  # None: HELLO had no client id
    detail: Detail = Detail.SLICES
    hold: HeldMessage | None = None  # set and cleared by `FrameIntake`
    last_position: int = 0  # position of the last frame in `unanswered`
    unanswered: dict[int, int] = field(default_factory=dict[int, int])
    flushes: deque[OpenFlush] = field(default_factory=deque[OpenFlush])  # oldest first
    unflushed: dict[int, int] = field(default_factory=dict[int, int])
    welcome: bytes = b""
    """Sent before everything else. Acks are sent before the other messages, so that a FLUSH is answered after them."""
    acks: list[Ack] = field(default_factory=list[Ack])  # the listener empties it
    messages: list[bytes] = field(default_factory=list[bytes])  # the listener empties it
    messages_bytes: int = 0
    """Bytes of `messages`, which limits the responses that one round's requests can queue."""
    end_code: Code | None = None  # why the daemon closed the session

    def transition_to(self, state: RouterSessionState) -> None:
        """Change to `state`. A transition that the table does not allow is a bug."""
        assert state in TRANSITIONS[self.state], f"{self.state} does not lead to {state}"
        self.state = state

    def add_unanswered(self, seq: int) -> None:
        """`seq` awaits an answer on this connection."""
        self.last_position += 1
        self.unanswered[seq] = self.last_position

    @property
    def all_answered(self) -> bool:
        """Everything received is answered, and the listener has taken the answers."""
        return not (self.unanswered or self.flushes or self.welcome or self.acks or self.messages)
