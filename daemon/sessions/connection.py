"""One client's socket and its buffers: input received and not yet processed, output queued and not yet written.

Read buffers come from a pool and return to it when they are empty. A small remainder is copied out, so that many slow
clients use only as much memory as they sent.
"""

import socket
from collections.abc import Callable
from typing import Final

from ...runtime.loop import HANGUP, READ, WRITE, Loop
from ...wire.frames import LENGTH
from .session import RouterSession

READ_BYTES: Final = 512 << 10
_KEEP_BUFFER_FROM: Final = READ_BYTES // 16
_POOL_MAX: Final = 16


class ReadBufferPool:
    """Buffers of two sizes: for normal reads, and for one message of the largest size."""

    def __init__(self, message_bytes_max: int) -> None:
        self._large_bytes = max(message_bytes_max, READ_BYTES)
        self._free: dict[int, list[bytearray]] = {READ_BYTES: [], self._large_bytes: []}

    def take(self, nbytes: int) -> bytearray:
        """A buffer of at least `nbytes`."""
        size = READ_BYTES if nbytes <= READ_BYTES else self._large_bytes
        assert nbytes <= size, "a message over the limit was let through"
        free = self._free[size]
        return free.pop() if free else bytearray(size)

    def give(self, buffer: bytearray) -> None:
        free = self._free[len(buffer)]
        if len(free) < _POOL_MAX:
            free.append(buffer)


