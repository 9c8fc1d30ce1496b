"""Divides bounded memory among brokers: half in equal budgets, half as a common reserve."""

from collections.abc import Collection
from typing import Final

RESERVE_PART: Final = 0.5
"""Share of the memory in the common reserve."""


def budgets_by_node(total_bytes: int, largest: int, nodes: Collection[int]) -> dict[int, int]:
    """Equal budgets for the records of these nodes; none for fewer than two nodes.

    The common reserve always has room for the `largest` reservation; otherwise that could wait forever.
    """
    reserve = max(round(total_bytes * RESERVE_PART), largest)
    each = (total_bytes - reserve) // max(1, len(nodes))
    return dict.fromkeys(nodes, each) if len(nodes) > 1 and each > 0 else {}


def node_budget(total_bytes: int, nodes: int) -> int:
    """Batch memory that one of `nodes` nodes may hold without using the common reserve; a single node gets all."""
    return total_bytes if nodes < 2 else round(total_bytes * (1 - RESERVE_PART)) // nodes
