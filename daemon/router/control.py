"""`control.sock`: requests of operators, exporter and command line to the router.

Framing as in the local protocol; a request is the msgpack array `[verb, arguments]`, its answer `[true, result]` or
`[false, text]`. Only the daemon's user and root can open the socket (mode 0600). Not meant for many or slow clients.
"""

import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import msgpack

from ...runtime import logs
from ...runtime.loop import HANGUP, READ, WRITE, Loop
from ...wire.frames import LENGTH
from ..processes.control_client import ControlError

CLIENTS_MAX: Final = 32
REQUEST_BYTES_MAX: Final = 64 << 10

ControlCommand = Callable[[Mapping[str, object]], object]
"""Takes the arguments; its result must consist of msgpack types. Raises ControlError to refuse."""


class ControlServer:
    """The listening socket and its clients."""

    def __init__(self, loop: Loop, path: Path, verbs: Mapping[str, ControlCommand]) -> None:
        self._loop = loop
        self._path = path
        self._verbs = verbs
        self._clients: dict[int, _ControlClient] = {}
        self._log = logs.get()
        # Remove the socket of an earlier router. Any other file type at this path is not ours to remove.
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            _ = os.umask(before)
        self._socket.listen(CLIENTS_MAX)
        loop.add(self._socket.fileno(), READ, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            found, _ = self._socket.accept()
        except OSError:
            return
        if len(self._clients) >= CLIENTS_MAX:
            found.close()
            return
        found.setblocking(False)
        client = _ControlClient(self._loop, found, self._answer, self._forget)
        self._clients[client.fd] = client

    def _forget(self, client: "_ControlClient") -> None:
        _ = self._clients.pop(client.fd, None)

    def _answer(self, body: bytes) -> bytes:
        try:
            result = self._apply(body)
        except ControlError as error:
            return _packed([False, str(error)])
        return _packed([True, result])

    def _apply(self, body: bytes) -> object:
        try:
            fields = msgpack.unpackb(body, raw=False, max_ext_len=0, max_array_len=1_024, max_map_len=1_024)
        except (ValueError, RecursionError, OverflowError, msgpack.UnpackException) as error:
            raise ControlError("a request is the msgpack array [verb, arguments]") from error
        match fields:
            case [str(verb), dict() as arguments]:
                found = self._verbs.get(verb)
            case _:
                raise ControlError("a request is the msgpack array [verb, arguments]")
        if found is None:
            raise ControlError(f"the verb {verb!r} is not known; there are {', '.join(sorted(self._verbs))}")
        return found(cast("dict[str, object]", arguments))

    def close(self) -> None:
        """Stop answering. The socket file is removed too, so that later requests fail at once."""
        for client in list(self._clients.values()):
            client.close()
        self._loop.remove(self._socket.fileno())
        self._socket.close()
        self._path.unlink(missing_ok=True)


class _ControlClient:
    """One connection: requests and answers, one at a time."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        answer: Callable[[bytes], bytes],
        on_close: "Callable[[_ControlClient], None]",
    ) -> None:
        self.fd = sock.fileno()
        self._loop = loop
        self._socket = sock
        self._answer = answer
        self._on_close = on_close
        self._in = b""
        self._out = memoryview(b"")
        loop.add(self.fd, READ, self._event)

    def _event(self, events: int) -> None:
        try:
            if self._out:
                self._write()
            elif events & (READ | HANGUP):
                self._read()
        except OSError:
            self.close()

    def _read(self) -> None:
        part = self._socket.recv(REQUEST_BYTES_MAX)
        self._in += part
        if not part or len(self._in) > REQUEST_BYTES_MAX:
            self.close()
            return
        if len(self._in) < LENGTH.size:
            return
        (size,) = LENGTH.unpack_from(self._in)
        if not 0 < size <= REQUEST_BYTES_MAX - LENGTH.size:
            self.close()
            return
        if len(self._in) >= LENGTH.size + size:
            body, self._in = self._in[LENGTH.size : LENGTH.size + size], self._in[LENGTH.size + size :]
            self._out = memoryview(self._answer(body))
            self._write()

    def _write(self) -> None:
        with suppress(BlockingIOError):
            self._out = self._out[self._socket.send(self._out) :]
        self._loop.modify(self.fd, WRITE if self._out else READ)

    def close(self) -> None:
        self._loop.remove(self.fd)
        self._socket.close()
        self._on_close(self)


def _packed(answer: list[object]) -> bytes:
    body = cast("bytes", msgpack.packb(answer))
    return LENGTH.pack(len(body)) + body
