"""The broker process: its sockets, its event loop and its start.

Run as `python -I -m penstock.broker.server --listen 127.0.0.1:19092`; it writes `ready HOST:PORT` when it is ready.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

from ..runtime import logs
from ..runtime.process import (
    PARENT_VARIABLE,
    ExitCode,
    exit_with_parent,
    redirect_output_to_journal,
    require_assertions,
)
from . import settings as checks
from .arguments import WARNING, parse
from .catalogue import FolderCatalogue, MemoryCatalogue
from .cluster.node import STARTS_MAX, BrokerNode, PeerNode
from .connection import AcceptedConnection, OversizedError
from .control import LINE_BYTES_MAX
from .hosts import ClusterHost, Host, SingleNodeHost
from .log.ports import BrokerTime
from .replication.replicated_cluster import ReplicatedCluster
from .requests.dispatch import RequestError, RequestReply, decode, with_pending
from .settings import BrokerSettings, SettingsError
from .storage import FolderInUseError, FolderLogStore, MemoryLogStore

CONNECTIONS_MAX: Final = 1000
BACKLOG: Final = 128
UPKEEP_S: Final = 60.0
"""Longest time that the event loop waits."""


def read_clocks() -> BrokerTime:
    """Return the current monotonic and wall-clock time."""
    return BrokerTime(time.monotonic(), time.time_ns() // 1_000_000)


def write_stderr(text: str) -> None:
    """Write a message for a person to standard error."""
    _ = sys.stderr.write(text + "\n")
    _ = sys.stderr.flush()


class StoreFailedError(Exception):
    """A log or the topic list could not be written; data after a torn batch would be unreadable."""


class Server:
    """Event loop of one thread, which owns all sockets and the nodes that serve them."""

    def __init__(self, settings: BrokerSettings, listeners: dict[int, socket.socket], host: Host) -> None:
        """Serve each node of `host` on its listener; a restarted node gets a new listener on the same address."""
        self._settings = settings
        self._host = host
        self._listeners = listeners
        self._addresses = {node_id: listener.getsockname()[:2] for node_id, listener in listeners.items()}
        self._selector = selectors.DefaultSelector()
        self._connections: set[AcceptedConnection] = set()
        self._waiting: set[AcceptedConnection] = set()
        self._muted: set[AcceptedConnection] = set()
        self._seen_changes = host.changes
        self._commands = bytearray()
        self._stopping = False
        self._log = logs.get()

    def serve(self, wake: socket.socket) -> None:
        """Serve until the wake socket signals shutdown or standard input closes."""
        _ = self._selector.register(wake, selectors.EVENT_READ, self._stop)
        if self._settings.control:
            _ = self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._command)
        self._follow_nodes()
        while not self._stopping:
            for key, mask in self._selector.select(self._select_timeout_s()):
                if isinstance(key.data, AcceptedConnection):
                    self._event(key.data, mask)
                else:
                    key.data()
            self._upkeep()
        for connection in list(self._connections):
            self._close(connection)
        for listener in self._listeners.values():
            listener.close()
        self._selector.close()

    def _stop(self) -> None:
        self._stopping = True

    def _select_timeout_s(self) -> float:
        now = time.monotonic()
        deadlines = [connection.deadline for connection in self._waiting]
        deadlines += [connection.muted_until for connection in self._muted]
        deadlines += [self._host.next_deadline(), now + UPKEEP_S]
        return max(0.0, min(deadlines) - now)

    def _upkeep(self) -> None:
        now = read_clocks()
        self._host.upkeep(now)
        moved = self._host.changes != self._seen_changes
        self._seen_changes = self._host.changes
        for connection in [one for one in self._waiting if moved or one.deadline <= now.now]:
            if self._host.serves(connection.node_id):
                self._guard(connection, self._resume)
        for connection in [one for one in self._muted if one.muted_until <= now.now]:
            self._muted.discard(connection)
            self._guard(connection, self._serve_requests)

    def _follow_nodes(self) -> None:
        """Close the ports of stopped nodes, reopen those of restarted nodes, and stop reading from paused nodes."""
        for node_id, address in self._addresses.items():
            if self._host.runs(node_id) and node_id not in self._listeners:
                self._listeners[node_id] = listen(*address)
            elif not self._host.runs(node_id) and node_id in self._listeners:
                listener = self._listeners.pop(node_id)
                self._set_events(listener, 0, None)
                listener.close()
                for connection in [one for one in self._connections if one.node_id == node_id]:
                    self._close(connection)
        for node_id, listener in self._listeners.items():
            events = selectors.EVENT_READ if self._host.serves(node_id) else 0
            self._set_events(listener, events, partial(self._accept, node_id))
        for connection in list(self._connections):
            self._update_events(connection)

    def _set_events(self, sock: socket.socket, events: int, data: object) -> None:
        """Register a socket for these events; 0 unregisters it."""
        known = sock.fileno() in self._selector.get_map()
        if events and known:
            _ = self._selector.modify(sock, events, data)
        elif events:
            _ = self._selector.register(sock, events, data)
        elif known:
            _ = self._selector.unregister(sock)

    # Connections

    def _accept(self, node_id: int) -> None:
        try:
            sock, _ = self._listeners[node_id].accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Most likely no descriptors are left; the next round retries.
            self._log.warning("accept_failed", reason=str(error))
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            self._log.warning("connection_refused", reason="limit", limit=CONNECTIONS_MAX)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        close_at = self._host.node(node_id).faults.for_connection()
        connection = AcceptedConnection(sock, node_id, self._settings.request_bytes_max, close_at)
        self._connections.add(connection)
        _ = self._selector.register(sock, selectors.EVENT_READ, connection)

    def _event(self, connection: AcceptedConnection, mask: int) -> None:
        if connection not in self._connections or not self._host.serves(connection.node_id):
            return
        if mask & selectors.EVENT_WRITE:
            self._guard(connection, self._write_on)
        if mask & selectors.EVENT_READ and connection in self._connections:
            self._guard(connection, self._read)

    def _guard(self, connection: AcceptedConnection, step: Callable[[AcceptedConnection], None]) -> None:
        """Run `step` for a connection; an error that its peer caused closes only this connection."""
        try:
            step(connection)
        except (RequestError, OversizedError) as error:
            self._log.warning("connection_closed", reason=str(error))
            self._close(connection)
        except OSError:
            self._close(connection)
        else:
            self._update_events(connection)

    def _read(self, connection: AcceptedConnection) -> None:
        if not connection.receive():
            connection.peer_closed = True
            self._serve_requests(connection)
            return
        self._serve_requests(connection)
        if connection.byte_limit_reached:
            self._log.warning("response_withheld", reason="on command", close=True)
            self._close(connection)

    def _write_on(self, connection: AcceptedConnection) -> None:
        connection.flush()
        self._serve_requests(connection)

    def _serve_requests(self, connection: AcceptedConnection) -> None:
        while not connection.busy and connection not in self._muted:
            data = connection.next_request()
            if data is None:
                connection.closing = connection.peer_closed
                return
            if connection.peer_closed:
                connection.discard_input()
            connection.pending_request = decode(data, arrived=time.monotonic())
            self._resume(connection)

    def _resume(self, connection: AcceptedConnection) -> None:
        request = connection.pending_request
        assert request is not None
        try:
            outcome = self._host.apply(connection.node_id, request, read_clocks())
        except OSError as error:
            raise StoreFailedError(str(error)) from error
        if not isinstance(outcome, RequestReply):
            connection.pending_request = with_pending(request, outcome)
            connection.deadline = outcome.deadline
            self._waiting.add(connection)
            return
        waited = connection in self._waiting
        self._waiting.discard(connection)
        connection.pending_request = None
        connection.closing = outcome.close
        if outcome.mute_s > 0:
            connection.muted_until = time.monotonic() + outcome.mute_s
            self._muted.add(connection)
        if outcome.why:
            self._log.warning("response_withheld", reason=outcome.why, close=outcome.close)
        connection.send(outcome.data)
        if waited:
            self._serve_requests(connection)

    def _update_events(self, connection: AcceptedConnection) -> None:
        if connection not in self._connections:
            return
        if connection.closing and not connection.unsent:
            self._close(connection)
            return
        events = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        deaf = connection.peer_closed or connection in self._muted
        if not self._host.serves(connection.node_id) or (deaf and not connection.unsent):
            events = 0
        self._set_events(connection.sock, events, connection)

    def _close(self, connection: AcceptedConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._waiting.discard(connection)
            self._muted.discard(connection)
            self._set_events(connection.sock, 0, None)
            connection.sock.close()

    # Commands

    def _command(self) -> None:
        data = os.read(sys.stdin.fileno(), LINE_BYTES_MAX)
        self._commands += data
        *lines, rest = self._commands.split(b"\n")
        self._commands = bytearray(rest)
        for line in lines:
            answer = self._host.execute_command(bytes(line), read_clocks())
            self._follow_nodes()
            _ = sys.stdout.write(answer.decode())
            _ = sys.stdout.flush()
        if not data or len(rest) > LINE_BYTES_MAX:
            self._stopping = True


# The process


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def open_node(settings: BrokerSettings, peers: tuple[PeerNode, ...]) -> tuple[BrokerNode, FolderLogStore | None]:
    """Open the stores, create the configured topics, and load the logs.

    Raises:
        SettingsError: a topic exists with another number of partitions.
        FolderInUseError: another broker uses the log folder.
        OSError: a folder cannot be used.
    """
    folder = settings.catalogue_dir
    kept = None
    if settings.log_dir is not None:
        kept = FolderLogStore(settings.log_dir)
        folder = folder or settings.log_dir / "catalogue"
    catalogue = MemoryCatalogue() if folder is None else FolderCatalogue(folder)
    for spec in settings.topics:
        _ = catalogue.create(spec.name, spec.partitions, spec.settings)
    found = {topic.name: topic.partitions for topic in catalogue.all()}
    other = [spec.name for spec in settings.topics if found.get(spec.name, spec.partitions) != spec.partitions]
    if other:
        raise SettingsError([f"topic {name} exists with {found[name]} partitions" for name in other])
    start = secrets.randbelow(STARTS_MAX) if kept is None else kept.next_start()
    node = BrokerNode(
        settings.node_id,
        peers,
        start=start,
        limits=settings.limits,
        topic_store=catalogue,
        log_store=kept or MemoryLogStore(),
        moment=read_clocks(),
    )
    return node, kept


@contextlib.contextmanager
def _signals() -> Generator[socket.socket]:
    """Yield a socket that becomes readable when the process receives SIGTERM or SIGINT."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    with reader, writer:
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # The handler has nothing to do: the wake-up descriptor wakes the loop.
            _ = signal.signal(number, lambda _number, _frame: None)
        try:
            yield reader
        finally:
            _ = signal.set_wakeup_fd(previous)


