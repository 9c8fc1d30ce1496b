"""One socket to a broker and the bytes on their way: opens it, greets with TLS where that is asked for, cuts answers out of what
comes, and writes what is handed over as far as the kernel takes it.

What is sent and what answers mean is not its job (`producer/network/connection.py`). It makes another socket each time it is opened.
"""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...runtime.loop import HANGUP, READ, WRITE, Loop
from ..protocol.framing import BytesLike, ResponseReader, SendBuffer, StreamError
from ..security.sasl import ANSWER_BYTES_MAX
from .addresses import Address
from .socket_options import ConnectionOptions, set_options
from .tls import TlsError
from .traffic import Traffic
from .transport import PlainTransport, TlsTransport, Transport, TransportError

_READ_ROUNDS_MAX: Final = 16
"""Receives per event: a broker that floods one connection must not starve the others."""
_TLS_ALERT: Final = b"\x15\x03"
"""How TLS refuses who does not speak it: type and version of the record."""


class Fault(NamedTuple):
    """Why a connection ends, in words without the place."""

    reason: str
    authentication_failed: bool = False
    """One side does not believe the other, or they have nothing in common."""


class ChannelEvents(NamedTuple):
    """What a channel tells, from the loop only. Any of these may close it."""

    connected: Callable[[], None]
    """TCP has reached the broker."""
    opened: Callable[[], None]
    """Requests may be written: at once, or when TLS is agreed on."""
    answered: Callable[[bytes], None]
    """An answer, without its length."""
    activity: Callable[[], None]
    """Something did, and is done with: bytes were written, or `fault` is set."""


