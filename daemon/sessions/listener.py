"""Client sockets: accept, read, write, time limits, peer credentials. `daemon/sessions/intake.py` interprets messages.

Reads are large and yield many messages. A partial message is kept; a message that cannot be accepted yet is offered
again when its session resumes. No code in this module runs per record.
"""

import socket
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...producer.kernel import frames as kernel
from ...runtime import logs
from ...runtime.clock import monotonic, wall_ms
from ...runtime.loop import READ, Loop
from ...wire import frames
from ...wire.errors import FrameError
from ...wire.frames import Code
from .acks import SessionResponses
from .connection import ClientConnection, ReadBufferPool, is_hung_up
from .flow_control import SessionCredit
from .intake import FrameIntake
from .session import PeerCredentials, RouterSession, RouterSessionState

NOBODY_UID: Final = 65_534
DESCRIPTORS_RESERVED: Final = 64
_PEER: Final = struct.Struct("3i")
_ROUND_BYTES: Final = 2 << 20
_READ_ON_FROM: Final = 32 << 10
_ACCEPTS_PER_ROUND: Final = 64
_ACCEPT_AGAIN_S: Final = 0.25
_LOOK_EVERY_S: Final = 0.2
_LAST_WORD_S: Final = 1.0
"""How long a client has to read the REFUSED that ended its session."""


class ListenerLimits(NamedTuple):
    """The session limits of `config.model.LimitSettings`, in the units of this module."""

    frame_bytes_max: int
    sessions_max: int
    sessions_per_uid_max: int
    unanswered_bytes_max: int
    unanswered_records_max: int
    unread_answers_bytes_max: int
    first_message_s: float
    message_s: float


