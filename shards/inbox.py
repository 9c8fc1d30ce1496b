"""The shard's end of the bus: one DEALER socket, whose hop sequences are checked in both directions (HOP-1).

A violation of the sequences breaks the connection: `broken` is called once and the process ends. Other modules
interpret the messages.
"""

import errno
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import zmq

from ..runtime.loop import Loop
from ..wire.errors import FrameError
from ..wire.message_codec import MESSAGE_BYTES_MAX, Envelope, decode, encode
from ..wire.messages import Ping, RouterMessage, ShardMessage, ShardWelcome

PING_S: Final = 0.5
"""A message is sent at least this often; the router tolerates `shard_silence_ms` without one."""
_MESSAGES_PER_ROUND: Final = 64
_QUEUE_MAX: Final = 100_000
_LAST_WORDS_MS: Final = 1_000


class RouterConnection:
    """Receives the router's messages and sends ours. Journal slots passed to `send` return through `freed` once the
    router has written the message they belong to (JRN-4)."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        *,
        seat: int,
        shard_start: int,
        received: Callable[[RouterMessage], None],
        freed: Callable[[Sequence[int]], None],
        broken: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._shard_start = shard_start
        self._received = received
        self._freed = freed
        self._broken = broken
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"shard-{seat}-{shard_start}".encode())
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.SNDHWM, _QUEUE_MAX)
        self._socket.setsockopt(zmq.RCVHWM, _QUEUE_MAX)
        self._socket.setsockopt(zmq.LINGER, _LAST_WORDS_MS)
        self._socket.connect(f"ipc://{path}")
        self.router_start = 0
        """The router's start number; 0 until WELCOME."""
        self._next_seq = 0
        self._processed = -1
        self._acked = -1
        self._last_sent_at = 0.0
        self._waiting: deque[tuple[int, Sequence[int]]] = deque()
        loop.add_zmq(self._socket, self._read)

    @property
    def all_acknowledged(self) -> bool:
        """The router has processed every message sent."""
        return self._acked == self._next_seq - 1

    def send(self, message: ShardMessage, slots: Sequence[int] = ()) -> None:
        """Send a message. `slots` are freed once the router has acked it."""
        envelope = Envelope(self.router_start, self._shard_start, self._next_seq, self._processed)
        try:
            self._socket.send(encode(envelope, message), zmq.NOBLOCK)
        except zmq.Again:
            self._broken("the router does not take messages any more")
            return
        if slots:
            self._waiting.append((self._next_seq, slots))
        self._next_seq += 1
        self._last_sent_at = -1.0

    def tick(self, now: float) -> float:
        """Send a Ping when one is due. Returns when to call it again."""
        if self._last_sent_at < 0.0:
            self._last_sent_at = now
        elif now >= self._last_sent_at + PING_S:
            self.send(Ping())
            self._last_sent_at = now
        return self._last_sent_at + PING_S

    def close(self) -> None:
        """Close the connection; queued messages are still sent, for a second at most."""
        self._loop.remove_zmq(self._socket)
        self._socket.close()
        self._context.term()

    def _read(self) -> None:
        for _ in range(_MESSAGES_PER_ROUND):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                if error.errno == errno.EINTR:
                    return
                raise
            fault = self._take(frame)
            if fault is not None:
                self._broken(fault)
                return

    def _take(self, frame: bytes) -> str | None:
        """Process one message. Returns the protocol violation, or None."""
        try:
            envelope, message = decode(frame)
        except FrameError as error:
            return f"the router said something that is no message: {error}"
        if envelope.shard_start != self._shard_start:
            return f"a message for shard start {envelope.shard_start}, this is {self._shard_start}"
        if self.router_start == 0 and isinstance(message, ShardWelcome):
            self.router_start = envelope.router_start
        if envelope.router_start != self.router_start:
            return f"a message of router start {envelope.router_start}, welcomed by {self.router_start}"
        if envelope.seq != self._processed + 1:
            return f"message {envelope.seq} follows {self._processed}"
        if not self._acked <= envelope.ack < self._next_seq:
            return f"acknowledgement {envelope.ack} outside {self._acked} to {self._next_seq - 1}"
        self._acked = envelope.ack
        self._free()
        if not isinstance(message, RouterMessage):
            return f"the router said {type(message).__name__}, which is a shard's word"
        self._received(message)
        self._processed = envelope.seq
        return None

    def _free(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._acked:
            self._freed(self._waiting.popleft()[1])
