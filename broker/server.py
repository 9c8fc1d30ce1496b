"""The broker process: sockets around the rules in `core`.

Run as `python -I -m penstock.broker.server --listen 127.0.0.1:19092`; when it can be used it writes `ready HOST:PORT`.
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
from typing import Final

from ..runtime import logs
from ..runtime.process import PARENT_VARIABLE, Exit, refuse_optimised, take_journal, tie_to_parent
from . import settings as checks
from .arguments import WARNING, parse
from .catalogue import FolderCatalogue, MemoryCatalogue
from .connection import Connection, OversizedError
from .control import LINE_BYTES_MAX, obey
from .core.node import STARTS_MAX, Node, Peer
from .core.ports import Moment
from .core.requests import Reply, RequestError, again, apply, decode
from .settings import BrokerSettings, SettingsError
from .storage import FolderInUseError, FolderLogs, MemoryLogs

CONNECTIONS_MAX: Final = 1000
BACKLOG: Final = 128
UPKEEP_S: Final = 60.0
"""Longest sleep of the loop."""


def moment() -> Moment:
    """The time, now."""
    return Moment(time.monotonic(), time.time_ns() // 1_000_000)


def say(text: str) -> None:
    """Tell a person something, on standard error."""
    _ = sys.stderr.write(text + "\n")
    _ = sys.stderr.flush()


class StoreFailedError(Exception):
    """A log or the list of topics could not be written; what follows a torn batch could not be read again."""


class Server:
    """One thread that owns all sockets and the node."""

    def __init__(self, settings: BrokerSettings, listener: socket.socket, node: Node) -> None:
        self._settings = settings
        self._listener = listener
        self._node = node
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._waiting: set[Connection] = set()
        self._seen_changes = node.changes
        self._commands = bytearray()
        self._stopping = False
        self._log = logs.get()
        _ = self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def serve(self, wake: socket.socket) -> None:
        """Serve until the wake socket tells of a signal, or the commands end."""
        _ = self._selector.register(wake, selectors.EVENT_READ, self._stop)
        if self._settings.control:
            _ = self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._command)
        while not self._stopping:
            for key, mask in self._selector.select(self._patience()):
                if isinstance(key.data, Connection):
                    self._event(key.data, mask)
                else:
                    key.data()
            self._upkeep()
        for connection in list(self._connections):
            self._close(connection)
        self._selector.close()

    def _stop(self) -> None:
        self._stopping = True

    def _patience(self) -> float:
        now = time.monotonic()
        deadlines = [connection.deadline for connection in self._waiting]
        deadlines += [self._node.next_deadline(), now + UPKEEP_S]
        return max(0.0, min(deadlines) - now)

    def _upkeep(self) -> None:
        now = moment()
        self._node.upkeep(now)
        moved = self._node.changes != self._seen_changes
        self._seen_changes = self._node.changes
        for connection in [one for one in self._waiting if moved or one.deadline <= now.now]:
            self._guard(connection, self._resume)

    # Connections

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Most likely no descriptors are left; the next round tries again.
            self._log.warning("accept_failed", reason=str(error))
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            self._log.warning("connection_refused", reason="limit", limit=CONNECTIONS_MAX)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock, self._settings.request_bytes_max)
        self._connections.add(connection)
        _ = self._selector.register(sock, selectors.EVENT_READ, connection)

    def _event(self, connection: Connection, mask: int) -> None:
        if connection not in self._connections:
            return
        if mask & selectors.EVENT_WRITE:
            self._guard(connection, self._write_on)
        if mask & selectors.EVENT_READ and connection in self._connections:
            self._guard(connection, self._read)

    def _guard(self, connection: Connection, step: Callable[[Connection], None]) -> None:
        """Do something for a connection; whatever its peer did wrong ends this connection only."""
        try:
            step(connection)
        except (RequestError, OversizedError) as error:
            self._log.warning("connection_closed", reason=str(error))
            self._close(connection)
        except OSError:
            self._close(connection)
        else:
            self._watch(connection)

    def _read(self, connection: Connection) -> None:
        if connection.receive():
            self._serve_requests(connection)
        else:
            self._close(connection)

    def _write_on(self, connection: Connection) -> None:
        connection.flush()
        self._serve_requests(connection)

    def _serve_requests(self, connection: Connection) -> None:
        while not connection.busy:
            data = connection.next_request()
            if data is None:
                return
            connection.waiting = decode(data, arrived=time.monotonic())
            self._resume(connection)

    def _resume(self, connection: Connection) -> None:
        request = connection.waiting
        assert request is not None
        try:
            outcome = apply(self._node, request, moment())
        except OSError as error:
            raise StoreFailedError(str(error)) from error
        if not isinstance(outcome, Reply):
            connection.waiting = again(request, outcome)
            connection.deadline = outcome.deadline
            self._waiting.add(connection)
            return
        waited = connection in self._waiting
        self._waiting.discard(connection)
        connection.waiting = None
        connection.closing = outcome.close
        if outcome.why:
            self._log.warning("answer_withheld", reason=outcome.why, close=outcome.close)
        connection.send(outcome.data)
        if waited:
            self._serve_requests(connection)

    def _watch(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        if connection.closing and not connection.unsent:
            self._close(connection)
            return
        events = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        _ = self._selector.modify(connection.sock, events, connection)

    def _close(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._waiting.discard(connection)
            _ = self._selector.unregister(connection.sock)
            connection.sock.close()

    # Commands

    def _command(self) -> None:
        data = os.read(sys.stdin.fileno(), LINE_BYTES_MAX)
        self._commands += data
        *lines, rest = self._commands.split(b"\n")
        self._commands = bytearray(rest)
        for line in lines:
            _ = sys.stdout.write(obey(self._node, bytes(line), moment()).decode())
            _ = sys.stdout.flush()
        if not data or len(rest) > LINE_BYTES_MAX:
            self._stopping = True


# The process


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Raises:
        OSError: the address cannot be had.
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


def open_node(settings: BrokerSettings, peers: tuple[Peer, ...]) -> tuple[Node, FolderLogs | None]:
    """Open the stores, make the topics that shall exist, and load the logs.

    Raises:
        SettingsError: a topic exists with another number of partitions.
        FolderInUseError: another broker has the log folder.
        OSError: a folder cannot be used.
    """
    folder = settings.catalogue_dir
    kept = None
    if settings.log_dir is not None:
        kept = FolderLogs(settings.log_dir)
        folder = folder or settings.log_dir / "catalogue"
    catalogue = MemoryCatalogue() if folder is None else FolderCatalogue(folder)
    for spec in settings.topics:
        _ = catalogue.create(spec.name, spec.partitions, spec.settings)
    found = {topic.name: topic.partitions for topic in catalogue.all()}
    other = [spec.name for spec in settings.topics if found.get(spec.name, spec.partitions) != spec.partitions]
    if other:
        raise SettingsError([f"topic {name} exists with {found[name]} partitions" for name in other])
    start = secrets.randbelow(STARTS_MAX) if kept is None else kept.next_start()
    node = Node(
        settings.node_id,
        peers,
        start=start,
        limits=settings.limits,
        topic_store=catalogue,
        log_store=kept or MemoryLogs(),
        moment=moment(),
    )
    return node, kept


@contextlib.contextmanager
def _signals() -> Generator[socket.socket]:
    """A socket that becomes readable when the process is told to end."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    with reader, writer:
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # The handler itself has nothing to do: the wake-up descriptor tells the loop.
            _ = signal.signal(number, lambda _number, _frame: None)
        try:
            yield reader
        finally:
            _ = signal.set_wakeup_fd(previous)


