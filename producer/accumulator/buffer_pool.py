"""Bounded memory for encoded batches, with a budget per broker, and for records, with a queue of waiters.

A batch borrows a `Buffer` and never waits: `allocate` returns None and the caller tries again later. The buffer must be
returned only when nothing can read it any more (response received, write failed, or connection closed): a record batch
does not name its topic, so bytes overwritten too early would be written to another topic.

A record reserves a number of bytes and may wait for them with a `MemoryWaiter`. Waiters are served in the order of
arrival. Released memory goes to the first waiter at once, in parts if necessary: small reservations cannot starve a
large one, and later callers cannot overtake it. Both kinds of memory count against the broker they are for. A waiter
waits only behind those that need the same memory: the budget of its node, or the common reserve.

Not thread-safe: several threads must hold one lock around every call, calls on waiters included. No method blocks.
"""

from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from ...api.errors import BufferExhaustedError, ClosedError

ANY_NODE: Final = -1
"""Node number for memory that counts against no node's budget: it comes from the common reserve."""
_CLOSED: Final = "the producer was closed while memory was waited for"


class BufferOwner(NamedTuple):
    """Identifies the batch whose bytes a buffer holds. `first` is its first ordinal."""

    partition: int
    generation: int
    first: int


class Buffer:
    """Bytes lent to one batch. `uses` counts how often they were lent; `owner` is None while they are free."""

    __slots__ = ("data", "node", "owner", "size", "uses")

    def __init__(self, data: bytearray, node: int, tag: BufferOwner | None) -> None:
        self.data: Final = data
        self.size = len(data)
        """Bytes that the pool counts for this buffer."""
        self.node = node
        self.owner = tag
        self.uses = 1

    def belongs_to(self, tag: BufferOwner, uses: int) -> bool:
        """Whether the buffer is still lent to `tag`, for the `uses`-th time."""
        return self.owner == tag and self.uses == uses


class MemoryWaiter:
    """Waits for `size` bytes for `node` until `deadline` (seconds). Once `granted`, the bytes are reserved; return them
    with either `BufferPool.release` or `cancel`.

    As a context manager it is cancelled when the block raises any exception.
    """

    __slots__ = (
        "_began",
        "_ended",
        "_max_wait_s",
        "_pool",
        "_waits",
        "_wake",
        "deadline",
        "gathered",
        "granted",
        "node",
        "size",
    )

    def __init__(
        self, pool: "BufferPool", size: int, node: int, now: float, max_wait_s: float, wake: Callable[[], None] | None
    ) -> None:
        self.size: Final = size
        self.node: Final = node
        self.deadline: Final = now + max_wait_s
        self.gathered = 0
        self.granted = False
        self._pool: Final = pool
        self._began: Final = now
        self._max_wait_s: Final = max_wait_s
        self._wake: Final = wake
        self._ended = False
        self._waits = True

    def poll(self, now: float) -> bool:
        """Whether the bytes are reserved. Call it when woken, and at the deadline.

        Raises:
            BufferExhaustedError: the deadline passed; gathered bytes are returned to the pool.
            ClosedError: the pool was closed while this waited.
        """
        assert not self._ended, "a ticket was polled after its end"
        if self._pool.closed and self._waits:
            # Even if the bytes were granted meanwhile: the sender may have stopped, so the record would never be sent.
            self._leave(now)
            raise ClosedError(_CLOSED)
        if self.granted:
            if self._waits:
                self._waits = False
                self._pool.waited_s += now - self._began
            return True
        if now < self.deadline:
            return False
        self._leave(now)
        raise self._pool.exhausted(self.size, self._max_wait_s)

    def cancel(self) -> None:
        """Return reserved or gathered bytes and leave the queue. Idempotent."""
        if not self._ended:
            self._leave(self._began)

    def gather(self, nbytes: int) -> None:
        """Add bytes that the pool assigned; only the pool calls this."""
        self.gathered += nbytes
        assert self.gathered <= self.size, "more gathered than wanted"
        self.granted = self.gathered == self.size

    def wake_owner(self) -> None:
        """Call `wake`: the next `poll` will return True or raise."""
        if self._wake is not None:
            self._wake()

    def _leave(self, now: float) -> None:
        self._ended = True
        self._pool.waiter_ended(self, now - self._began)
        self.granted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.cancel()


