"""Runs blocking work off the loop: name lookups with `getaddrinfo`, which has no timeout, and the blocking steps of
logins, which fetch tokens or tickets. Each kind has its own threads, so neither waits for the other.

The caller enforces deadlines and cancels.
"""

import socket
from collections.abc import Callable
from typing import Final

from ...runtime.loop import Loop
from ..security.sasl import BlockingResult
from .addresses import Address
from .blocking_pool import BlockingPool

Resolved = Callable[[list[Address], str], None]
"""Called with the addresses in the order to try them, or with none and the reason."""

LookUp = Callable[[str, int], tuple[list[Address], str]]
"""Maps host and port to the arguments of `Resolved`. Called on a thread; may block."""

_THREADS_MAX: Final = 8
_AT_ONCE: Final = 0
"""Number of a lookup that completed inside `resolve`, so it cannot be cancelled."""


class Resolver:
    """One per process. For numeric addresses the callback is called inside `resolve`."""

    def __init__(self, loop: Loop, look_up: LookUp | None = None, *, threads_max: int = _THREADS_MAX) -> None:
        """`look_up` replaces the system's resolver for lookups on threads."""
        self._loop = loop
        self._look_up = look_up or _ask_system
        self._names: BlockingPool[tuple[list[Address], str]] = BlockingPool(loop, "resolver", threads_max)
        self._logins: BlockingPool[BlockingResult] | None = None

    def resolve(self, host: str, port: int, answered: Resolved) -> int:
        """Look up a name and call `answered` on the loop's thread. Returns the number for `cancel`."""
        addresses, _ = _get(host, port, socket.AI_NUMERICHOST)
        if addresses:
            answered(addresses, "")
            return _AT_ONCE
        look_up = self._look_up
        return self._names.run(lambda: look_up(host, port), lambda found: answered(*found))

    def cancel(self, number: int) -> None:
        """Discard the result. No effect if it was already delivered."""
        self._names.cancel(number)

    @property
    def logins(self) -> BlockingPool[BlockingResult]:
        """Threads for the blocking steps of logins; created on first use."""
        if self._logins is None:
            self._logins = BlockingPool(self._loop, "login", _THREADS_MAX)
        return self._logins

    def close(self) -> None:
        """Stop all callbacks. Running threads finish without waking the loop. May be called twice."""
        self._names.close()
        if self._logins is not None:
            self._logins.close()


def _ask_system(host: str, port: int) -> tuple[list[Address], str]:
    return _get(host, port, 0)


def _get(host: str, port: int, flags: int) -> tuple[list[Address], str]:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        return [], text or str(error)
    return list(dict.fromkeys(Address(int(family), sockaddr) for family, _, _, _, sockaddr in rows)), ""