def run(settings: BrokerSettings) -> None:
    """Be a broker until SIGTERM or SIGINT; to be called in the main thread.

    Raises:
        SettingsError: the settings do not fit together.
        FolderInUseError: another broker has the log folder.
        StoreFailedError: a folder cannot be written to any more.
        OSError: the address or a folder cannot be used.
    """
    checks.check(settings)
    _raise_descriptor_limit()
    say(WARNING)
    with listen(settings.host, settings.port) as listener:
        port: int = listener.getsockname()[1]
        peers = settings.nodes or (Peer(settings.node_id, settings.host, port),)
        node, kept = open_node(settings, peers)
        with contextlib.closing(kept) if kept else contextlib.nullcontext(), _signals() as wake:
            _announce(settings, f"ready {settings.host}:{port}\n".encode())
            Server(settings, listener, node).serve(wake)


def _raise_descriptor_limit() -> None:
    """Take as many descriptors as the system gives: connections and open logs together are more than the usual 1,024."""
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
    """Run with these arguments, or the command line's; the exit status is one of `runtime.process.Exit`."""
    refuse_optimised()
    take_journal()
    # Started by hand, a broker may outlive its shell; started with the daemon, it ends with it.
    if PARENT_VARIABLE in os.environ:
        tie_to_parent()
    try:
        settings = parse(sys.argv[1:] if arguments is None else arguments)
        logs.configure(f"broker-{settings.node_id}")
        run(settings)
    except SettingsError as error:
        for problem in error.problems:
            say(f"penstock broker: {problem}")
        return Exit.USAGE
    except (FolderInUseError, StoreFailedError, OSError) as error:
        say(f"penstock broker: {error}")
        return Exit.FAILED
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
