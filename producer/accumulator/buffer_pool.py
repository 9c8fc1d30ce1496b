"""Bounded memory: encoded batches with a budget per broker, and records that callers wait for.

A batch's memory is lent as a `Buffer` and never waited for: `allocate` says None and the caller comes back. It goes back when nothing
can read it any more (its answer came, its write failed, or its connection is closed) and never earlier: a record batch does not
name its topic, so bytes overwritten too early would end up in a foreign one.

A record's memory is reserved as a number of bytes and may be waited for with a `MemoryWaiter`. Tickets are served in the order in which
they began to wait. What comes back goes to the first of them at once, in parts if it must be, so a large one is not starved by
small ones, and who comes later finds nothing: nobody overtakes a ticket. Both kinds of memory count for the broker that they are
for, and a ticket is only behind those that want what it wants: the budget of its node, or the common reserve.

Whoever calls from several threads holds one lock around every call, also around those of a ticket. Nothing in here waits.
"""

from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from ...api.errors import BufferExhaustedError, ClosedError

ANY_NODE: Final = -1
"""Memory that counts for no node: it comes out of the common reserve."""
_CLOSED: Final = "the producer was closed while memory was waited for"


class BufferOwner(NamedTuple):
    """Whose bytes a buffer holds. `first` is the first ordinal."""

    partition: int
    generation: int
    first: int


class Buffer:
    """Bytes lent to one batch. `uses` counts how often they were lent; `owner` is None while nobody has them."""

    __slots__ = ("data", "node", "owner", "size", "uses")

    def __init__(self, data: bytearray, node: int, tag: BufferOwner | None) -> None:
        self.data: Final = data
        self.size = len(data)
        """Bytes that the pool counts for it."""
        self.node = node
        self.owner = tag
        self.uses = 1

    def belongs_to(self, tag: BufferOwner, uses: int) -> bool:
        """Whether the bytes are still those lent under `owner` for the `uses`-th time."""
        return self.owner == tag and self.uses == uses