class BufferPool:
    """`total_bytes` in all: lent, reserved, and free buffers of `poolable_bytes`. Larger buffers are created on demand.

    A node may hold its budget, and beyond it what is left of the reserve (the total minus all budgets). A node without
    any buffer always gets one, so that a budget smaller than a batch cannot block it: the total may be exceeded by
    that much, once per node. Memory of records never exceeds the total; a record must fit into the reserve.
    """

    def __init__(self, total_bytes: int, poolable_bytes: int) -> None:
        """
        Raises:
            ValueError: `poolable_bytes` is not between 1 and `total_bytes`.
        """
        if not 0 < poolable_bytes <= total_bytes:
            raise ValueError(f"a pool of {total_bytes} bytes cannot hold a buffer of {poolable_bytes}")
        self.total_bytes: Final = total_bytes
        self.poolable_bytes: Final = poolable_bytes
        self.closed = False
        self.exhausted_count = 0
        """How often `allocate` returned None or a waiter timed out."""
        self.waited_s = 0.0
        """Total waiting time of all waiters, without those cancelled."""
        self._free: deque[Buffer] = deque()
        self._budgets: dict[int, int] = {}
        self._budgeted_bytes = 0
        self._lent: dict[int, int] = {}
        self._reserved: dict[int, int] = {}
        self._beyond_bytes = 0
        """Bytes that nodes hold beyond their budgets."""
        self._starved: set[int] = set()
        self._lent_bytes = 0
        self._reserved_bytes = 0
        self._waiters: deque[MemoryWaiter] = deque()
        self.waiting_nodes: frozenset[int] = frozenset()
        """The nodes of the queued waiters; may be read without the lock."""

    @property
    def lent_bytes(self) -> int:
        """Bytes lent to batches."""
        return self._lent_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that records hold and waiters have gathered."""
        return self._reserved_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes in free buffers, kept for later batches."""
        return len(self._free) * self.poolable_bytes

    @property
    def available_bytes(self) -> int:
        """Bytes neither lent nor reserved, including free buffers."""
        return self.total_bytes - self._lent_bytes - self._reserved_bytes

    @property
    def unallocated_bytes(self) -> int:
        """Available bytes outside free buffers."""
        return self.available_bytes - self.free_bytes

    @property
    def queued(self) -> int:
        """Number of waiters. Above 0, batches should be sent without linger."""
        return len(self._waiters)

    # --- memory of records -------------------------------------------------------------------------------------------

    def reserved_for(self, node: int) -> int:
        """Bytes that a node's records hold and its waiters have gathered."""
        return self._reserved.get(node, 0)

    def reservable_for(self, node: int) -> int:
        """Bytes that may be reserved for the node now."""
        room, available = self.available_for(node), self.total_bytes - self._lent_bytes - self._reserved_bytes
        return room if room <= available else max(0, available)

    def try_reserve(self, size: int, node: int = ANY_NODE) -> bool:
        """Reserve `size` bytes if available now. False: nothing is reserved; `reserve` waits or raises the reason."""
        if self.closed or size > self.reservable_for(node):
            return False
        self._reserve(size, node)
        return True

    def reserve(
        self,
        size: int,
        node: int = ANY_NODE,
        *,
        now: float,
        max_wait_s: float,
        wake: Callable[[], None] | None = None,
    ) -> MemoryWaiter:
        """A waiter for `size` bytes, already granted if they are available. `wake` is called when the waiter should be
        polled, from within the call that released memory or closed the pool.

        Raises:
            ValueError: the pool could never lend that much.
            ClosedError: the pool is closed.
        """
        if size > self.total_bytes:
            raise ValueError(f"{size} bytes are wanted for one record; all memory for records is {self.total_bytes}")
        if self.closed:
            raise ClosedError(_CLOSED)
        ticket = MemoryWaiter(self, size, node, now, max_wait_s, wake)
        if self.try_reserve(size, node):
            ticket.gather(size)
        else:
            self._waiters.append(ticket)
            self._serve_waiters()
            self._update_waiting_nodes()
        return ticket

    def release(self, size: int, node: int = ANY_NODE) -> None:
        """Return bytes that were reserved for a node, and serve waiters with them."""
        self._reserve(-size, node)
        self._serve_waiters()

    def close(self) -> None:
        """Fail all waiters at their next poll, and reserve nothing more. Memory can still be returned, and batches can
        still allocate, so that accepted records are sent."""
        self.closed = True
        for ticket in self._waiters:
            ticket.wake_owner()

    def waiter_ended(self, ticket: MemoryWaiter, waited_s: float) -> None:
        """Remove a waiter that ended; its bytes go to the next waiters. Only `MemoryWaiter` calls this."""
        if not ticket.granted:
            self._waiters.remove(ticket)
            self._update_waiting_nodes()
            self.waited_s += waited_s
        nbytes, ticket.gathered = ticket.gathered, 0
        self.release(nbytes, ticket.node)

    def exhausted(self, size: int, max_wait_s: float) -> BufferExhaustedError:
        """Count a waiter that timed out, and return its error."""
        self.exhausted_count += 1
        return BufferExhaustedError(
            f"Failed to allocate {size} bytes within the configured max blocking time {max_wait_s * 1000:.0f} ms. "
            f"Total memory: {self.total_bytes} bytes. Available memory: {self.available_bytes} bytes. "
            f"Poolable size: {self.poolable_bytes} bytes"
        )

    def _serve_waiters(self) -> None:
        # A waiter that stays queued has taken all its node can get, the whole reserve included. Waiters behind it can
        # still get memory from the budgets of other nodes.
        for ticket in list(self._waiters) if self._waiters else ():
            nbytes = min(ticket.size - ticket.gathered, self.reservable_for(ticket.node))
            self._reserve(nbytes, ticket.node)
            ticket.gather(nbytes)
            if ticket.granted:
                self._waiters.remove(ticket)
                self._update_waiting_nodes()
                ticket.wake_owner()

    def _update_waiting_nodes(self) -> None:
        self.waiting_nodes = frozenset(ticket.node for ticket in self._waiters)

    def _reserve(self, more: int, node: int) -> None:
        self._charge(self._reserved, node, more)
        self._reserved_bytes += more
        if self._free:
            self._trim()

    # --- memory of batches -------------------------------------------------------------------------------------------

    def lent_to(self, node: int) -> int:
        """Bytes lent to a node's batches."""
        return self._lent.get(node, 0)

    def starved(self, node: int) -> bool:
        """Whether the node's latest `allocate` failed: its batches should then be sent without linger."""
        return node in self._starved

    def has_budget(self, node: int) -> bool:
        """Whether the node has a budget of its own."""
        return node in self._budgets

    def set_budget(self, node: int, budget_bytes: int) -> None:
        """Set how much the node may hold without using the reserve; 0 removes the budget. Memory already lent stays."""
        self._set_budget(node, budget_bytes)
        self._serve_waiters()

    def share_out(self, budgets: Mapping[int, int]) -> None:
        """Set the budgets of all nodes. Memory already taken stays charged to its node."""
        for node in [node for node in self._budgets if node not in budgets]:
            self._set_budget(node, 0)
        for node, budget_bytes in budgets.items():
            self._set_budget(node, budget_bytes)
        self._serve_waiters()

    def _set_budget(self, node: int, budget_bytes: int) -> None:
        self._beyond_bytes -= self._beyond(node)
        self._budgeted_bytes += budget_bytes - self._budgets.get(node, 0)
        if budget_bytes > 0:
            self._budgets[node] = budget_bytes
        else:
            _ = self._budgets.pop(node, None)
            self._starved.discard(node)
        self._beyond_bytes += self._beyond(node)

    def _held(self, node: int) -> int:
        return self._lent.get(node, 0) + self._reserved.get(node, 0)

    def _beyond(self, node: int) -> int:
        return max(0, self._held(node) - self._budgets.get(node, 0))

    def reserve_bytes(self) -> int:
        """Bytes left of the common reserve; negative if budgets shrank or exceed the total."""
        return self.total_bytes - self._budgeted_bytes - self._beyond_bytes

    def available_for(self, node: int) -> int:
        """Bytes that the node may still take from its budget and the reserve."""
        own, reserve = self._budgets.get(node, 0) - self._held(node), self.reserve_bytes()
        return max(0, own) + max(0, reserve)

    def allocate(self, node: int, size: int, tag: BufferOwner) -> Buffer | None:
        """A buffer of at least `size` bytes, or None while the node's budget and the reserve have no room.

        Raises:
            ValueError: no pool of this size can ever lend that much.
            MemoryError: the system is out of memory; nothing is lent.
        """
        if size > self.total_bytes:
            raise ValueError(f"{size} bytes are more than the pool's {self.total_bytes}")
        size = max(size, self.poolable_bytes)
        if not self._has_room(node, size):
            self.exhausted_count += 1
            self._starved.add(node)
            return None
        if size == self.poolable_bytes and self._free:
            buffer = self._free.popleft()
            buffer.node, buffer.owner, buffer.uses = node, tag, buffer.uses + 1
        else:
            buffer = Buffer(bytearray(size), node, tag)
        self._starved.discard(node)
        self._count(node, size)
        self._trim()
        return buffer

    def deallocate(self, buffer: Buffer) -> None:
        """Take a buffer back. Nothing may read it afterwards."""
        assert buffer.owner is not None, "a buffer came back twice"
        size = buffer.size
        self._count(buffer.node, -size)
        buffer.owner = None
        if size == len(buffer.data) == self.poolable_bytes and size <= self.unallocated_bytes:
            self._free.append(buffer)
        self._serve_waiters()

    def grow(self, buffer: Buffer, more: int) -> None:
        """Enlarge a lent buffer by `more` bytes, at most `available_for` its node."""
        assert more <= self.available_for(buffer.node), "more than there is room for"
        buffer.data.extend(bytes(more))
        self._resize(buffer)
        self._trim()

    def shrunk(self, buffer: Buffer) -> int:
        """Account for a lent buffer whose `data` became shorter. Returns by how many bytes."""
        less = buffer.size - len(buffer.data)
        if less:
            self._resize(buffer)
            self._serve_waiters()
        return less

    def _resize(self, buffer: Buffer) -> None:
        self._count(buffer.node, len(buffer.data) - buffer.size)
        buffer.size = len(buffer.data)

    def _count(self, node: int, more: int) -> None:
        self._charge(self._lent, node, more)
        self._lent_bytes += more

    def _charge(self, account: dict[int, int], node: int, more: int) -> None:
        beyond = self._held(node) - self._budgets.get(node, 0)
        held = account.get(node, 0) + more
        assert held >= 0, "more came back than was taken"
        if held:
            account[node] = held
        else:
            _ = account.pop(node, None)
        if beyond > 0:
            self._beyond_bytes -= beyond
        if beyond + more > 0:
            self._beyond_bytes += beyond + more

    def _trim(self) -> None:
        """Drop free buffers that exceed the available bytes."""
        while self._free and self.unallocated_bytes < 0:
            _ = self._free.pop()

    def _has_room(self, node: int, size: int) -> bool:
        if node not in self._lent:
            return True
        held = self._held(node)
        beyond = held + size - max(held, self._budgets.get(node, 0))
        return beyond <= 0 or beyond <= self.reserve_bytes()
