"""Sockets to brokers: moves the bytes of one `ConnectionCore`. One class for the router's control connections and for the
shards' Produce connections, which differ in their options only (`sockets.py`).

Everything runs on the loop's thread; only names are resolved elsewhere (`resolver.py`).
"""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from ..runtime.loop import GONE, READ, WRITE, Loop
from .core.addresses import Address, AddressTurns
from .core.connections import ConnectionCore, Due, State
from .core.handshake import FIRST_VERSION, Agreed, AskAgain, ask_versions, read_versions
from .core.messages import Answer, KafkaRequest, KafkaResponse, decode_answer
from .core.node_choice import Standing
from .core.streams import AnswerReader, Buffer, Outbox, StreamError, correlation_id_of
from .core.throttles import client_waits
from .core.traffic import UNCOUNTED, Traffic
from .resolver import Resolver
from .sockets import SOFTWARE_VERSION, ConnectionOptions, set_options

TagT = TypeVar("TagT")

ANY_VERSION: Final = 1 << 15
_READ_ROUNDS_MAX: Final = 16
"""Receives per event: a broker that floods one connection must not starve the others."""


class ConnectionOwner(Protocol[TagT]):
    """Who is told. Any method may send on, disconnect or close the connection it is told about."""

    def connection_ready(self, connection: "Connection[TagT]") -> None:
        """Requests may be sent; `incarnation` has a new value."""

    def connection_answered(self, connection: "Connection[TagT]", tag: TagT, answer: Answer) -> None:
        """The answer to the request sent with `tag`: a decoded response, or for `send_raw` the bytes after the
        correlation id (empty: a request that expects none is written). The transport holds none of its buffers any more."""

    def connection_lost(self, connection: "Connection[TagT]", tags: list[TagT], reason: str) -> None:
        """The connection ended, or never came to be. `tags`, oldest first, stay without answer: they may have been
        written or not. The transport holds no buffer any more. `connect` tries again after the backoff."""