class SessionListener:
    """All client connections of the router."""

    def __init__(
        self,
        loop: Loop,
        listening: socket.socket,
        intake: FrameIntake,
        answers: SessionResponses,
        limits: ListenerLimits,
        *,
        descriptors: int,
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._intake = intake
        self._responses = answers
        self._limits = limits
        self._descriptors = descriptors
        self._clients: dict[RouterSession, ClientConnection] = {}
        self._per_uid: dict[int, int] = {}
        self._pool = ReadBufferPool(limits.frame_bytes_max + frames.LENGTH.size)
        self._last_number = 0
        self._accepting = False
        self._accept_wanted = False
        self._accept_at: float | None = None
        self._check_at = 0.0
        self._to_resume: dict[ClientConnection, bool] = {}
        """Clients whose remaining buffer is offered in the next round. True: the held message is offered too."""
        self._read_budget = _ROUND_BYTES
        self._log = logs.get()

    @property
    def sessions(self) -> Iterable[RouterSession]:
        return self._clients.keys()

    def set_limits(self, limits: ListenerLimits) -> None:
        """Apply other limits. Credit and buffers of open sessions do not change."""
        self._limits = limits._replace(frame_bytes_max=self._limits.frame_bytes_max)

    def set_accepting(self, wanted: bool) -> None:
        """Start or stop accepting connections. Until accepted, connections wait in the kernel's queue."""
        self._accept_wanted = wanted
        self._watch(wanted)

    def resume(self, sessions: Iterable[RouterSession]) -> None:
        """Resume these sessions in the next round, if they are paused."""
        for session in sessions:
            client = self._clients.get(session)
            if client is not None and client.paused:
                self._to_resume[client] = True

    def resume_reading(self, now: float) -> None:
        """Offer held and remaining messages again. Call it once a round, before the write."""
        if not self._to_resume:
            return
        self._intake.set_clock(now, wall_ms())
        again, self._to_resume = self._to_resume, {}
        for client, held_too in again.items():
            if client.session not in self._clients:
                continue
            if client.paused and held_too:
                client.resume(now)
            if not client.paused:
                self._feed(client, now)

    @property
    def has_more(self) -> bool:
        """Whether another round is needed at once."""
        return bool(self._to_resume)

    def check_time_limits(self, now: float) -> float | None:
        """Apply time limits, and accept again after a descriptor shortage. Returns when to call it again."""
        if self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._watch(self._accept_wanted)
        if now >= self._check_at:
            self._check_at = now + _LOOK_EVERY_S
            for client in list(self._clients.values()):
                self._check_connection(client, now)
        due = [self._check_at] if self._clients else []
        if self._accept_at is not None:
            due.append(self._accept_at)
        return min(due, default=None)

    def send(self, now: float) -> None:
        """Queue the round's responses and write as much as the sockets accept."""
        self._read_budget = _ROUND_BYTES
        touched, self._responses.sessions_to_write = self._responses.sessions_to_write, {}
        for session in touched:
            client = self._clients.get(session)
            if client is None:
                continue
            if session.welcome:
                client.queue(session.welcome, now)
                session.welcome = b""
            if session.acks:
                client.queue(encode_acks(session.acks, self._limits.frame_bytes_max), now)
                session.acks.clear()
            for message in session.messages:
                client.queue(message, now)
            session.messages.clear()
            session.messages_bytes = 0
            self._write(client, now)

    def close(self) -> None:
        """Close every session. The listening socket stays open."""
        self.set_accepting(wanted=False)
        for client in list(self._clients.values()):
            self._drop(client, "stopped")

    # --- accepting ---------------------------------------------------------------------------------------------------

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._accepting and self._accept_at is None:
            self._loop.add(self._listening.fileno(), READ, self._accept)
            self._accepting = True
        elif not wanted and self._accepting:
            self._loop.remove(self._listening.fileno())
            self._accepting = False

    def _accept(self, _events: int) -> None:
        now = monotonic()
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                found, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # ECONNABORTED and the like affect one connection, EMFILE and ENFILE all of them: pause in either case.
                self._log.warning("accept_failed", error=str(error))
                self._pause_accepting(now)
                return
            if found.fileno() >= self._descriptors - DESCRIPTORS_RESERVED:
                self._reject(found, "descriptors", "the daemon is short of file descriptors")
                self._pause_accepting(now)
                return
            self._admit(found, now)

    def _pause_accepting(self, now: float) -> None:
        self._watch(wanted=False)
        self._accept_at = now + _ACCEPT_AGAIN_S

    def _admit(self, found: socket.socket, now: float) -> None:
        found.setblocking(False)
        peer = PeerCredentials._make(_PEER.unpack(found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)))
        limits = self._limits
        if peer.uid == NOBODY_UID:
            self._reject(found, "peer", "the kernel cannot name your user: it is outside this user namespace", peer)
        elif len(self._clients) >= limits.sessions_max:
            self._reject(found, "sessions_max", f"all {limits.sessions_max} sessions are taken", peer)
        elif self._per_uid.get(peer.uid, 0) >= limits.sessions_per_uid_max:
            text = f"your user has {limits.sessions_per_uid_max} sessions, which is its limit"
            self._reject(found, "sessions_per_uid_max", text, peer)
        else:
            self._last_number += 1
            credit = SessionCredit(limits.unanswered_bytes_max, limits.unanswered_records_max)
            session = RouterSession(self._last_number, peer, credit)
            client = ClientConnection(self._loop, found, session, self._event, self._pool, now=now)
            self._clients[session] = client
            self._per_uid[peer.uid] = self._per_uid.get(peer.uid, 0) + 1
            self._intake.counts.sessions_opened += 1

    def _reject(self, found: socket.socket, reason: str, text: str, peer: PeerCredentials | None = None) -> None:
        self._intake.counts.sessions_refused[reason] += 1
        self._log.warning(
            "session_refused", reason=reason, uid=peer.uid if peer else None, pid=peer.pid if peer else None
        )
        code = Code.NOT_ALLOWED if reason == "peer" else Code.LIMIT
        try:
            found.setblocking(False)
            found.send(frames.refused(None, code, text, 1_000 if code is Code.LIMIT else None))
        except OSError:
            pass  # it is gone already
        finally:
            found.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    def _event(self, client: ClientConnection, events: int) -> None:
        now = monotonic()
        self._intake.set_clock(now, wall_ms())
        if client.unsent_bytes:
            self._write(client, now)
            if client.session not in self._clients:
                return
        if not client.reading:
            if is_hung_up(events):
                self._connection_lost(client)
            return
        while True:
            taken = client.read(now)
            self._read_budget -= taken
            if client.input_ended and is_hung_up(events):
                client.peer_gone = True
            self._feed(client, now)
            # A fast sender has filled the socket again by now, and reading more in one round is cheaper per byte. Many
            # such senders share the round's budget, so each is read once.
            more = taken >= _READ_ON_FROM and self._read_budget > 0
            if not more or not client.reading or client.session not in self._clients:
                return

    def _feed(self, client: ClientConnection, now: float) -> None:
        """Offer the complete messages of the buffer, in order, until one is held or the session ends."""
        client.restore_buffer()
        buffer, session = client.buffer, client.session
        error: FrameError | None = None
        if buffer is not None:
            try:
                found, after = kernel.find_messages(buffer, client.start, client.end, self._limits.frame_bytes_max)
            except FrameError as raised:
                found, after, error = self._messages_before_error(client), client.end, raised
            for start, end in found:
                if session.messages_bytes > self._limits.unread_answers_bytes_max:
                    # Short requests can have long responses: write those first.
                    client.advance(start - frames.LENGTH.size, now)
                    client.pause_for_output(now)
                    return
                if not self._intake.message(session, buffer, start, end, now):
                    if session.hold is not None:
                        client.pause_at(start - frames.LENGTH.size, now)
                        return
                    break
            client.advance(after, now)
        if error is not None and session.state in {RouterSessionState.GREETING, RouterSessionState.OPEN}:
            self._intake.end_session(session, Code.PROTOCOL, str(error))
        self._after_feed(client)

    def _messages_before_error(self, client: ClientConnection) -> list[tuple[int, int]]:
        """Return the complete messages before an invalid length: they are still processed."""
        assert client.buffer is not None, "a length was read"
        found: list[tuple[int, int]] = []
        place = client.start
        while True:
            (size,) = frames.LENGTH.unpack_from(client.buffer, place)
            start = place + frames.LENGTH.size
            if not 0 < size <= self._limits.frame_bytes_max:
                return found
            found.append((start, start + size))
            place = start + size

    def _after_feed(self, client: ClientConnection) -> None:
        """Act on a session that may have ended."""
        session = client.session
        if session.state is RouterSessionState.CLOSED:
            client.end_input()
            self._responses.sessions_to_write[session] = None
        elif client.input_ended or session.state is RouterSessionState.LEAVING:
            client.end_input()
            if client.peer_gone:
                self._drop(client, "gone")
                return
            self._intake.input_ended(session)
            self._responses.sessions_to_write[session] = None

    def _connection_lost(self, client: ClientConnection) -> None:
        """Both directions are closed. A held frame, and the messages after it, are still accepted later."""
        if client.session.hold is not None:
            client.peer_closed()
        else:
            self._drop(client, "gone")

    # --- writing and ending ------------------------------------------------------------------------------------------

    def _write(self, client: ClientConnection, now: float) -> None:
        session = client.session
        if not client.write(now):
            self._drop(client, "gone")
            return
        unread, unread_max = client.unsent_bytes, self._limits.unread_answers_bytes_max
        if session.state is RouterSessionState.CLOSED:
            if not unread:
                self._drop(client, str(session.end_code or "ended"))
        elif session.state is RouterSessionState.LEAVING and session.all_answered and not unread:
            self._drop(client, "left")
        elif unread > unread_max:
            client.pause_for_output(now)
        elif client.paused_for_output and unread * 2 <= unread_max:
            client.resume_after_output(now)
            _ = self._to_resume.setdefault(client, False)

    def _check_connection(self, client: ClientConnection, now: float) -> None:
        """Apply the time limits of one connection."""
        session, limits = client.session, self._limits
        silent_s = now - client.last_write if client.unsent_bytes else 0.0
        if session.state is RouterSessionState.CLOSED and silent_s > _LAST_WORD_S:
            self._drop(client, str(session.end_code or "ended"))
        elif client.paused_for_output and silent_s > limits.message_s:
            self._drop(client, Code.ANSWERS_UNREAD)
        elif session.state is RouterSessionState.GREETING and now - client.opened_at > limits.first_message_s:
            self._end(client, f"no whole message within {limits.first_message_s:g} s of the connection")
        elif client.reading and client.partial_since is not None and now - client.partial_since > limits.message_s:
            self._end(client, f"a message was not whole within {limits.message_s:g} s of its first byte")

    def _end(self, client: ClientConnection, text: str) -> None:
        self._intake.end_session(client.session, Code.TOO_SLOW, text)
        client.end_input()
        self._responses.sessions_to_write[client.session] = None

    def _drop(self, client: ClientConnection, reason: str) -> None:
        session = client.session
        if self._clients.pop(session, None) is None:
            return
        self._to_resume.pop(client, None)
        client.close()
        left = self._per_uid[session.peer.uid] - 1
        if left:
            self._per_uid[session.peer.uid] = left
        else:
            del self._per_uid[session.peer.uid]
        self._intake.connection_closed(session)
        self._intake.counts.sessions_ended[reason] += 1
        if self._accept_at is not None:
            self._accept_at = 0.0


def encode_acks(acks: list[frames.Ack], frame_bytes_max: int) -> bytes:
    """Encode acks in as few messages as the size limit allows. An ack too long for any message loses its details."""
    whole = frames.acks(acks)
    if len(whole) <= frame_bytes_max + frames.LENGTH.size:
        return whole
    if len(acks) > 1:
        half = len(acks) // 2
        return encode_acks(acks[:half], frame_bytes_max) + encode_acks(acks[half:], frame_bytes_max)
    ack = acks[0]
    if ack.partitions is not None:
        return encode_acks([ack._replace(partitions=None)], frame_bytes_max)
    if ack.runs is not None:
        return encode_acks([ack._replace(runs=None)], frame_bytes_max)
    refused = [entry._replace(text="") for entry in ack.refused or ()]
    return frames.acks([ack._replace(refused=refused)])