def run(settings: BrokerSettings) -> None:
    """Run a broker until SIGTERM or SIGINT; call it in the main thread.

    Raises:
        SettingsError: the settings do not fit together.
        FolderInUseError: another broker uses the log folder.
        StoreFailedError: writing to a folder failed.
        OSError: the address or a folder cannot be used.
    """
    checks.check(settings)
    _raise_descriptor_limit()
    write_stderr(WARNING)
    with contextlib.ExitStack() as stack:
        listeners, peers = _listen_all(settings)
        for listener in listeners.values():
            _ = stack.enter_context(listener)
        if settings.cluster:
            host: Host = ClusterHost(open_cluster(settings, peers))
        else:
            node, kept = open_node(settings, peers)
            host = SingleNodeHost(node)
            if kept is not None:
                _ = stack.enter_context(contextlib.closing(kept))
        wake = stack.enter_context(_signals())
        addresses = ",".join(f"{settings.host}:{one.getsockname()[1]}" for one in listeners.values())
        _announce(settings, f"ready {addresses}\n".encode())
        Server(settings, listeners, host).serve(wake)


def _listen_all(settings: BrokerSettings) -> tuple[dict[int, socket.socket], tuple[PeerNode, ...]]:
    """Listen for every node of this process; return its listeners and all nodes of the cluster.

    Raises:
        OSError: an address cannot be bound.
    """
    if not settings.cluster:
        listener = listen(settings.host, settings.port)
        port: int = listener.getsockname()[1]
        return {settings.node_id: listener}, settings.nodes or (PeerNode(settings.node_id, settings.host, port),)
    listeners: dict[int, socket.socket] = {}
    peers: list[PeerNode] = []
    for number in range(settings.cluster):
        node_id = settings.node_id + number
        listeners[node_id] = listen(settings.host, settings.port + number if settings.port else 0)
        peers.append(PeerNode(node_id, settings.host, listeners[node_id].getsockname()[1]))
    return listeners, tuple(peers)


