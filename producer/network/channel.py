"""One socket to a broker: opens it, does the TLS handshake if configured, splits received bytes into responses, and
writes queued bytes as the kernel accepts them.

The contents of requests and responses are not its job (`connection.py`). Each `open` creates a new socket.
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
"""First bytes of the TLS alert that a TLS listener sends to a plaintext client: type and version of the record."""


class Fault(NamedTuple):
    """Why a connection ends. `reason` is a text without host and port."""

    reason: str
    authentication_failed: bool = False
    """One side did not authenticate the other, or they have no TLS version or cipher suite in common."""


class ChannelEvents(NamedTuple):
    """Callbacks of a channel, called from the loop only. Each of them may close the channel."""

    connected: Callable[[], None]
    """The TCP connection is established."""
    opened: Callable[[], None]
    """Requests may be written: after `connected`, or after the TLS handshake."""
    answered: Callable[[bytes], None]
    """A response was received; passed without its length field."""
    activity: Callable[[], None]
    """An event of the socket was processed: bytes may have been written, or `fault` is set."""


class Channel:
    """See the module docstring. Once `fault` is set, only `close` may be called."""

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
        """Set once the TCP connection is established."""
        self._handshaking: TlsTransport | None = None
        self._watched = 0
        self._host = ""
        self._pid = -1
        self._authenticated = False
        self._responded = False
        """The broker has sent something after authentication, so it has answered a request."""
        self._reader = ResponseReader(options.limits.answer_bytes_max)
        self._out: Final = SendBuffer()

    @property
    def pending_bytes(self) -> int:
        """Queued bytes that the kernel has not taken yet, without TLS overhead."""
        return self._out.pending_bytes

    def open(self, host: str, address: Address) -> None:
        """Start to connect. `host`: the broker's name, for its certificate.

        Raises:
            TlsError: our own TLS files are unusable; no connection was attempted.
            OSError: connecting failed immediately.
        """
        if self._options.security.tls is not None:
            _ = self._options.security.tls.current()
        self._host = host
        self._pid = os.getpid()
        self._authenticated = False
        # An unauthenticated peer must not make us buffer much.
        self._reader = ResponseReader(min(self._options.limits.answer_bytes_max, ANSWER_BYTES_MAX))
        self._socket = self._options.system.open(address.family)
        self._socket.setblocking(False)
        set_options(self._socket, self._options.sockets)
        code = self._socket.connect_ex(address.sockaddr)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        self._watch(self._socket.fileno())

    def mark_authenticated(self) -> None:
        """Both sides are authenticated: allow long responses, and no longer report faults as authentication
        failures."""
        self._authenticated = True
        self._reader.answer_bytes_max = self._options.limits.answer_bytes_max

    def queue(self, buffers: Sequence[BytesLike]) -> None:
        """Queue these buffers for writing. They must not change until they are written or the channel is closed."""
        idle = not self._out.pending_bytes
        self._out.append(buffers)
        if idle:
            self._flush()

    def close(self) -> None:
        """Close the socket and release all buffers. No effect if no socket is open."""
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
        """Whether to send a TLS close alert. Not after a fault or with bytes pending; not with `reset_on_close`,
        because the reset would discard it (SOC-1); not in a forked child, because it would corrupt the parent's
        stream."""
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
        """The first event of a connecting socket: it is connected, it failed, or the event belongs to an earlier socket
        with the same descriptor."""
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
        # Wrapping replaces the socket object of this descriptor, and closes the descriptor if it fails.
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
        """Write what the kernel accepts, and watch for writability while bytes are left. A fault is only stored: the
        caller of `queue` has not finished its own bookkeeping yet."""
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

    # --- fault texts -------------------------------------------------------------------------------------------------

    def _fault_of(self, error: Exception) -> Fault:
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, TransportError):
            return Fault(text, authentication_failed=error.authentication_failed and not self._authenticated)
        hint = self._hint() if isinstance(error, ConnectionError) else ""
        return Fault(f"{text}{hint}", authentication_failed=isinstance(error, TlsError))

    def _closed_by_peer(self) -> Fault:
        return Fault(f"the broker closed the connection{self._hint()}")

    def _hint(self) -> str:
        """The likely cause when a broker closes a connection without having answered."""
        security = self._options.security
        if not self._authenticated and security.tls is None:
            return " before it answered (does this listener want TLS?)"
        if self._authenticated and not self._responded and security.sasl is None:
            return " at the first request (does this listener want SASL?)"
        return ""

    def _framing_fault(self, error: StreamError, first: bytes) -> Fault:
        """The fault for received bytes that are not a response. `first`: their first bytes."""
        if not self._authenticated and first == _TLS_ALERT:
            return Fault("this listener speaks TLS (security.protocol = SSL or SASL_SSL)", authentication_failed=True)
        return Fault(str(error))
