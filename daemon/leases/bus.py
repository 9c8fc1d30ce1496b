"""The router's end of the bus: one ROUTER socket, two hop sequences for each shard, and detection of shard exits.

Every message from a shard is checked against its hop sequences (HOP-1) and passed on. Replies go out in `flush`, which
the router calls after it has written its log, so a hop ack always covers something written (HOP-2). A shard is dead
when its pidfd is readable, never before (LSE-4); then its journal is read and its leases end. Shards that break the hop
protocol, fall silent or must be killed are killed through their pidfd.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import zmq

from ...runtime.clock import monotonic
from ...runtime.host import boot_id
from ...runtime.logs import get
from ...runtime.loop import READ, Loop
from ...wire.errors import FrameError
from ...wire.journal import JournalSlot
from ...wire.message_codec import MESSAGE_BYTES_MAX, Envelope, decode, encode
from ...wire.messages import Ping, RouterMessage, ShardHello, ShardMessage, ShardWelcome, Stop
from . import journals
from .shard_peer import ShardPeer, ShardPeerState

PING_S: Final = 0.5
"""Every shard receives a message at least this often."""
REFUSED_S: Final = 2.0
"""How long a refused shard has to exit."""
_MESSAGES_PER_ROUND: Final = 256
_READS_AT_END: Final = 64
_HANDSHAKE_MS: Final = 2_000
_QUEUE_MAX: Final = 100_000
_PARTS: Final = 2


class ShardEvents(Protocol):
    """Receives bus events in the order they happened. `Leases` implements it."""

    def shard_connected(self, seat: int, now: float) -> None: ...
    def shard_ready(self, seat: int, now: float) -> None: ...
    def shard_dying(self, seat: int, now: float) -> None: ...
    def shard_dead(self, seat: int, slots: Iterable[JournalSlot], now: float, *, facts: bool) -> None: ...
    def message(self, seat: int, message: ShardMessage, now: float) -> None: ...


class BusSettings(NamedTuple):
    """`start`: the router's start number, above 0. `expiration_ms`: E."""

    path: Path
    journal_dir: Path
    shards: int
    start: int
    spool_id: str
    settings_digest: str
    expiration_ms: int
    silence_ms: int


