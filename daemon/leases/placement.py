"""Which shard serves which broker node.

Every node is dealt to one seat, or, when there are more seats than nodes, to several (lanes), among which a partition's place
is fixed by its name. Loads differ by one at most, and a change of nodes or seats moves only what it must.
"""

import zlib
from collections.abc import Iterable, Mapping


class NodeAssignment:
    """The table node -> seats. It is deterministic: the same history of calls gives the same table."""

    def __init__(self) -> None:
        self._lanes: dict[int, tuple[int, ...]] = {}

    @property
    def lanes(self) -> Mapping[int, tuple[int, ...]]:
        """The seats of each node, in lane order."""
        return self._lanes

    def shard_of(self, node: int, topic: str, index: int) -> int | None:
        """Who serves this partition at this node; None: the node is not dealt, or no seat is there."""
        lanes = self._lanes.get(node)
        if not lanes:
            return None
        if len(lanes) == 1:
            return lanes[0]
        return lanes[(zlib.crc32(topic.encode()) + index) % len(lanes)]

    def nodes_of(self, seat: int) -> list[int]:
        """The nodes this seat serves, ascending."""
        return sorted(node for node, lanes in self._lanes.items() if seat in lanes)

    def assign(self, nodes: Iterable[int], seats: Iterable[int]) -> bool:
        """Deal these nodes to these seats. Returns whether anything changed."""
        wanted_nodes, wanted_seats = sorted(set(nodes)), sorted(set(seats))
        before = self._lanes
        if not wanted_seats:
            self._lanes = dict.fromkeys(wanted_nodes, ())
        elif len(wanted_seats) <= len(wanted_nodes):
            self._lanes = self._whole(wanted_nodes, wanted_seats)
        else:
            self._lanes = self._divided(wanted_nodes, wanted_seats)
        return self._lanes != before

    def _whole(self, nodes: list[int], seats: list[int]) -> dict[int, tuple[int, ...]]:
        """One seat per node: keep what may stay, give the rest to whoever has least."""
        held: dict[int, list[int]] = {seat: [] for seat in seats}
        loose: list[int] = []
        for node in nodes:
            kept = next((seat for seat in self._lanes.get(node, ()) if seat in held), None)
            if kept is None:
                loose.append(node)
            else:
                held[kept].append(node)
        for node in loose:
            held[min(seats, key=lambda seat: (len(held[seat]), seat))].append(node)
        _rebalance(held)
        return {node: (seat,) for seat in seats for node in held[seat]}

    def _divided(self, nodes: list[int], seats: list[int]) -> dict[int, tuple[int, ...]]:
        """Several seats per node: the same, with the roles changed. A seat serves one node."""
        held: dict[int, list[int]] = {node: [] for node in nodes}
        loose: list[int] = []
        for seat in seats:
            kept = next((node for node in nodes if seat in self._lanes.get(node, ())), None)
            if kept is None:
                loose.append(seat)
            else:
                held[kept].append(seat)
        if nodes:
            for seat in loose:
                held[min(nodes, key=lambda node: (len(held[node]), node))].append(seat)
            _rebalance(held)
        return {node: tuple(sorted(held[node])) for node in nodes}


def _rebalance(held: dict[int, list[int]]) -> None:
    """Move single things from whoever has most to whoever has least until they differ by one at most."""
    while held:
        most = max(held, key=lambda owner: (len(held[owner]), -owner))
        least = min(held, key=lambda owner: (len(held[owner]), owner))
        if len(held[most]) - len(held[least]) <= 1:
            return
        held[least].append(held[most].pop())
