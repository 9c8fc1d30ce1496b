"""The memory that open and unanswered batches live in: bounded, pooled, budgeted per broker with a common reserve.

One thread uses it, so nobody waits in here: `take` says None and the caller comes back. A buffer goes back when nothing can
read it any more (its answer came, its write failed, or its connection is closed) and never earlier: a record batch does not
name its topic, so bytes overwritten too early would end up in a foreign one.
"""

from collections import deque
from typing import Final, NamedTuple


class Tag(NamedTuple):
    """Whose bytes a buffer holds. `first` is the first ordinal."""

    partition: int
    generation: int
    first: int


class Buffer:
    """Bytes lent to one batch. `uses` counts how often they were lent; `tag` is None while nobody has them."""

    __slots__ = ("data", "node", "tag", "uses")

    def __init__(self, data: bytearray, node: int, tag: Tag | None) -> None:
        self.data: Final = data
        self.node = node
        self.tag = tag
        self.uses = 1

    def belongs_to(self, tag: Tag, uses: int) -> bool:
        """Whether the bytes are still those lent under `tag` for the `uses`-th time."""
        return self.tag == tag and self.uses == uses


class BufferPool:
    """Buffers of `poolable_bytes`, and larger ones made when asked for; `total_bytes` in all, lent and free ones together.

    A node may hold its budget, and beyond it what is left of the reserve, which is what the budgets leave of the total. So that
    a budget smaller than a batch cannot stop a node, a node that holds nothing gets one buffer in any case: the total may be
    exceeded by that much, once per node.
    """

    def __init__(self, total_bytes: int, poolable_bytes: int) -> None:
        """
        Raises:
            ValueError: not even one poolable buffer would fit.
        """
        if not 0 < poolable_bytes <= total_bytes:
            raise ValueError(f"a pool of {total_bytes} bytes cannot hold a buffer of {poolable_bytes}")
        self.total_bytes: Final = total_bytes
        self.poolable_bytes: Final = poolable_bytes
        self._free: deque[Buffer] = deque()
        self._budgets: dict[int, int] = {}
        self._lent: dict[int, int] = {}
        self._starved: set[int] = set()
        self._lent_bytes = 0
        self._exhausted = 0

    @property
    def lent_bytes(self) -> int:
        return self._lent_bytes

    @property
    def free_bytes(self) -> int:
        """What the pool keeps for the next batches."""
        return len(self._free) * self.poolable_bytes

    @property
    def exhausted_count(self) -> int:
        """How often `take` said no."""
        return self._exhausted

    def lent_to(self, node: int) -> int:
        """Bytes a node's batches hold."""
        return self._lent.get(node, 0)

    def starved(self, node: int) -> bool:
        """Whether the node was refused a buffer since it last got one: its batches are better sent than held for company."""
        return node in self._starved

    def set_budget(self, node: int, budget_bytes: int) -> None:
        """What the node may hold without touching the reserve; 0 forgets it. Holds from the next `take` on."""
        if budget_bytes > 0:
            self._budgets[node] = budget_bytes
        else:
            self._budgets.pop(node, None)
            self._starved.discard(node)

    def reserve_bytes(self) -> int:
        """What is left of the common reserve; below 0 if budgets shrank or exceed the total."""
        left = self.total_bytes - sum(self._budgets.values())
        return left - sum(max(0, lent - self._budgets.get(node, 0)) for node, lent in self._lent.items())

    def room(self, node: int) -> int:
        """Bytes that the node may still be lent."""
        return max(0, self._budgets.get(node, 0) - self._lent.get(node, 0)) + max(0, self.reserve_bytes())

    def take(self, node: int, size: int, tag: Tag) -> Buffer | None:
        """A buffer of at least `size` bytes, or None while the node's budget and the reserve have no room.

        Raises:
            ValueError: no pool of this size can ever lend that much.
        """
        if size > self.total_bytes:
            raise ValueError(f"{size} bytes are more than the pool's {self.total_bytes}")
        size = max(size, self.poolable_bytes)
        if not self._has_room(node, size):
            self._exhausted += 1
            self._starved.add(node)
            return None
        self._starved.discard(node)
        self._lent[node] = self._lent.get(node, 0) + size
        self._lent_bytes += size
        if size == self.poolable_bytes and self._free:
            buffer = self._free.popleft()
            buffer.node, buffer.tag, buffer.uses = node, tag, buffer.uses + 1
            return buffer
        while self._free and self._lent_bytes + self.free_bytes > self.total_bytes:
            self._free.pop()
        return Buffer(bytearray(size), node, tag)

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back. Nothing may read it afterwards."""
        assert buffer.tag is not None, "a buffer came back twice"
        size = len(buffer.data)
        left = self._lent[buffer.node] - size
        assert left >= 0, "more came back than was lent"
        if left:
            self._lent[buffer.node] = left
        else:
            del self._lent[buffer.node]
        self._lent_bytes -= size
        buffer.tag = None
        if size == self.poolable_bytes and self._lent_bytes + self.free_bytes + size <= self.total_bytes:
            self._free.append(buffer)

    def _has_room(self, node: int, size: int) -> bool:
        lent = self._lent.get(node, 0)
        if lent == 0:
            return True
        beyond = lent + size - max(lent, self._budgets.get(node, 0))
        return beyond <= 0 or beyond <= self.reserve_bytes()
