"""One shard process as the bus sees it: its state, its pidfd, and the hop numbers in both directions."""

import select
import signal
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ...wire.message_codec import Envelope
from ...wire.messages import RouterMessage


class ShardPeerState(Enum):
    """States of a shard process, from its first message to its exit."""

    CONNECTED = "connected"
    READY = "ready"
    REFUSED = "refused"
    """Not accepted: ordered to exit, never reported to the leases."""
    DYING = "dying"
    """Killed, and not reaped yet."""
    JOURNAL_LOCKED = "locked"
    """Reaped, but its journal is still locked: a fault; its leases are not granted meanwhile."""


@dataclass(slots=True, eq=False)
class ShardPeer:
    """One shard process and the hop numbers in both directions."""

    identity: bytes
    shard_id: int
    shard_start: int
    pid: int
    pidfd: int
    last_received_at: float
    state: ShardPeerState = ShardPeerState.CONNECTED
    router_start: int = 0  # in its last message; 0 until it has received WELCOME
    processed: int = -1  # sequence of its last message that was applied
    acked: int = -1  # our last sequence that it acked
    next_seq: int = 0  # sequence of our next message
    last_sent_at: float = 0.0
    journal: Path | None = None  # set by its second HELLO
    kill_at: float | None = None  # when to kill it, if it has not exited by then
    told_to_stop: bool = False
    """A STOP was sent: failing to reach this shard afterwards is not a fault."""
    queue: list[RouterMessage] = field(default_factory=list)  # WELCOME or STOP, for the next `Bus.flush`

    def received(self, envelope: Envelope, start: int, now: float) -> str | None:
        """Check a message's start and hop numbers (HOP-1) and count it. `start`: the router's start number. Returns the
        protocol violation, or None."""
        if envelope.shard_start != self.shard_start:
            return f"a message of shard start {envelope.shard_start}, not {self.shard_start}"
        if envelope.router_start not in {self.router_start, start}:
            return f"a message for router start {envelope.router_start}"
        if envelope.seq != self.processed + 1:
            return f"message {envelope.seq} follows {self.processed}"
        if not self.acked <= envelope.ack < self.next_seq:
            return f"acknowledgement {envelope.ack} outside {self.acked} to {self.next_seq - 1}"
        self.router_start, self.acked, self.last_received_at = envelope.router_start, envelope.ack, now
        self.processed = envelope.seq
        return None

    def signal_kill(self) -> None:
        """Send SIGKILL to the process, if it is still there."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return  # its pidfd is readable, or will be at once

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))
