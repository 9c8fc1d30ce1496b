"""Notifies systemd, if present, of the service's state: ready, stopping, status, and watchdog pings.

Only `NOTIFY_SOCKET` is read. `WATCHDOG_PID` names the unit's main process, which is supervisord, and is ignored.
"""

import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

STATUS_CHARS_MAX: Final = 200
_WORKING_EVERY_S: Final = 1.0
_EXTEND_S: Final = 60
"""Extra start time granted by each sign of life."""


class Notifier:
    """One datagram socket to the service manager; without one, every call does nothing."""

    def __init__(self, address: str | None, watchdog_s: float | None) -> None:
        self._socket: socket.socket | None = None
        self._status = ""
        self._fed_at: float | None = None
        self.watchdog_s = watchdog_s
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            # An address that starts with @ is in the abstract namespace.
            self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Use the environment that systemd set for the unit and supervisord passed on."""
        micros = environ.get("WATCHDOG_USEC", "")
        watchdog_s = int(micros) / 1e6 if micros.isdigit() and int(micros) > 0 else None
        return cls(environ.get("NOTIFY_SOCKET"), watchdog_s)

    def ready(self, status: str) -> None:
        self._status = status[:STATUS_CHARS_MAX]
        self._send(f"READY=1\nSTATUS={self._status}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status[:STATUS_CHARS_MAX]}")

    def status(self, text: str) -> None:
        """Set the text shown by `systemctl status`; sent only when it changed."""
        text = text[:STATUS_CHARS_MAX]
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def ping_watchdog(self, now: float) -> float | None:
        """Ping the watchdog at half its interval. Returns when to call this next."""
        if self.watchdog_s is None or self._socket is None:
            return None
        every = self.watchdog_s / 2
        if self._fed_at is None or now >= self._fed_at + every:
            self._fed_at = now
            self._send("WATCHDOG=1")
        return self._fed_at + every

    def extend_start_timeout(self, now: float, status: str) -> None:
        """Send a sign of life, at most once a second, during long work before the first round (at a start or
        restart)."""
        if self._socket is None or (self._fed_at is not None and now < self._fed_at + _WORKING_EVERY_S):
            return
        self._fed_at = now
        self._send(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={_EXTEND_S * 1_000_000}\nSTATUS={status[:STATUS_CHARS_MAX]}")

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            # The manager is busy or gone; the watchdog decides.
            return

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()
