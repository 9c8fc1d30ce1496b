"""What a connection tells of its bytes and requests, to who counts them. Times are seconds of the connection's clock."""

from typing import Final, Protocol


class Traffic(Protocol):
    """One connection after the other to the same broker. Called once for each system call, request or answer."""

    def opened(self, now: float) -> None:
        """A connection was made."""

    def closed(self, now: float) -> None:
        """It has ended, or an attempt at one."""

    def sent(self, size: int, now: float) -> None:
        """A request of so many bytes was handed over."""

    def wrote(self, nbytes: int, now: float) -> None:
        """So many bytes of requests were written, by one call."""

    def read(self, nbytes: int, now: float) -> None:
        """So many bytes of answers were read, by one call."""

    def answered(self, throttle_ms: int, now: float) -> None:
        """An answer was read, which asked for this throttle (0: none)."""

    def authenticated(self, now: float) -> None:
        """The broker knows who we are."""

    def reauthenticated(self, took_s: float, now: float) -> None:
        """It knows it anew, before the session was over (KIP-368)."""

    def authentication_failed(self, now: float, *, again: bool) -> None:
        """It does not believe who we are; `again`: any more."""


class TrafficWatch(Protocol):
    """Who counts the connections of a process."""

    def traffic(self, node: int, *, now: float) -> Traffic:
        """Who counts those to a node; -1: its number is not known."""
        ...


class _Uncounted:
    """Nobody counts."""

    def opened(self, now: float) -> None: ...
    def closed(self, now: float) -> None: ...
    def sent(self, size: int, now: float) -> None: ...
    def wrote(self, nbytes: int, now: float) -> None: ...
    def read(self, nbytes: int, now: float) -> None: ...
    def answered(self, throttle_ms: int, now: float) -> None: ...
    def authenticated(self, now: float) -> None: ...
    def reauthenticated(self, took_s: float, now: float) -> None: ...
    def authentication_failed(self, now: float, *, again: bool) -> None: ...


UNCOUNTED: Final[Traffic] = _Uncounted()
"""For connections whose bytes nobody asks about."""
