"""A wire to one broker that can hold back the answers to Produce requests, and counts the requests that have none."""

import socket
import struct
import threading
from types import TracebackType
from typing import Final, Self

_PRODUCE: Final = 0


class HoldingProxy:
    """Listens on `port`; every connection is passed on to `address`, which is to be set before the first one."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = ("127.0.0.1", 0)
        self.changed = threading.Condition()
        self.holding = False
        self.open: set[tuple[int, int]] = set()
        """Produce requests without an answer: connection, correlation id."""
        self._sockets: list[socket.socket] = []

    def hold(self, *, on: bool) -> None:
        """Keep answers to Produce back, or let them go."""
        with self.changed:
            self.holding = on
            self.changed.notify_all()

    def wait_for(self, count: int, seconds: float) -> bool:
        """Until so many Produce requests have no answer."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self.open) >= count, seconds)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hold(on=False)
        self._listener.close()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self.address)
            except OSError:
                return
            self._sockets += [client, broker]
            number = len(self._sockets)
            for work in (self._ask, self._answer):
                threading.Thread(target=work, args=(number, client, broker), daemon=True).start()

    def _ask(self, number: int, client: socket.socket, broker: socket.socket) -> None:
        while (frame := _frame(client)) is not None:
            api, _, correlation = struct.unpack_from(">hhi", frame, 4)
            if api == _PRODUCE:
                with self.changed:
                    self.open.add((number, correlation))
                    self.changed.notify_all()
            broker.sendall(frame)
        _end(broker)

    def _answer(self, number: int, client: socket.socket, broker: socket.socket) -> None:
        while (frame := _frame(broker)) is not None:
            one = (number, struct.unpack_from(">i", frame, 4)[0])
            with self.changed:
                if one in self.open:
                    _ = self.changed.wait_for(lambda: not self.holding)
                    self.open.discard(one)
                    self.changed.notify_all()
            try:
                client.sendall(frame)
            except OSError:
                break
        _end(client)


def _frame(peer: socket.socket) -> bytes | None:
    """The next message with its length; None: it ended."""
    read = b""
    while len(read) < 4 or len(read) < 4 + struct.unpack_from(">i", read)[0]:
        want = 4 - len(read) if len(read) < 4 else 4 + struct.unpack_from(">i", read)[0] - len(read)
        try:
            more = peer.recv(want)
        except OSError:
            return None
        if not more:
            return None
        read += more
    return read


def _end(peer: socket.socket) -> None:
    try:
        peer.shutdown(socket.SHUT_RDWR)
    except OSError:
        peer.close()
