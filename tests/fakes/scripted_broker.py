"""A broker that says exactly what a test tells it to: blocking sockets on a thread, one connection after the other."""

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from kafka.protocol.metadata.api_versions import ApiVersionsResponse

_WAIT_S: Final = 10.0

RANGES: Final = {0: (3, 13), 2: (1, 10), 3: (0, 13), 18: (0, 4), 22: (0, 6), 32: (1, 4)}
"""Like a recent broker's, for the APIs that are asked."""


class Asked(NamedTuple):
    """A request as it came: the fixed part of the header, and everything after the length."""

    api_key: int
    version: int
    correlation_id: int
    body: bytes


class Peer:
    """The broker's end of one connection."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.socket.settimeout(_WAIT_S)

    def read_exactly(self, count: int) -> bytes:
        """Raises EOFError where the client ends first."""
        read = b""
        while len(read) < count:
            more = self.socket.recv(count - len(read))
            if not more:
                raise EOFError
            read += more
        return read

    def read(self) -> Asked:
        (length,) = struct.unpack(">i", self.read_exactly(4))
        body = self.read_exactly(length)
        return Asked(*struct.unpack_from(">hhi", body), body)

    def send(self, correlation_id: int, body: bytes) -> None:
        self.socket.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)

    def greet(self, ranges: dict[int, tuple[int, int]] | None = None) -> Asked:
        """Answer ApiVersions in the version asked."""
        asked = self.read()
        assert asked.api_key == 18
        self.send(asked.correlation_id, versions_body(asked.version, ranges or RANGES))
        return asked

    def wait_for_end(self) -> bool:
        """Read until the client is gone. True: it ended with a reset."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionResetError:
            return True
        return False


def versions_body(
    version: int,
    ranges: dict[int, tuple[int, int]],
    code: int = 0,
    *,
    features: Mapping[str, int] | None = None,
    epoch: int = 1,
    throttle_ms: int = 0,
) -> bytes:
    """The body of an answer to ApiVersions; `features`: the finalised ones, known as of `epoch`."""
    rows = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=lo, max_version=hi) for key, (lo, hi) in ranges.items()
    ]
    answer = ApiVersionsResponse(error_code=code, api_keys=rows, throttle_time_ms=throttle_ms, version=version)
    if features and version >= 3:
        level = ApiVersionsResponse.FinalizedFeatureKey
        answer.finalized_features_epoch = epoch
        answer.finalized_features = [
            level(name=name, max_version_level=top, min_version_level=top) for name, top in features.items()
        ]
    return bytes(answer.encode())


class ScriptedBroker:
    """Runs one script per accepted connection, in order, and fails the test if a script failed."""

    def __init__(self, *scripts: Callable[[Peer], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_WAIT_S)
        self.port: int = self._listener.getsockname()[1]
        self._scripts = scripts
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            for script in self._scripts:
                opened, _ = self._listener.accept()
                with opened:
                    script(Peer(opened))
        except BaseException as error:  # noqa: BLE001 - told to the test by __exit__
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(_WAIT_S)
        alive = self._thread.is_alive()
        self._listener.close()
        if error is None:
            assert not alive, "the script still waits"
            if self._failure is not None:
                raise self._failure
