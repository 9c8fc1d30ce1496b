"""Hands references to synced slices to the shards that hold their partitions, within the credit of each node (HOP-3).

A lane is one shard's connection to one node: its credit, and the leases with slices to hand out. A lane without credit
costs nothing until more credit arrives.

Credit returns when the shard has put slices into batches, which it does not do for a partition that cannot send. So no
partition may hold more than a quarter of the credit it leaves free: one stuck partition holds a fifth of the lane at
most, the next a fifth of the rest, and about twenty still leave credit for the others (DRN-4).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from ...wire.messages import NARROW, OPEN, FlushPartitions, RouterMessage, SliceRef, Slices
from ..ledger.entries import Lsn
from .lease import Lease
from .states import LeaseState

REFS_MAX: Final = 4_096
"""References in one message, about 256 KB."""
TURN_BYTES: Final = 256 << 10
"""Bytes that one partition may take of a lane's credit per turn, and may hold in any case, so that a batch can fill."""
_SHARES: Final = 4

Send = Callable[[int, RouterMessage], None]
SendPace = Callable[[Lease, str], None]


@dataclass(slots=True, eq=False)
class Lane:
    """Bytes of references since the shard's HELLO: `total` accepted by the shard, `used` handed out. `ready`: leases
    with slices to hand out. `at_share_limit`: leases at their share limit, until some slices end or credit arrives."""

    shard_id: int
    node: int
    total: int = 0
    used: int = 0
    ready: dict[int, Lease] = field(default_factory=dict)
    at_share_limit: dict[int, Lease] = field(default_factory=dict)


class _TurnEnd(Enum):
    """Why a lease's turn ended."""

    FINISHED = auto()
    """The turn is used up, or no more of its slices are synced."""
    NO_CREDIT = auto()
    """The lane has no credit left."""
    SHARE_LIMIT = auto()
    """The lease holds its share."""


