"""Selects the partitions of a node's next request, and describes requests in flight.

The partition (`Sendable`) decides which batch it may send. Per node there is a ring of partitions that can send now, in
order of their last turn, and a heap of those that can send later: no operation scans all partitions.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ..accumulator.batch import ProducerBatch
from ..protocol.produce_request import PartitionProduceResponse

REQUEST_OVERHEAD_BYTES: Final = 256


class SendPermit(NamedTuple):
    """State of the connection that a batch would be sent on. `journal_slots_left`: how many cuts can still be recorded;
    `in_flight_max`: how many requests may be in flight on the connection."""

    incarnation: int
    journal_slots_left: int
    in_flight_max: int


class Sendable(Protocol):
    """A partition, as `ReadyPartitions` uses it."""

    node: int
    unjournaled: int
    """Number of cuts to record before the batch just taken is sent, its own included."""

    def ready_at(self, now: float) -> float | None:
        """From when on `take` may return a batch if nothing else happens; None: not before some event."""

    def estimated_bytes(self) -> int:
        """Size of the batch that `take` would return, by the estimate of its compression."""
        ...

    def take(self, permit: SendPermit, *, now: float) -> ProducerBatch | None:
        """Fix the cut of the batch to send now and return it; None: not now."""


S = TypeVar("S", bound=Sendable)


@dataclass(slots=True, eq=False)
class InFlightRequest(Generic[S]):
    """A Produce request in flight: its batches and its connection (`node` and `incarnation`)."""

    number: int
    node: int
    incarnation: int
    version: int
    entries: list[tuple[S, ProducerBatch]]
    size: int = 0
    sent_at: float = 0.0
    """CLOCK_MONOTONIC seconds."""


@dataclass(slots=True, eq=False)
class _Node(Generic[S]):
    ring: deque[S] = field(default_factory=deque[S])
    queued: set[int] = field(default_factory=set[int])
    heap: list[tuple[float, int, S]] = field(default_factory=list[tuple[float, int, S]])
    wake: dict[int, float] = field(default_factory=dict[int, float])


class ReadyPartitions(Generic[S]):
    """Gives the partitions of each node fair turns. Call `wake` after every change that may affect a `ready_at`."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node[S]] = {}
        self._count = 0
        self._flights = 0

    def wake(self, partition: S, *, now: float) -> None:
        """Update when this partition can send."""
        node = self._nodes.get(partition.node)
        if node is None:
            node = self._nodes[partition.node] = _Node()
        key = id(partition)
        if key in node.queued:
            return
        at = partition.ready_at(now)
        if at is None:
            _ = node.wake.pop(key, None)
        elif at <= now:
            _ = node.wake.pop(key, None)
            node.queued.add(key)
            node.ring.append(partition)
        elif node.wake.get(key) != at:
            node.wake[key] = at
            self._count += 1
            heapq.heappush(node.heap, (at, self._count, partition))

    def forget(self, partition: S) -> None:
        """Remove the partition from its node. Call it before `node` changes, or when the lease ends."""
        node = self._nodes.get(partition.node)
        if node is None:
            return
        key = id(partition)
        if key in node.queued:
            node.queued.discard(key)
            node.ring.remove(partition)
        if node.wake.pop(key, None) is not None:
            node.heap = [entry for entry in node.heap if entry[2] is not partition]
            heapq.heapify(node.heap)

    def has_work(self, node_id: int, *, now: float) -> bool:
        """Whether some partition of the node can send now."""
        node = self._nodes.get(node_id)
        if node is None:
            return False
        self._wake_due(node, now)
        return bool(node.ring)

    def queued(self, node_id: int) -> int:
        """Number of partitions of the node in its ring: they could send when last looked at."""
        node = self._nodes.get(node_id)
        return 0 if node is None else len(node.ring)

    def drain(self, node_id: int, permit: SendPermit, *, bytes_max: int, now: float) -> list[tuple[S, ProducerBatch]]:
        """The batches of the node's next request, at most one per partition; empty: there is nothing to send. After
        sending, the caller must `wake` their partitions, which puts them at the end of the ring.

        A partition whose batch does not fit into `bytes_max` is first next time. One that cannot send after all leaves
        the ring until it is ready again. The first batch is taken regardless of its size.
        """
        node = self._nodes.get(node_id)
        if node is None:
            return []
        self._wake_due(node, now)
        taken: list[tuple[S, ProducerBatch]] = []
        size = REQUEST_OVERHEAD_BYTES
        for _ in range(len(node.ring)):
            partition = node.ring[0]
            if taken and size + partition.estimated_bytes() > bytes_max:
                break
            _ = node.ring.popleft()
            node.queued.discard(id(partition))
            batch = partition.take(permit, now=now)
            if batch is None:
                self.wake(partition, now=now)
                continue
            left = permit.journal_slots_left - partition.unjournaled
            permit = SendPermit(permit.incarnation, left, permit.in_flight_max)
            taken.append((partition, batch))
            size += batch.size
        return taken

    def begin_request(
        self, node_id: int, incarnation: int, version: int, entries: list[tuple[S, ProducerBatch]]
    ) -> InFlightRequest[S]:
        """A new request with these batches, numbered."""
        self._flights += 1
        return InFlightRequest(
            self._flights, node_id, incarnation, version, entries, sum(batch.size for _, batch in entries)
        )

    def next_deadline(self) -> float | None:
        """When the next partition in a heap becomes ready."""
        first: float | None = None
        for node in self._nodes.values():
            self._tidy(node)
            if node.heap and (first is None or node.heap[0][0] < first):
                first = node.heap[0][0]
        return first

    def _wake_due(self, node: _Node[S], now: float) -> None:
        """Wake the partitions of the heap that are due."""
        while node.heap and node.heap[0][0] <= now:
            at, _, partition = heapq.heappop(node.heap)
            if node.wake.get(id(partition)) == at:
                self.wake(partition, now=now)

    @staticmethod
    def _tidy(node: _Node[S]) -> None:
        """Drop entries at the head of the heap that a later `wake` replaced."""
        while node.heap and node.wake.get(id(node.heap[0][2])) != node.heap[0][0]:
            _ = heapq.heappop(node.heap)


def match_outcomes(
    flight: InFlightRequest[S],
    outcomes: list[PartitionProduceResponse],
    key: Callable[[S, int], tuple[bytes | str, int]],
) -> list[tuple[S, ProducerBatch, PartitionProduceResponse | None]]:
    """Each batch of a request with its part of the response, matched by partition, not by position; None: missing.
    `key` returns how a response of a version identifies a partition: by topic id or name, and index."""
    found = {(outcome.topic_id or outcome.topic, outcome.index): outcome for outcome in outcomes}
    return [(partition, batch, found.get(key(partition, flight.version))) for partition, batch in flight.entries]
