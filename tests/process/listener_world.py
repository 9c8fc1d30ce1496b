"""The listener over real sockets, with intake and answers over fakes: the round is driven by the test's own thread."""

import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.daemon.sessions.listener import ListenerLimits, SessionListener
from penstock.daemon.sessions.session import RouterSession
from penstock.runtime.clock import monotonic
from penstock.runtime.loop import Loop
from penstock.wire import frames
from penstock.wire.frames import DaemonMessage

from tests.core.intake_world import World, facts

LIMITS = ListenerLimits(
    frame_bytes_max=1 << 20,
    sessions_max=50,
    sessions_per_uid_max=40,
    unanswered_bytes_max=64 << 20,
    unanswered_records_max=1_000_000,
    unread_answers_bytes_max=256 << 10,
    # Long, so that the seconds which a loaded machine takes for a test do not count; `skew` makes them pass.
    first_message_s=200.0,
    message_s=500.0,
)


class Served:
    """A listener at a path, and rounds of it. Frames are answered at `accepted` and `spooled` in the same round."""

    def __init__(self, limits: ListenerLimits = LIMITS, *, descriptors: int = 10_000) -> None:
        self.world = World()
        self.world.topics.known["t"] = facts()
        self.folder = tempfile.TemporaryDirectory(prefix="pk-")
        self.path = Path(self.folder.name) / "s"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.path))
        self.listening.listen(64)
        self.listening.setblocking(False)
        self.loop = Loop()
        self.listener = SessionListener(
            self.loop, self.listening, self.world.intake, self.world.answers, limits, descriptors=descriptors
        )
        self.listener.set_accepting(wanted=True)
        self.skew = 0.0
        self.clients: list[socket.socket] = []

    def round(self, wait_s: float = 0.0) -> None:
        self.loop.run_once(monotonic() + wait_s)
        now = monotonic() + self.skew
        self.listener.resume_reading(now)
        self.world.write()
        self.world.sync()
        self.listener.check_time_limits(now)
        self.listener.send(now)

    def until(self, true: Callable[[], bool], within_s: float = 60.0) -> None:
        end = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < end, "it did not happen in time"
            self.round(0.01)

    def connect(self) -> "Caller":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))
        self.clients.append(sock)
        return Caller(self, sock)

    @property
    def sessions(self) -> list[RouterSession]:
        return list(self.listener.sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.listener.close()
        self.listening.close()
        self.loop.close()
        for sock in self.clients:
            sock.close()
        self.folder.cleanup()


class Caller:
    """The other end of one connection."""

    def __init__(self, served: Served, sock: socket.socket) -> None:
        self.served = served
        self.sock = sock
        self.sock.setblocking(False)
        self._got = b""

    def send(self, *messages: bytes | list[object]) -> None:
        for message in messages:
            data = memoryview(message if isinstance(message, bytes) else frames.pack(message))
            while data:
                try:
                    data = data[self.sock.send(data) :]
                except BlockingIOError:
                    self.served.round(0.001)

    def hear(self, within_s: float = 60.0) -> DaemonMessage | None:
        """The next message; None: the daemon closed."""
        end = time.monotonic() + within_s
        while True:
            if len(self._got) >= 4:
                (size,) = frames.LENGTH.unpack_from(self._got)
                if len(self._got) >= 4 + size:
                    body, self._got = self._got[4 : 4 + size], self._got[4 + size :]
                    return frames.decode_daemon(body)
            try:
                part = self.sock.recv(1 << 16)
            except BlockingIOError:
                assert time.monotonic() < end, "nothing was heard in time"
                self.served.round(0.01)
                continue
            except ConnectionResetError:
                return None
            if not part:
                return None
            self._got += part

    def greet(self, client_id: str | None = None) -> frames.Welcome:
        self.send(frames.hello(client_id))
        welcome = self.hear()
        assert isinstance(welcome, frames.Welcome)
        return welcome


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