class ClientConnection:
    """One accepted socket. It is read unless it is paused, its output is too long, or its input has ended."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        session: RouterSession,
        on_event: "Callable[[ClientConnection, int], None]",
        pool: ReadBufferPool,
        *,
        now: float,
    ) -> None:
        self.session = session
        self.opened_at = now
        self.buffer: bytearray | None = None  # from the pool, only while in use
        self.start = 0  # unprocessed input is `buffer[start:end]`
        self.end = 0
        self.partial_since: float | None = None  # start of a partial message's time limit; None: no input is left
        self.paused = False  # a message is held, until `resume`
        self.paused_for_output = False  # until the client has read enough output
        self.input_ended = False  # never cleared
        self.peer_gone = False  # both directions are closed
        self.last_write = now  # last progress of the output
        self.unsent_bytes = 0  # bytes in `_out`
        self._loop = loop
        self._sock = sock
        self._pool = pool
        self._partial = b""  # a small remainder, while `buffer` is None
        self._out: list[bytes | memoryview] = []
        self._paused_at: float | None = None  # start of a pause, which time limits exclude
        self._on_event = on_event
        self._interest = READ  # events the loop watches for
        self._watched = True
        loop.add(sock.fileno(), READ, self._event)

    def _event(self, events: int) -> None:
        self._on_event(self, events)

    @property
    def reading(self) -> bool:
        return not (self.paused or self.paused_for_output or self.input_ended)

    # --- input -------------------------------------------------------------------------------------------------------

    def read(self, now: float) -> int:
        """Read once, as much as fits, and return the number of bytes. Sets `input_ended` at end of file."""
        buffer = self._buffer_with_room()
        with memoryview(buffer) as view:
            try:
                count = self._sock.recv_into(view[self.end :])
            except BlockingIOError:
                return 0
            except OSError:
                # A reset: the client closed the socket with unread output.
                self.peer_gone = True
                count = 0
        if not count:
            self.input_ended = True
            self._set_interest()
            return 0
        self.end += count
        if self.partial_since is None:
            self.partial_since = now
        return count

    def _buffer_with_room(self) -> bytearray:
        """The buffer, with space after `end` for the rest of the message that starts at `start`."""
        self.restore_buffer()
        buffer = self.buffer
        if buffer is None:
            buffer = self.buffer = self._pool.take(READ_BYTES)
            self.start = self.end = 0
            return buffer
        held = self.end - self.start
        needed = READ_BYTES
        if held >= LENGTH.size:
            (size,) = LENGTH.unpack_from(buffer, self.start)
            needed = LENGTH.size + size
        if needed > len(buffer):
            larger = self._pool.take(needed)
            larger[:held] = memoryview(buffer)[self.start : self.end]
            self._pool.give(buffer)
            self.buffer = buffer = larger
            self.start, self.end = 0, held
        elif self.start + needed > len(buffer) or self.end == len(buffer):
            buffer[:held] = buffer[self.start : self.end]
            self.start, self.end = 0, held
        return buffer

    def restore_buffer(self) -> None:
        """Copy a remainder that was stored separately back into a buffer."""
        if self._partial:
            self.buffer = self._pool.take(max(READ_BYTES, len(self._partial)))
            self.start, self.end = 0, len(self._partial)
            self.buffer[: self.end] = self._partial
            self._partial = b""

    def advance(self, after: int, now: float) -> None:
        """Everything before `after` is processed."""
        if after != self.start:
            self.partial_since = now
        self.start = after
        rest = self.end - after
        if not rest:
            self.partial_since = None
        if rest < _KEEP_BUFFER_FROM:
            self._give_buffer(keep=rest)

    def _give_buffer(self, *, keep: int) -> None:
        if self.buffer is not None:
            self._partial = bytes(self.buffer[self.start : self.start + keep])
            self._pool.give(self.buffer)
            self.buffer = None
            self.start = self.end = 0

    def pause_at(self, at: int, now: float) -> None:
        """Keep the message that starts at `at` and stop reading until `resume`."""
        self.start = at
        self.paused = True
        self._note_paused(now)

    def resume(self, now: float) -> None:
        """Read again. The pause does not count towards the time limit of a partial message."""
        self.paused = False
        self.restore_buffer()
        self._note_resumed(now)

    def pause_for_output(self, now: float) -> None:
        """Stop reading until the client reads its output."""
        if not self.paused_for_output:
            self.paused_for_output = True
            self._note_paused(now)

    def resume_after_output(self, now: float) -> None:
        self.paused_for_output = False
        self._note_resumed(now)

    def _note_paused(self, now: float) -> None:
        if self._paused_at is None:
            self._paused_at = now
        self._set_interest()

    def _note_resumed(self, now: float) -> None:
        if not self.reading and not self.input_ended:
            return
        if self._paused_at is not None and self.partial_since is not None:
            self.partial_since += now - self._paused_at
        self._paused_at = None
        self._set_interest()

    def end_input(self) -> None:
        """Stop reading permanently, and drop input that was read and not processed."""
        self.input_ended = True
        self.paused = False
        self.partial_since = None
        self._give_buffer(keep=0)
        self._partial = b""
        self._set_interest()

    # --- output ------------------------------------------------------------------------------------------------------

    def queue(self, message: bytes, now: float) -> None:
        if not self._out:
            self.last_write = now
        self._out.append(message)
        self.unsent_bytes += len(message)

    def write(self, now: float) -> bool:
        """Write as much as the socket accepts. Returns False when the peer is gone."""
        if not self._out:
            return True
        pending = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        try:
            sent = self._sock.send(pending)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent:
            self.last_write = now
        self.unsent_bytes -= sent
        self._out = [memoryview(pending)[sent:]] if self.unsent_bytes else []
        self._set_interest()
        return True

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _set_interest(self) -> None:
        wanted = (READ if self.reading else 0) | (WRITE if self._out else 0)
        if not self._watched:
            if not self.peer_gone or not self.reading:
                return
            self._loop.add(self._sock.fileno(), wanted, self._event)
            self._watched = True
        elif wanted != self._interest:
            self._loop.modify(self._sock.fileno(), wanted)
        self._interest = wanted

    def peer_closed(self) -> None:
        """The peer closed while a frame is held: stop watching the socket, because the kernel would report the hang-up
        continuously, and read the remaining input once the frame is accepted."""
        self.peer_gone = True
        if self._watched:
            self._loop.remove(self._sock.fileno())
            self._watched = False

    def close(self) -> None:
        """Close the socket and release the buffers."""
        if self._watched:
            self._loop.remove(self._sock.fileno())
            self._watched = False
        self._give_buffer(keep=0)
        self._sock.close()


def is_hung_up(events: int) -> bool:
    """Both directions are closed."""
    return bool(events & HANGUP)
