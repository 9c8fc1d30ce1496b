"""Rotation over the addresses of a host name."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Address(NamedTuple):
    """One resolved address: the socket's family, and the argument of `connect`."""

    family: int
    sockaddr: tuple[str | int | bytes, ...]


class AddressRotation:
    """Gives one address per connection attempt. The name is looked up again once all addresses were tried or one was
    connected."""

    def __init__(self) -> None:
        self._left: deque[Address] = deque()
        self._last: Address | None = None

    def resolved(self, addresses: Sequence[Address]) -> None:
        """Set the name's current addresses (at least one).

        Addresses of the first one's family come first: a host without a route to the other family should not waste
        every second attempt on it. The address tried last is skipped if it would be next again and there are others.
        """
        assert addresses, "no address is a failure, not an answer"
        ordered = sorted(addresses, key=lambda address: address.family != addresses[0].family)
        if len(ordered) > 1 and ordered[0] == self._last:
            ordered = ordered[1:]
        self._left = deque(ordered)

    def next_address(self) -> Address | None:
        """The next address to try; None: look up the name first."""
        if not self._left:
            return None
        self._last = self._left.popleft()
        return self._last

    def connected(self) -> None:
        """The last address was connected. Drops the others: by the next attempt the name may have other addresses."""
        self._left.clear()
