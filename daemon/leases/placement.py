"""Assigns broker nodes to shards.

Every node is assigned to one shard slot or, when there are more slots than nodes, to several (lanes); then the
partition's name decides between them. Loads differ by one at most, and a change of nodes or slots moves the minimum.
"""

import zlib
from collections.abc import Iterable, Mapping


class NodeAssignment:
    """The table node -> shard slots. It is deterministic: the same history of calls gives the same table."""

    def __init__(self) -> None:
        self._lanes: dict[int, tuple[int, ...]] = {}

    @property
    def lanes(self) -> Mapping[int, tuple[int, ...]]:
        """The shard slots of each node, in lane order."""
        return self._lanes

    def shard_of(self, node: int, topic: str, index: int) -> int | None:
        """The shard that serves this partition at this node; None if the node is not assigned or has no shard slot."""
        lanes = self._lanes.get(node)
        if not lanes:
            return None
        if len(lanes) == 1:
            return lanes[0]
        return lanes[(zlib.crc32(topic.encode()) + index) % len(lanes)]

    def nodes_of(self, seat: int) -> list[int]:
        """The nodes this shard serves, ascending."""
        return sorted(node for node, lanes in self._lanes.items() if seat in lanes)

    def assign(self, nodes: Iterable[int], seats: Iterable[int]) -> bool:
        """Assign these nodes to these shard slots. Returns whether anything changed."""
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
        """One shard slot per node: keep assignments where possible; each other node goes to the least loaded slot."""
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
        """Several shard slots per node: the same with the roles swapped. Each slot serves one node."""
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
    """Move single items from the fullest owner to the emptiest until they differ by one at most."""
    while held:
        most = max(held, key=lambda owner: (len(held[owner]), -owner))
        least = min(held, key=lambda owner: (len(held[owner]), owner))
        if len(held[most]) - len(held[least]) <= 1:
            return
        held[least].append(held[most].pop())
