"""Client of `control.sock`, for the exporter and the command line."""

import socket
from pathlib import Path
from typing import Final, cast

import msgpack

from ...runtime.clock import monotonic
from ...wire.frames import LENGTH

ANSWER_BYTES_MAX: Final = 64 << 20


class ControlError(Exception):
    """The router did not answer, or refused the request. The text is meant for operators."""


def ask(path: Path, verb: str, *, timeout_s: float = 5.0, **args: object) -> object:
    """Send `verb` to the router and return its answer.

    Raises:
        ControlError: there is no answer at `path` within `timeout_s`, or the router refused.
    """
    until = monotonic() + timeout_s
    body = cast("bytes", msgpack.packb([verb, args]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(LENGTH.pack(len(body)) + body)
            (size,) = LENGTH.unpack(_read(sock, LENGTH.size, until))
            if not 0 < size <= ANSWER_BYTES_MAX:
                raise ControlError(f"{path}: an answer of {size} bytes")
            answer = _read(sock, size, until)
        except OSError as error:
            raise ControlError(f"the router does not answer at {path}: {error.strerror or error}") from error
    try:
        fields = msgpack.unpackb(answer, raw=False, strict_map_key=False, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise ControlError(f"{path}: the answer is not msgpack") from error
    match fields:
        case [True, result]:
            return result
        case [False, str(text)]:
            raise ControlError(text)
        case _:
            raise ControlError(f"{path}: the answer has a wrong shape")


def _read(sock: socket.socket, size: int, until: float) -> bytes:
    parts: list[bytes] = []
    while size:
        sock.settimeout(max(0.001, until - monotonic()))
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise ControlError("the router closed the connection without an answer")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
