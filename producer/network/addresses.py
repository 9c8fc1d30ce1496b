"""The addresses of one name, and whose turn it is."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Address(NamedTuple):
    """One resolved address: the family of the socket, and what `connect` takes."""

    family: int
    sockaddr: tuple[str | int | bytes, ...]


class AddressRotation:
    """One address per attempt; the name is looked up again when all have had their turn, or once one was connected with."""

    def __init__(self) -> None:
        self._left: deque[Address] = deque()
        self._last: Address | None = None

    def resolved(self, addresses: Sequence[Address]) -> None:
        """The name has these addresses now (at least one).

        Those of the first one's family come first: a machine without a route to the other family should not lose an
        attempt in two to it. The one tried last is left out where it would be the next again and there are others.
        """
        assert addresses, "no address is a failure, not an answer"
        ordered = sorted(addresses, key=lambda address: address.family != addresses[0].family)
        if len(ordered) > 1 and ordered[0] == self._last:
            ordered = ordered[1:]
        self._left = deque(ordered)

    def next_address(self) -> Address | None:
        """The address to try now; None: look the name up first."""
        if not self._left:
            return None
        self._last = self._left.popleft()
        return self._last

    def connected(self) -> None:
        """The address taken last was reached. When that ends, the name may mean other addresses."""
        self._left.clear()