class SliceDispatcher:
    """Owner of all lanes."""

    def __init__(self, send: Send, tell_pace: SendPace) -> None:
        self._send = send
        self._send_pace = tell_pace
        self._lanes: dict[tuple[int, int], Lane] = {}
        self.slices = 0
        self.bytes = 0

    def lane(self, seat: int, node: int) -> Lane:
        """The lane of a shard to a node, created on first use."""
        found = self._lanes.get((seat, node))
        if found is None:
            found = self._lanes[seat, node] = Lane(seat, node)
        return found

    def credit(self, seat: int, node: int, total: int) -> None:
        """The shard grants more credit. Totals only rise: an older message changes nothing."""
        lane = self.lane(seat, node)
        if total > lane.total:
            lane.total = total
            lane.ready |= lane.at_share_limit
            lane.at_share_limit.clear()

    def forget(self, seat: int) -> None:
        """The shard exited: drop its lanes and their credit."""
        for key in [key for key in self._lanes if key[0] == seat]:
            del self._lanes[key]

    def mark_ready(self, lease: Lease) -> None:
        """The lease is held and may have slices to hand out."""
        if lease.backlog.waiting:
            lane = self.lane(lease.shard_id, lease.node)
            _ = lane.at_share_limit.pop(lease.number, None)
            lane.ready[lease.number] = lease

    def share_freed(self, lease: Lease) -> None:
        """Some slices that the lease held have ended."""
        lane = self._lanes.get((lease.shard_id, lease.node))
        if lane is not None and lane.at_share_limit.pop(lease.number, None) is not None:
            lane.ready[lease.number] = lease

    def drop(self, lease: Lease) -> None:
        """The lease ends, or moves to another node."""
        lane = self._lanes.get((lease.shard_id, lease.node))
        if lane is not None:
            _ = lane.ready.pop(lease.number, None)
            _ = lane.at_share_limit.pop(lease.number, None)

    def run(self, synced: Lsn, old_before_ms: int) -> None:
        """Hand out synced slices within credit. Pace NARROW is sent before slices with timestamps older than
        `old_before_ms`."""
        for lane in self._lanes.values():
            if lane.ready and lane.used < lane.total:
                self._serve(lane, synced, old_before_ms)

    def _serve(self, lane: Lane, synced: Lsn, old_before_ms: int) -> None:
        refs: list[SliceRef] = []
        ready = lane.ready
        progress = True
        while progress and ready:
            progress = False
            # A served lease goes to the end of the queue, so that with little credit every lease gets a turn.
            for number in list(ready):
                lease = ready.pop(number)
                before = lane.used
                turn = self._take(lane, lease, synced, old_before_ms, refs)
                progress = progress or lane.used > before
                if lease.backlog.waiting:
                    (lane.at_share_limit if turn is _TurnEnd.SHARE_LIMIT else ready)[number] = lease
                if turn is _TurnEnd.NO_CREDIT:
                    progress = False
                    break
        self._flush(lane.shard_id, refs)

    def _take(self, lane: Lane, lease: Lease, synced: Lsn, old_before_ms: int, refs: list[SliceRef]) -> _TurnEnd:
        """Move slices of one lease into `refs`."""
        backlog = lease.backlog
        waiting, number, generation = backlog.waiting, lease.number, lease.generation
        used, total, turn_end = lane.used, lane.total, lane.used + TURN_BYTES
        held, turn, count = backlog.handed_out_bytes, _TurnEnd.FINISHED, 0
        while waiting and used < turn_end:
            head = waiting[0]
            length = head.length
            if head.lsn > synced:
                break
            if used + length > total:
                turn = _TurnEnd.NO_CREDIT
                break
            if (
                held + length > max((total - used) // _SHARES, TURN_BYTES)
                and held
                # Inherited batches are sent with their old bounds, and a trial needs all of its slices.
                and head.first >= lease.inherited_end
                and not backlog.is_restricted
            ):
                turn = _TurnEnd.SHARE_LIMIT
                break
            if head.max_ts < old_before_ms:
                self._narrow_for_old_slices(lane, lease, head.first + head.count, refs)
            _ = waiting.popleft()
            used += length
            held += length
            count += 1
            first, records = head.first, head.count
            refs.append(
                SliceRef(
                    number, generation, head.segment, head.offset, length, first, records, head.created_ms, head.max_ts
                )
            )
            backlog.handed_end = first + records
            if len(refs) >= REFS_MAX:
                self._flush(lane.shard_id, refs)
        self.slices += count
        self.bytes += used - lane.used
        lane.used = used
        backlog.handed_out_bytes = held
        return turn

    def _narrow_for_old_slices(self, lane: Lane, lease: Lease, end: int, refs: list[SliceRef]) -> None:
        lease.backlog.narrow_through = end
        if lease.pace == OPEN:
            self._flush(lane.shard_id, refs)
            self._send_pace(lease, NARROW)

    def _flush(self, seat: int, refs: list[SliceRef]) -> None:
        if refs:
            self._send(seat, Slices(refs.copy()))
            refs.clear()


@dataclass(slots=True, eq=False)
class _FlushRequest:
    """Skip linger up to ordinal `through`. `sent`: (generation, `through`) of the last FLUSH."""

    lease: Lease
    through: int
    sent: tuple[int, int] = (-1, -1)


class FlushRequests:
    """Sends FLUSH once everything up to a requested ordinal is handed out, and again under each later grant."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._open: dict[int, _FlushRequest] = {}

    def add(self, lease: Lease, through: int) -> None:
        """Skip linger up to this ordinal, which is not below the mark."""
        found = self._open.setdefault(lease.number, _FlushRequest(lease, through))
        found.through = max(found.through, through)

    def send(self) -> None:
        """Send what is due, and forget what is resolved."""
        if not self._open:
            return
        due: dict[int, list[tuple[int, int]]] = {}
        for number, flush in list(self._open.items()):
            lease = flush.lease
            if lease.durable.mark > flush.through:
                del self._open[number]
            elif lease.state is LeaseState.HELD and lease.backlog.handed_end > flush.through:
                sent = (lease.generation, flush.through)
                if flush.sent != sent:
                    flush.sent = sent
                    due.setdefault(lease.shard_id, []).append((number, flush.through))
        for seat, pairs in due.items():
            self._send(seat, FlushPartitions(pairs))
