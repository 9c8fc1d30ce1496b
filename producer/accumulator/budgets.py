"""How bounded memory is shared out over brokers: half evenly, half in common."""

from collections.abc import Collection
from typing import Final

RESERVE_PART: Final = 0.5
"""How much of the memory no node has to itself."""


def budgets_by_node(total_bytes: int, largest: int, nodes: Collection[int]) -> dict[int, int]:
    """Budgets for the records of these nodes, all the same; none where there are not two nodes to keep apart.

    What they leave to the common reserve takes the `largest` reservation in any case: it must not wait for what cannot come.
    """
    reserve = max(round(total_bytes * RESERVE_PART), largest)
    each = (total_bytes - reserve) // max(1, len(nodes))
    return dict.fromkeys(nodes, each) if len(nodes) > 1 and each > 0 else {}


def node_budget(total_bytes: int, nodes: int) -> int:
    """What one of so many nodes may hold of the memory of batches without touching the common reserve; a single one all."""
    return total_bytes if nodes < 2 else round(total_bytes * (1 - RESERVE_PART)) // nodes
