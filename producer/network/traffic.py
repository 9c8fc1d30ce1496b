"""Interface through which connections report bytes and requests for metrics. Times are seconds of the connection's
clock."""

from typing import Final, Protocol


class Traffic(Protocol):
    """Counts consecutive connections to one broker. Called once for each system call, request or response."""

    def opened(self, now: float) -> None:
        """A connection was established."""

    def closed(self, now: float) -> None:
        """A connection ended, or an attempt to connect failed."""

    def sent(self, size: int, now: float) -> None:
        """A request of `size` bytes was queued."""

    def wrote(self, nbytes: int, now: float) -> None:
        """One system call wrote `nbytes` of requests."""

    def read(self, nbytes: int, now: float) -> None:
        """One system call read `nbytes` of responses."""

    def answered(self, throttle_ms: int, now: float) -> None:
        """A response was read that requests this throttle time (0: none)."""

    def authenticated(self, now: float) -> None:
        """Authentication succeeded."""

    def reauthenticated(self, took_s: float, now: float) -> None:
        """Re-authentication before the end of the session succeeded (KIP-368)."""

    def authentication_failed(self, now: float, *, again: bool) -> None:
        """Authentication failed; `again`: it was a re-authentication."""


class TrafficWatch(Protocol):
    """Counts all connections of a process."""

    def traffic(self, node: int, *, now: float) -> Traffic:
        """The counter for the connections to a node; -1: its id is unknown."""
        ...


class _Uncounted:
    """Counts nothing."""

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
"""For connections without metrics."""
