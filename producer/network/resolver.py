"""What blocks is done off the loop: names become addresses by `getaddrinfo`, which takes as long as the name server likes, and
logins may have to fetch a token or a ticket first. Each has threads of its own, and does not wait behind the other.

Who asks keeps the deadline and cancels.
"""

import socket
from collections.abc import Callable
from typing import Final

from ...runtime.loop import Loop
from ..security.sasl import BlockingResult
from .addresses import Address
from .blocking_pool import BlockingPool

Resolved = Callable[[list[Address], str], None]
"""Given the addresses in the order to try them, or none and the reason."""

LookUp = Callable[[str, int], tuple[list[Address], str]]
"""Host and port to the same; called on a thread, may block."""

_THREADS_MAX: Final = 8
_AT_ONCE: Final = 0
"""Number of a question that is answered before anybody could cancel it."""


class Resolver:
    """One per process. Addresses given as numbers are answered at once, from inside `resolve`."""

    def __init__(self, loop: Loop, look_up: LookUp | None = None, *, threads_max: int = _THREADS_MAX) -> None:
        """`look_up` takes the place of the system's resolver, off the loop only."""
        self._loop = loop
        self._look_up = look_up or _ask_system
        self._names: BlockingPool[tuple[list[Address], str]] = BlockingPool(loop, "resolver", threads_max)
        self._logins: BlockingPool[BlockingResult] | None = None

    def resolve(self, host: str, port: int, answered: Resolved) -> int:
        """Look a name up and call back on the loop's thread. Returns the number for `cancel`."""
        addresses, _ = _get(host, port, socket.AI_NUMERICHOST)
        if addresses:
            answered(addresses, "")
            return _AT_ONCE
        look_up = self._look_up
        return self._names.run(lambda: look_up(host, port), lambda found: answered(*found))

    def cancel(self, number: int) -> None:
        """The answer is not wanted any more. Fine for one that was already given."""
        self._names.cancel(number)

    @property
    def logins(self) -> BlockingPool[BlockingResult]:
        """Threads for the part of a login that blocks; made when the first one does."""
        if self._logins is None:
            self._logins = BlockingPool(self._loop, "login", _THREADS_MAX)
        return self._logins

    def close(self) -> None:
        """Nobody is called any more. Threads still at work end by themselves and wake nobody. Fine to call twice."""
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