class Channel:
    """See the module. `fault` once set says that nothing can be done any more but `close`."""

    def __init__(self, loop: Loop, options: ConnectionOptions, traffic: Traffic, events: ChannelEvents) -> None:
        self._loop: Final = loop
        self._options: Final = options
        self._clock: Final = options.system.now
        self._traffic: Final = traffic
        self._events: Final = events
        self.fault: Fault | None = None
        self._socket: socket.socket | None = None
        self._fd = -1
        self._transport: Transport | None = None
        """From the moment TCP has reached the broker."""
        self._handshaking: TlsTransport | None = None
        self._watched = 0
        self._host = ""
        self._pid = -1
        self._authenticated = False
        self._responded = False
        """It has once answered more than what comes before the first request."""
        self._reader = ResponseReader(options.limits.answer_bytes_max)
        self._out: Final = SendBuffer()

    @property
    def pending_bytes(self) -> int:
        """Bytes handed over that the kernel has not taken yet; what TLS adds does not count."""
        return self._out.pending_bytes

    def open(self, host: str, address: Address) -> None:
        """Begin to connect. `host`: the name the broker goes by.

        Raises:
            TlsError: our own files for TLS are no good; nobody was called.
            OSError: it failed at once.
        """
        if self._options.security.tls is not None:
            _ = self._options.security.tls.current()
        self._host = host
        self._pid = os.getpid()
        self._authenticated = False
        # Nobody who is not known yet makes us hold much.
        self._reader = ResponseReader(min(self._options.limits.answer_bytes_max, ANSWER_BYTES_MAX))
        self._socket = self._options.system.open(address.family)
        self._socket.setblocking(False)
        set_options(self._socket, self._options.sockets)
        code = self._socket.connect_ex(address.sockaddr)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        self._watch(self._socket.fileno())

    def mark_authenticated(self) -> None:
        """The broker is who it should be, and knows who we are: answers may be long, and whatever ends the connection from
        now on is no want of belief."""
        self._authenticated = True
        self._reader.answer_bytes_max = self._options.limits.answer_bytes_max

    def queue(self, buffers: Sequence[BytesLike]) -> None:
        """Write these after what waits already. They must not change until they are written, or the channel is closed."""
        idle = not self._out.pending_bytes
        self._out.append(buffers)
        if idle:
            self._flush()

    def close(self) -> None:
        """Let go of the socket and of all buffers. Fine where none is open."""
        if self._socket is not None:
            self._loop.remove(self._fd)
            if self._transport is None:
                self._socket.close()
            else:
                self._transport.close(says_goodbye=self._closes_cleanly)
            self._socket = self._transport = self._handshaking = None
            self._fd = -1
            self._traffic.closed(self._clock())
        self._out.clear()
        self.fault = None

    @property
    def _closes_cleanly(self) -> bool:
        """The end is worth a word. After a reset nobody would hear it (SOC-1), and in a forked child it would be said in the
        middle of what the parent says."""
        whole = self.fault is None and not self._out.pending_bytes
        return whole and not self._options.sockets.reset_on_close and os.getpid() == self._pid

    # --- events of the socket ----------------------------------------------------------------------------------------

    def _on_socket_event(self, events: int) -> None:
        transport = self._transport
        if transport is None:
            self._connected()
        elif self._handshaking is not None:
            self._continue_handshake(self._handshaking)
        else:
            crossed = transport.needs_any_event
            if events & (READ | HANGUP) or crossed:
                self._receive(transport)
            if (events & WRITE or crossed) and self._transport is transport:
                self._flush()
        if self._socket is not None:
            self._events.activity()

    def _connected(self) -> None:
        """The first event of a connecting socket: it is connected, refused, or meant another socket of that number."""
        opened = self._socket
        if opened is None:
            return
        code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            self.fault = Fault(os.strerror(code))
            return
        try:
            _ = opened.getpeername()
        except OSError:
            return
        self._traffic.opened(self._clock())
        self._events.connected()
        if self._options.security.tls is None:
            self._transport = PlainTransport(opened)
            self._events.opened()
        else:
            self._begin_tls(opened)

    def _begin_tls(self, opened: socket.socket) -> None:
        tls = self._options.security.tls
        assert tls is not None
        # The object changes under the descriptor, and closes it where that fails.
        self._loop.remove(self._fd)
        try:
            shows_certificate = tls.rules.keystore is not None
            transport = TlsTransport(opened, tls.current(), self._host, shows_certificate=shows_certificate)
        except (TlsError, TransportError, OSError) as error:
            self.fault = self._fault_of(error)
            return
        self._transport = self._handshaking = transport
        self._watch(self._fd)
        self._continue_handshake(transport)

    def _continue_handshake(self, transport: TlsTransport) -> None:
        try:
            done = transport.handshake()
        except (TransportError, OSError) as error:
            self.fault = self._fault_of(error)
            return
        if done:
            self._handshaking = None
            self._events.opened()
        else:
            self._watch_for(transport)

    def _receive(self, transport: Transport) -> None:
        rounds = 0
        while rounds < _READ_ROUNDS_MAX or transport.has_buffered_data():
            rounds += 1
            space = self._reader.space()
            try:
                count = transport.read(space)
                self._traffic.read(count, self._clock())
                answers = self._reader.received(count)
            except BlockingIOError:
                break
            except StreamError as error:
                self.fault = self._framing_fault(error, bytes(space[:2]))
                return
            except (TransportError, OSError) as error:
                self.fault = self._fault_of(error)
                return
            if count == 0:
                self.fault = self._closed_by_peer()
                return
            self._responded = self._responded or self._authenticated
            for answer in answers:
                self._events.answered(answer)
                if self._transport is not transport or self.fault is not None:
                    return
            if count < len(space) and not transport.has_buffered_data():
                break
        self._watch_for(transport)

    def _flush(self) -> None:
        """Write what the kernel takes, and watch for more room as long as something is left. A fault is only noted here:
        a caller of `queue` has yet to note that it sent."""
        transport = self._transport
        if transport is None or self.fault is not None:
            return
        try:
            written = transport.write(self._out)
        except (TransportError, OSError) as error:
            self.fault = self._fault_of(error)
            return
        if written:
            self._traffic.wrote(written, self._clock())
        self._watch_for(transport)

    def _watch(self, fd: int) -> None:
        self._fd = fd
        self._watched = READ | WRITE
        self._loop.add(fd, self._watched, self._on_socket_event)

    def _watch_for(self, transport: Transport) -> None:
        wanted = transport.events(pending=self._out.pending_bytes > 0)
        if wanted != self._watched:
            self._watched = wanted
            self._loop.modify(self._fd, wanted)

    # --- words -------------------------------------------------------------------------------------------------------

    def _fault_of(self, error: Exception) -> Fault:
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, TransportError):
            return Fault(text, authentication_failed=error.authentication_failed and not self._authenticated)
        hint = self._hint() if isinstance(error, ConnectionError) else ""
        return Fault(f"{text}{hint}", authentication_failed=isinstance(error, TlsError))

    def _closed_by_peer(self) -> Fault:
        return Fault(f"the broker closed the connection{self._hint()}")

    def _hint(self) -> str:
        """What it may mean that a broker ends a connection on which it has said nothing."""
        security = self._options.security
        if not self._authenticated and security.tls is None:
            return " before it answered (does this listener want TLS?)"
        if self._authenticated and not self._responded and security.sasl is None:
            return " at the first request (does this listener want SASL?)"
        return ""

    def _framing_fault(self, error: StreamError, first: bytes) -> Fault:
        """What came cannot be cut into answers; `first`: how it begins."""
        if not self._authenticated and first == _TLS_ALERT:
            return Fault("this listener speaks TLS (security.protocol = SSL or SASL_SSL)", authentication_failed=True)
        return Fault(str(error))