class MemoryWaiter:
    """A place in the queue for `size` bytes for `node` until `deadline` (seconds). `granted`: they are reserved; they go back by
    `BufferPool.release` or by `cancel`, one of the two.

    As a context manager it is cancelled when the block ends with an exception, whichever it is.
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
        """Whether the bytes are reserved. To be called when woken, and at the deadline.

        Raises:
            BufferExhaustedError: the deadline came first; what was gathered is given back.
            ClosedError: the pool was closed meanwhile.
        """
        assert not self._ended, "a ticket was polled after its end"
        if self._pool.closed and self._waits:
            # Also where the bytes came meanwhile: nobody may be there any more to send what would be put there.
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
        """Give back what was reserved or gathered, and leave the queue; again does nothing."""
        if not self._ended:
            self._leave(self._began)

    def gather(self, nbytes: int) -> None:
        """The pool hands over so many bytes."""
        self.gathered += nbytes
        assert self.gathered <= self.size, "more gathered than wanted"
        self.granted = self.gathered == self.size

    def wake_owner(self) -> None:
        """Tell the owner that the next `poll` has something to say."""
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
    """`total_bytes` in all: lent, reserved, and free buffers of `poolable_bytes`; larger ones are made when asked for.

    A node may hold its budget, and beyond it what is left of the reserve, which is what the budgets leave of the total. So that
    a budget smaller than a batch cannot stop a node, a node that holds nothing gets one buffer in any case: the total may be
    exceeded by that much, once per node. Memory of records never exceeds it; a record's must fit into the reserve.
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
        self.closed = False
        self.exhausted_count = 0
        """How often `allocate` said no, or a ticket's time ran out."""
        self.waited_s = 0.0
        """How long tickets have waited, all together; those that were cancelled do not count."""
        self._free: deque[Buffer] = deque()
        self._budgets: dict[int, int] = {}
        self._budgeted_bytes = 0
        self._lent: dict[int, int] = {}
        self._reserved: dict[int, int] = {}
        self._beyond_bytes = 0
        """What nodes hold beyond their budgets."""
        self._starved: set[int] = set()
        self._lent_bytes = 0
        self._reserved_bytes = 0
        self._waiters: deque[MemoryWaiter] = deque()
        self.waiting_nodes: frozenset[int] = frozenset()
        """The nodes of the tickets that wait; may be read without the lock."""

    @property
    def lent_bytes(self) -> int:
        """What batches hold."""
        return self._lent_bytes

    @property
    def reserved_bytes(self) -> int:
        """What records hold, and what tickets have gathered."""
        return self._reserved_bytes

    @property
    def free_bytes(self) -> int:
        """What the pool keeps for the next batches."""
        return len(self._free) * self.poolable_bytes

    @property
    def available_bytes(self) -> int:
        """What nobody holds, free buffers included."""
        return self.total_bytes - self._lent_bytes - self._reserved_bytes

    @property
    def unallocated_bytes(self) -> int:
        """Available bytes that no free buffer takes."""
        return self.available_bytes - self.free_bytes

    @property
    def queued(self) -> int:
        """How many tickets wait: above 0, records are better sent than held for company."""
        return len(self._waiters)

    # --- memory of records -------------------------------------------------------------------------------------------

    def reserved_for(self, node: int) -> int:
        """Bytes that records for a node hold, and what its tickets have gathered."""
        return self._reserved.get(node, 0)

    def reservable_for(self, node: int) -> int:
        """Bytes that may be reserved for the node now."""
        room, available = self.available_for(node), self.total_bytes - self._lent_bytes - self._reserved_bytes
        return room if room <= available else max(0, available)

    def try_reserve(self, size: int, node: int = ANY_NODE) -> bool:
        """Reserve `size` bytes if they are there now. False: nothing is reserved, `reserve` says why or waits."""
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
        """A ticket for `size` bytes; granted already if they are there. While it waits, `wake` is called when it should be
        polled, from within the call that gave memory back or closed the pool.

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
        """Bytes that were reserved for a node come back, and go on to the first who waits for them."""
        self._reserve(-size, node)
        self._serve_waiters()

    def close(self) -> None:
        """All tickets that wait fail at their next poll, and nothing more is reserved. Bytes that are out may come back, and
        batches may still be lent memory: what was taken is sent."""
        self.closed = True
        for ticket in self._waiters:
            ticket.wake_owner()

    def waiter_ended(self, ticket: MemoryWaiter, waited_s: float) -> None:
        """A ticket is over; what it had goes on to the next."""
        if not ticket.granted:
            self._waiters.remove(ticket)
            self._update_waiting_nodes()
            self.waited_s += waited_s
        nbytes, ticket.gathered = ticket.gathered, 0
        self.release(nbytes, ticket.node)

    def exhausted(self, size: int, max_wait_s: float) -> BufferExhaustedError:
        """The error of a ticket whose time ran out."""
        self.exhausted_count += 1
        return BufferExhaustedError(
            f"Failed to allocate {size} bytes within the configured max blocking time {max_wait_s * 1000:.0f} ms. "
            f"Total memory: {self.total_bytes} bytes. Available memory: {self.available_bytes} bytes. "
            f"Poolable size: {self.poolable_bytes} bytes"
        )

    def _serve_waiters(self) -> None:
        # A ticket that stays has taken all there is for its node, the reserve included: those behind it find their budgets.
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
        """Bytes a node's batches hold."""
        return self._lent.get(node, 0)

    def starved(self, node: int) -> bool:
        """Whether the node was refused a buffer since it last got one: its batches are better sent than held for company."""
        return node in self._starved

    def has_budget(self, node: int) -> bool:
        """Whether the node may hold anything without touching the reserve."""
        return node in self._budgets

    def set_budget(self, node: int, budget_bytes: int) -> None:
        """What the node may hold without touching the reserve; 0 forgets it. Holds from the next `allocate` on."""
        self._set_budget(node, budget_bytes)
        self._serve_waiters()

    def share_out(self, budgets: Mapping[int, int]) -> None:
        """The budgets of all nodes; what was taken before stays counted where it is."""
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
        """What is left of the common reserve; below 0 if budgets shrank or exceed the total."""
        return self.total_bytes - self._budgeted_bytes - self._beyond_bytes

    def available_for(self, node: int) -> int:
        """Bytes that the node may still be lent."""
        own, reserve = self._budgets.get(node, 0) - self._held(node), self.reserve_bytes()
        return max(0, own) + max(0, reserve)

    def allocate(self, node: int, size: int, tag: BufferOwner) -> Buffer | None:
        """A buffer of at least `size` bytes, or None while the node's budget and the reserve have no room.

        Raises:
            ValueError: no pool of this size can ever lend that much.
            MemoryError: the machine has no more; nothing is lent.
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
        """Make a lent buffer longer, within the room of its node."""
        assert more <= self.available_for(buffer.node), "more than there is room for"
        buffer.data.extend(bytes(more))
        self._resize(buffer)
        self._trim()

    def shrunk(self, buffer: Buffer) -> int:
        """A lent buffer may have become shorter; by how much."""
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
        """Let free buffers go that are not covered any more."""
        while self._free and self.unallocated_bytes < 0:
            _ = self._free.pop()

    def _has_room(self, node: int, size: int) -> bool:
        if node not in self._lent:
            return True
        held = self._held(node)
        beyond = held + size - max(held, self._budgets.get(node, 0))
        return beyond <= 0 or beyond <= self.reserve_bytes()