class Bus:
    """Owner of the ROUTER socket and of every `ShardPeer`."""

    def __init__(self, loop: Loop, settings: BusSettings, events: ShardEvents) -> None:
        """Bind the socket.

        Raises:
            OSError: the directory cannot be created.
            zmq.ZMQError: the socket cannot be bound.
        """
        self._loop = loop
        self._settings = settings
        self._events = events
        self._boot = boot_id()
        self._pairs: dict[bytes, ShardPeer] = {}
        self._peers_by_shard: dict[int, ShardPeer] = {}
        self._removable: list[Path] = []
        settings.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.path.parent.chmod(0o700)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX),
            (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
            (zmq.SNDHWM, _QUEUE_MAX),
            (zmq.RCVHWM, _QUEUE_MAX),
            (zmq.LINGER, 0),
        ):
            self._socket.setsockopt(option, value)
        self._socket.bind(f"ipc://{settings.path}")
        loop.add_zmq(self._socket, self._read)

    def set_settings_digest(self, digest: str) -> None:
        """Shards that connect from now on must have been started with these settings."""
        self._settings = self._settings._replace(settings_digest=digest)

    def pids(self) -> dict[int, int]:
        """Shard id -> pid of the connected shards."""
        return {seat: pair.pid for seat, pair in self._peers_by_shard.items()}

    # --- rounds ------------------------------------------------------------------------------------------------------

    def flush(self, outbox: list[tuple[int, RouterMessage]], now: float) -> None:
        """Send and empty the outbox, ack processed messages, ping idle shards. Call it after the log is written, and
        after `kill`: unrecorded messages of a broken shard must not be acked to it."""
        for path in self._removable:
            journals.remove(path)
        self._removable.clear()
        for pair in list(self._pairs.values()):
            for message in pair.queue:
                self._send(pair, message, now)
            pair.queue.clear()
        for seat, message in outbox:
            holder = self._peers_by_shard.get(seat)
            if holder is not None and holder.state is ShardPeerState.READY:
                self._send(holder, message, now)
        outbox.clear()
        for pair in list(self._pairs.values()):
            here = pair.state in {ShardPeerState.CONNECTED, ShardPeerState.READY} and pair.kill_at is None
            if here and now >= pair.last_sent_at + PING_S:
                self._send(pair, Ping(), now)

    def tick(self, now: float) -> None:
        """Kill shards that are silent or past their exit deadline; recheck journals that should be unlocked."""
        silence_s = self._settings.silence_ms / 1000
        for pair in list(self._pairs.values()):
            if pair.state is ShardPeerState.JOURNAL_LOCKED:
                self._reaped(pair, now)
            elif pair.kill_at is not None:
                if now >= pair.kill_at:
                    pair.kill_at = None
                    pair.signal_kill()
            elif (
                pair.state is not ShardPeerState.DYING
                and now >= pair.last_received_at + silence_s
                and not self._has_input()
            ):
                self.kill(pair.shard_id, f"silent for {silence_s:.0f} s", now)

    def next_deadline(self) -> float | None:
        """When `tick` or `flush` must be called again."""
        silence_s = self._settings.silence_ms / 1000
        deadlines: list[float] = []
        for pair in self._pairs.values():
            if pair.kill_at is not None:
                deadlines.append(pair.kill_at)
            elif pair.state in {ShardPeerState.CONNECTED, ShardPeerState.READY}:
                deadlines.append(min(pair.last_sent_at + PING_S, pair.last_received_at + silence_s))
            elif pair.state is ShardPeerState.JOURNAL_LOCKED:
                deadlines.append(pair.last_received_at + 1.0)
        return min(deadlines, default=None)

    def kill(self, seat: int, reason: str, now: float) -> None:
        """Kill a shard. Its leases end when it is reaped."""
        pair = self._peers_by_shard.get(seat)
        if pair is None or pair.state not in {ShardPeerState.CONNECTED, ShardPeerState.READY}:
            return
        get().error("shard_killed", shard=seat, pid=pair.pid, reason=reason)
        pair.state = ShardPeerState.DYING
        self._events.shard_dying(seat, now)
        pair.signal_kill()

    def close(self) -> None:
        """Unbind. Shards detect the router's exit by its pidfd."""
        self._loop.remove_zmq(self._socket)
        self._socket.close()
        self._context.term()
        for pair in self._pairs.values():
            if pair.state is not ShardPeerState.JOURNAL_LOCKED:
                self._loop.remove(pair.pidfd)
            os.close(pair.pidfd)
        self._settings.path.unlink(missing_ok=True)

    def _has_input(self) -> bool:
        events = self._socket.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & zmq.POLLIN)

    def _send(self, pair: ShardPeer, message: RouterMessage, now: float) -> None:
        envelope = Envelope(self._settings.start, pair.shard_start, pair.next_seq, pair.processed)
        try:
            self._socket.send_multipart([pair.identity, encode(envelope, message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Unreachable, or its queue is full: a shard that cannot receive messages must end.
            if pair.told_to_stop:
                pair.kill_at = now + REFUSED_S if pair.kill_at is None else pair.kill_at
            elif pair.state is not ShardPeerState.REFUSED:
                self.kill(pair.shard_id, f"cannot be told anything: {error}", now)
            return
        pair.next_seq += 1
        pair.last_sent_at = now
        pair.told_to_stop = pair.told_to_stop or isinstance(message, Stop)

    # --- messages from shards ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        now = monotonic()
        for _ in range(_MESSAGES_PER_ROUND):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(parts, now)

    def _take(self, parts: list[bytes], now: float) -> None:
        pair = self._pairs.get(parts[0])
        if pair is None:
            self._unknown_peer(parts, now)
            return
        if pair.state is ShardPeerState.REFUSED:
            return
        fault = self._check(pair, parts, now)
        if fault is not None:
            self.kill(pair.shard_id, fault, now)

    def _check(self, pair: ShardPeer, parts: list[bytes], now: float) -> str | None:
        """Process one message of a known shard. Returns the protocol violation, or None."""
        if len(parts) != _PARTS:
            return f"a message of {len(parts)} parts"
        try:
            envelope, message = decode(parts[1])
        except FrameError as error:
            return f"it said something that is no message: {error}"
        fault = pair.received(envelope, self._settings.start, now)
        if fault is not None:
            return fault
        if isinstance(message, ShardHello):
            return self._journal_announced(pair, message, now)
        if not isinstance(message, ShardMessage):
            return f"it said {type(message).__name__}, which is ours to say"
        if pair.state is ShardPeerState.READY or pair.state is ShardPeerState.DYING:
            self._events.message(pair.shard_id, message, now)
            return None
        return None if isinstance(message, Ping) else f"{type(message).__name__} before its journal is named"

    def _journal_announced(self, pair: ShardPeer, hello: ShardHello, now: float) -> str | None:
        """Handle the second HELLO: the journal must exist, be locked, and belong to this process."""
        if pair.state is not ShardPeerState.CONNECTED or (hello.shard_id, hello.pid) != (pair.shard_id, pair.pid):
            return "a HELLO out of place"
        if not hello.journal or "/" in hello.journal or hello.journal.startswith("."):
            return f"{hello.journal!r} is not the name of a journal"
        path = self._settings.journal_dir / hello.journal
        header = journals.header_at(path)
        if header is None or (header.pid, header.shard_start, header.router_start) != (
            pair.pid,
            pair.shard_start,
            self._settings.start,
        ):
            return f"{hello.journal} is not its journal"
        if not journals.is_locked(path):
            return f"{hello.journal} is not locked"
        pair.journal = path
        pair.state = ShardPeerState.READY
        get().info("shard_ready", shard=pair.shard_id, pid=pair.pid)
        self._events.shard_ready(pair.shard_id, now)
        return None

    def _unknown_peer(self, parts: list[bytes], now: float) -> None:
        """Handle a message from an unknown peer: only a first HELLO creates a `ShardPeer`."""
        if len(parts) != _PARTS:
            return
        try:
            envelope, hello = decode(parts[1])
        except FrameError as error:
            get().warning("bus_message_rejected", error=str(error))
            return
        if not isinstance(hello, ShardHello) or envelope.seq != 0 or envelope.router_start != 0 or hello.journal:
            return
        identity = f"shard-{hello.shard_id}-{envelope.shard_start}".encode()
        if identity != parts[0] or not 0 <= hello.shard_id < self._settings.shards:
            get().warning("shard_refused", shard=hello.shard_id, reason="no such seat, or not under its own name")
            return
        self._accept_shard(identity, envelope, hello, now)

    def _accept_shard(self, identity: bytes, envelope: Envelope, hello: ShardHello, now: float) -> None:
        holder = self._peers_by_shard.get(hello.shard_id)
        if holder is not None and holder.has_ended:
            # The supervisor may restart a shard before our loop sees the old one exit: reap the old one first.
            self._drain_and_reap(holder, now)
            holder = self._peers_by_shard.get(hello.shard_id)
        try:
            pidfd = os.pidfd_open(hello.pid)
        except OSError as error:
            get().warning("shard_refused", shard=hello.shard_id, pid=hello.pid, reason=f"no such process: {error}")
            return
        pair = ShardPeer(identity, hello.shard_id, envelope.shard_start, hello.pid, pidfd, now, processed=envelope.seq)
        self._pairs[identity] = pair
        self._loop.add(pidfd, READ, partial(self._ended, pair))
        settings = self._settings
        if holder is not None:
            self._refuse(pair, f"seat {hello.shard_id} is held by process {holder.pid}", Stop(0), now)
            return
        welcome = ShardWelcome(
            os.getpid(), hello.shard_id, settings.settings_digest, settings.spool_id, settings.expiration_ms
        )
        if hello.settings_digest != settings.settings_digest:
            self._refuse(pair, "it was started with other settings", welcome, now)
            return
        pair.queue.append(welcome)
        self._peers_by_shard[hello.shard_id] = pair
        self._events.shard_connected(hello.shard_id, now)

    @staticmethod
    def _refuse(pair: ShardPeer, reason: str, word: RouterMessage, now: float) -> None:
        get().error("shard_refused", shard=pair.shard_id, pid=pair.pid, reason=reason)
        pair.state = ShardPeerState.REFUSED
        pair.queue.append(word)
        pair.kill_at = now + REFUSED_S

    # --- shard exits -------------------------------------------------------------------------------------------------

    def _ended(self, pair: ShardPeer, _events: int) -> None:
        self._drain_and_reap(pair, monotonic())

    def _drain_and_reap(self, pair: ShardPeer, now: float) -> None:
        """The pidfd is readable. Apply the messages already received before the shard is reaped."""
        for _ in range(_READS_AT_END):
            if not self._has_input():
                break
            self._read()
        if self._pairs.get(pair.identity) is pair:
            self._loop.remove(pair.pidfd)
            self._reaped(pair, now)

    def _reaped(self, pair: ShardPeer, now: float) -> None:
        path = pair.journal or journals.journal_of_shard(self._settings.journal_dir, pair.shard_start)
        if path is not None and journals.is_locked(path):
            if pair.state is not ShardPeerState.JOURNAL_LOCKED:
                get().error("journal_still_locked", shard=pair.shard_id, pid=pair.pid, journal=path.name)
                if self._peers_by_shard.get(pair.shard_id) is pair:
                    self._events.shard_dying(pair.shard_id, now)
            pair.state, pair.last_received_at, pair.kill_at = ShardPeerState.JOURNAL_LOCKED, now, None
            return
        os.close(pair.pidfd)
        del self._pairs[pair.identity]
        if self._peers_by_shard.get(pair.shard_id) is pair:
            del self._peers_by_shard[pair.shard_id]
            dead = journals.read(path, self._boot) if path is not None else None
            slots, facts = (dead.slots, dead.is_complete) if dead is not None else ([], True)
            if pair.told_to_stop and pair.state is not ShardPeerState.DYING:
                get().info("shard_exited", shard=pair.shard_id, pid=pair.pid)
            else:
                get().warning(
                    "shard_died", shard=pair.shard_id, pid=pair.pid, batches=len(slots), journal_complete=facts
                )
            self._events.shard_dead(pair.shard_id, slots, now, facts=facts)
        if path is not None:
            self._removable.append(path)