class Connection(Generic[TagT]):
    """A connection to one broker, made again as often as its owner asks.

    Life: `connect` says that it is wanted; `tick` and `next_deadline` are called in every round of the loop; requests go
    out in order and are answered in order; `disconnect` drops the socket, `close` ends the object. `rng` draws a number in
    [0, 1) at every call, for the jitter of backoffs.
    """

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        host: str,
        port: int,
        *,
        options: ConnectionOptions,
        owner: ConnectionOwner[TagT],
        rng: Callable[[], float],
        turns: AddressTurns | None = None,
        traffic: Traffic = UNCOUNTED,
    ) -> None:
        """`turns`: of an earlier connection to the same name and port, whose addresses go on being tried in turn."""
        self.host = host
        self.port = port
        self._loop = loop
        self._resolver = resolver
        self._options = options
        self._clock = options.system.now
        self._owner = owner
        self._rng = rng
        self._traffic = traffic
        self._core: ConnectionCore[TagT] = ConnectionCore(options.limits)
        self._socket: socket.socket | None = None
        self._reader = AnswerReader(options.limits.answer_bytes_max)
        self._out = Outbox()
        self._events = 0
        self._turns = AddressTurns() if turns is None else turns
        self._lookup: int | None = None
        self._hello_version = FIRST_VERSION
        self._hello_id = 0
        self._broken: str | None = None
        # Requests sent as bytes are not here.
        self._requests: dict[int, type[KafkaResponse]] = {}

    # --- what the owner may ask --------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._core.state

    @property
    def last_error(self) -> str:
        """Why the last connection ended; empty once the next one is ready."""
        return self._core.last_error

    @property
    def ready(self) -> bool:
        return self._core.state is State.READY and self._broken is None

    @property
    def incarnation(self) -> int:
        """Rises each time the connection gets ready; 0 before the first time."""
        return self._core.incarnation

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return self._core.in_flight

    @property
    def pending_bytes(self) -> int:
        """Bytes handed over that the kernel has not taken yet."""
        return self._out.pending_bytes

    @property
    def round_trip_us(self) -> int:
        """Time from sending a request to its answer, smoothed over about eight; 0 before the first."""
        return self._core.round_trip_us

    @property
    def throttled_until(self) -> float:
        """Nothing is sent before this moment (KIP-219); in the past: not throttled."""
        return self._core.throttled_until

    def standing(self, now: float) -> Standing:
        """How it stands for who chooses among several nodes."""
        return Standing() if self._broken is not None else self._core.standing(now)

    def has_room(self, now: float) -> bool:
        """A request may be sent now."""
        return self._broken is None and self._core.room(now)

    def version_of(self, api_key: int, least: int, greatest: int) -> int | None:
        """The greatest version of an API that both sides take, within `least` to `greatest`; None: there is none."""
        offered = self._core.versions.get(api_key)
        if offered is None:
            return None
        chosen = min(greatest, offered[1])
        return chosen if chosen >= max(least, offered[0]) else None

    def feature(self, name: str) -> int:
        """Level of a feature that the cluster has turned on, as the broker told on this connection; 0: not told, or off."""
        return self._core.features.get(name, 0)

    # --- what the owner may do ---------------------------------------------------------------------------------------

    def connect(self) -> None:
        """The connection is wanted: the next `tick` begins it, or the first one after the backoff. Costs nothing where it
        is on its way or ready."""
        self._core.want()

    def move_to(self, host: str, port: int) -> None:
        """The node is to be found elsewhere from now on. An open connection to the old address is dropped."""
        if (host, port) == (self.host, self.port):
            return
        self.host, self.port = host, port
        if self._core.state not in (State.DISCONNECTED, State.WAITING, State.CLOSED):
            self._end(f"the node moved to {host}:{port}")
        self._core.moved()
        self._turns = AddressTurns()

    def next_correlation_id(self) -> int:
        """Reserve the id for a request of `send_raw`. Ids go out in the order they were reserved."""
        return self._core.next_correlation_id()

    def send_raw(
        self,
        buffers: Sequence[Buffer],
        size: int,
        correlation_id: int,
        tag: TagT,
        *,
        expects_answer: bool = True,
        now: float | None = None,
    ) -> None:
        """Send a request framed by the caller (`size` bytes, length field included) in one gather write.

        Call only with `has_room`. The buffers must not change until the tag is answered or lost.
        """
        now = self._clock() if now is None else now
        self._core.sent(correlation_id, tag, size, now, expects_answer=expects_answer)
        self._queue(buffers, size, now)

    def send(
        self, request: KafkaRequest, tag: TagT, *, least: int = 0, greatest: int = ANY_VERSION, now: float | None = None
    ) -> int | None:
        """Send a request of `kafka.protocol` in the greatest common version within `least` to `greatest`.

        Call only with `has_room`. Returns the version; None: the broker takes none of ours, and nothing was sent.
        """
        assert self._core.state is State.READY, self._core.state
        known = min(greatest, request.max_version)
        chosen = self.version_of(request.API_KEY, max(least, request.valid_versions[0]), known)
        if chosen is None:
            return None
        correlation_id = self._core.next_correlation_id()
        request.API_VERSION = chosen
        request.with_header(correlation_id=correlation_id, client_id=self._options.client_id)
        framed = request.encode(header=True, framed=True)
        if request.expect_response():
            self._requests[correlation_id] = request.header.get_response_class()
        at = self._clock() if now is None else now
        self._core.sent(correlation_id, tag, len(framed), at, expects_answer=request.expect_response())
        self._queue([framed], len(framed), at)
        return chosen

    def throttle(self, api_key: int, version: int, throttle_ms: int, now: float) -> None:
        """An answer that came as bytes carried this throttle time."""
        self._traffic.answered(throttle_ms, now)
        if client_waits(api_key, version):
            self._core.throttle(throttle_ms, now)

    def disconnect(self, reason: str) -> None:
        """Drop the socket. The owner is told, as of any other end."""
        if self._core.state in (State.RESOLVING, State.CONNECTING, State.CHECKING_VERSIONS, State.READY):
            self._end(reason)

    def close(self) -> list[TagT]:
        """End for good. Returns what was in flight, oldest first; the owner is not told again."""
        self._drop_socket()
        return self._core.close()

    def tick(self, now: float) -> None:
        """Do what is due. The owner is told from here and from the loop's events only, never from inside a call of its own."""
        if self._broken is not None:
            self._end(self._broken)
        self._settle_silent(now)
        while (due := self._core.due(now, self._rng())) is not None:
            self._act(due, now)

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called (CLOCK_MONOTONIC seconds; in the past: at once); None: not before some event."""
        if self._broken is not None or self._core.has_written_silent(self._out.pending_bytes):
            return 0.0
        return self._core.next_deadline()

    # --- towards ready -----------------------------------------------------------------------------------------------

    def _act(self, due: Due, now: float) -> None:
        match due:
            case Due.CONNECT:
                self._hello_version = FIRST_VERSION
                self._try_address(now)
            case Due.GIVE_UP:
                self._end(f"{_DOING[self._core.state]} {self.host}:{self.port} took too long")
            case Due.REQUEST_TIMED_OUT:
                self._end(f"{self.host}:{self.port} did not answer within {self._options.limits.request_timeout_s:g} s")
            case Due.IDLE:
                self._end("unused for long")

    def _try_address(self, now: float) -> None:
        address = self._turns.take()
        if address is None:
            self._lookup = self._resolver.resolve(self.host, self.port, self._resolved)
            return
        self._core.connecting(now)
        try:
            self._open(address)
        except OSError as error:
            self._end(self._wording(error))

    def _resolved(self, addresses: list[Address], error: str) -> None:
        self._lookup = None
        if self._core.state is not State.RESOLVING:
            return
        if not addresses:
            self._end(f"cannot resolve {self.host}: {error}")
            return
        self._turns.resolved(addresses)
        self._try_address(self._clock())

    def _open(self, address: Address) -> None:
        self._socket = self._options.system.open(address.family)
        self._socket.setblocking(False)
        set_options(self._socket, self._options.sockets)
        code = self._socket.connect_ex(address.sockaddr)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        self._events = READ | WRITE
        self._loop.add(self._socket.fileno(), self._events, self._happened)

    def _connected(self, opened: socket.socket) -> None:
        """The first event of a connecting socket: it is connected, refused, or meant another socket of that number."""
        code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            try:
                _ = opened.getpeername()
            except OSError:
                return
            self._core.established()
            self._traffic.opened(self._clock())
            self._turns.connected()
            self._reader = AnswerReader(self._options.limits.answer_bytes_max)
            self._say_hello()
            return
        self._end(self._wording(OSError(code, os.strerror(code))))

    def _say_hello(self) -> None:
        self._hello_id = self._core.next_correlation_id()
        hello = ask_versions(self._hello_version, self._hello_id, self._options.client_id, SOFTWARE_VERSION)
        self._queue([hello], len(hello), self._clock())

    def _greeted(self, answer: bytes) -> None:
        try:
            if correlation_id_of(answer) != self._hello_id:
                raise StreamError(f"ApiVersions was answered with correlation id {correlation_id_of(answer)}")
            judged = read_versions(answer, self._hello_version)
        except StreamError as error:
            self._broken = f"{self.host}:{self.port}: {error}"
            return
        match judged:
            case AskAgain(known):
                self._traffic.answered(0, self._clock())
                self._hello_version = known
                self._say_hello()
            case Agreed(versions, throttle_ms, features):
                now = self._clock()
                self._traffic.answered(throttle_ms, now)
                self._core.agreed(versions, now, features)
                self._core.throttle(throttle_ms, now)
                self._owner.connection_ready(self)

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _happened(self, events: int) -> None:
        opened = self._socket
        if opened is None:
            return
        if self._core.state is State.CONNECTING:
            self._connected(opened)
            return
        if events & (READ | GONE):
            self._receive(opened)
        if events & WRITE and self._socket is opened:
            self._flush()
        if self._socket is opened:
            if self._broken is not None:
                self._end(self._broken)
            else:
                self._settle_silent(self._clock())

    def _receive(self, opened: socket.socket) -> None:
        for _ in range(_READ_ROUNDS_MAX):
            space = self._reader.space()
            try:
                count = opened.recv_into(space)
                self._traffic.read(count, self._clock())
                answers = self._reader.received(count)
            except BlockingIOError:
                return
            except OSError as error:
                self._broken = self._wording(error)
                return
            except StreamError as error:
                self._broken = f"{self.host}:{self.port}: {error}"
                return
            if count == 0:
                self._broken = f"{self.host}:{self.port} closed the connection"
                return
            for answer in answers:
                self._take(answer)
                if self._socket is not opened or self._broken is not None:
                    return
            if count < len(space):
                return

    def _take(self, answer: bytes) -> None:
        if self._core.state is State.CHECKING_VERSIONS:
            self._greeted(answer)
            return
        now = self._clock()
        self._settle_silent(now)
        correlation_id = correlation_id_of(answer)
        response_class = self._requests.get(correlation_id)
        try:
            self._core.expect(correlation_id, self._out.pending_bytes)
            response = decode_answer(response_class, answer)
        except StreamError as error:
            # Its tag is still in flight, and is reported as lost with the others.
            self._broken = f"{self.host}:{self.port}: {error}"
            return
        _ = self._requests.pop(correlation_id, None)
        tag = self._core.answered(now)
        if not isinstance(response, bytes):
            throttle_ms = getattr(response, "throttle_time_ms", 0)
            self.throttle(response.API_KEY, response.version or 0, throttle_ms, now)
        self._owner.connection_answered(self, tag, response)

    def _queue(self, buffers: Sequence[Buffer], size: int, now: float) -> None:
        self._traffic.sent(size, now)
        idle = not self._out.pending_bytes
        self._out.append(buffers)
        if idle:
            self._flush()

    def _flush(self) -> None:
        """Write what the kernel takes, and watch for more room as long as something is left. A fault is only noted here:
        a caller of `send` has yet to note that it sent."""
        opened = self._socket
        if opened is None or self._broken is not None:
            return
        while buffers := self._out.gather():
            try:
                written = opened.sendmsg(buffers)
                self._traffic.wrote(written, self._clock())
            except BlockingIOError:
                break
            except OSError as error:
                self._broken = self._wording(error)
                return
            self._out.written(written)
        wanted = READ | WRITE if self._out.pending_bytes else READ
        if wanted != self._events:
            self._events = wanted
            self._loop.modify(opened.fileno(), wanted)

    def _settle_silent(self, now: float) -> None:
        while self._broken is None and self._core.has_written_silent(self._out.pending_bytes):
            self._owner.connection_answered(self, self._core.answered(now), b"")

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        self._drop_socket()
        lost = self._core.ended(self._clock(), self._rng(), reason)
        self._owner.connection_lost(self, lost, reason)

    def _drop_socket(self) -> None:
        if self._lookup is not None:
            self._resolver.cancel(self._lookup)
            self._lookup = None
        if self._socket is not None:
            self._loop.remove(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._traffic.closed(self._clock())
        self._out.clear()
        self._broken = None
        self._requests.clear()

    def _wording(self, error: OSError) -> str:
        return f"{self.host}:{self.port}: {error.strerror or error}"


_DOING: Final = {State.RESOLVING: "resolving", State.CONNECTING: "connecting to", State.CHECKING_VERSIONS: "greeting"}