def open_cluster(settings: BrokerSettings, peers: tuple[PeerNode, ...]) -> ReplicatedCluster:
    """Start all nodes of a cluster with replicas, and create the configured topics."""
    cluster = ReplicatedCluster(
        peers,
        log_store=MemoryLogStore(),
        moment=read_clocks(),
        limits=settings.limits,
        timing=settings.timing,
        first_start=secrets.randbelow(STARTS_MAX),
    )
    for spec in settings.topics:
        _ = cluster.controller.create(spec.name, spec.partitions, spec.settings, settings.limits.default_replicas)
    cluster.run_until_stable(read_clocks())
    return cluster


def _raise_descriptor_limit() -> None:
    """Raise the descriptor limit to its maximum: connections and open logs may exceed the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _announce(settings: BrokerSettings, line: bytes) -> None:
    if settings.ready_fd is None:
        _ = sys.stdout.write(line.decode())
        _ = sys.stdout.flush()
    else:
        _ = os.write(settings.ready_fd, line)
        os.close(settings.ready_fd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` or those of the command line; return an exit status of `runtime.process.ExitCode`."""
    require_assertions()
    redirect_output_to_journal()
    # A broker started by hand may outlive its shell; one started by the daemon exits with it.
    if PARENT_VARIABLE in os.environ:
        exit_with_parent()
    try:
        settings = parse(sys.argv[1:] if arguments is None else arguments)
        logs.configure(f"broker-{settings.node_id}")
        run(settings)
    except SettingsError as error:
        for problem in error.problems:
            write_stderr(f"penstock broker: {problem}")
        return ExitCode.USAGE
    except (FolderInUseError, StoreFailedError, OSError) as error:
        write_stderr(f"penstock broker: {error}")
        return ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
