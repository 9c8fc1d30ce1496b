"""Shards and a broker for the lease machine: they keep the rules a shard must keep, and assert those it is owed."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.daemon.leases.batch_bounds import stamp_row_at
from penstock.wire.journal import LIVE, JournalSlot
from penstock.wire.messages import (
    FIRST,
    OPEN,
    BatchBounds,
    BatchesDone,
    BatchRefused,
    Credit,
    DoneBatch,
    FlushPartitions,
    Grant,
    Move,
    Nodes,
    Pace,
    Revoke,
    Revoked,
    RouterMessage,
    ShardMessage,
    SliceRef,
    Slices,
    StampRow,
    Stop,
)

from tests.fakes.lease_desk import WALL_OFFSET_MS

WINDOW = 5
INVALID_RECORD = 87


@dataclass
class BrokerPartition:
    """A log that checks stamps as Kafka does: duplicates among the last five, gaps refused, an epoch begins at 0."""

    log: list[int] = field(default_factory=list)
    poison: set[int] = field(default_factory=set)
    state: tuple[int, int, int] | None = None
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def produce(self, row: StampRow, ordinals: list[int]) -> int | list[int] | None:
        """Base offset, or the indexes of refused records, or None: out of order."""
        refused = [index for index, ordinal in enumerate(ordinals) if ordinal in self.poison]
        if refused:
            return refused
        first = ordinals[0] - row.base
        last = first + len(ordinals) - 1
        if self.state is not None and self.state[:2] == (row.producer_id, row.epoch):
            known = self.remembers(row, ordinals)
            if known is not None:
                return known
            if first != self.state[2] + 1:
                return None
        elif self.state is not None and self.state[0] == row.producer_id and (row.epoch < self.state[1] or first != 0):
            return None
        if self.state is None or self.state[:2] != (row.producer_id, row.epoch):
            self.recent.clear()
        self.state = (row.producer_id, row.epoch, last)
        offset = len(self.log)
        self.recent.append((first, last, offset))
        self.log += ordinals
        return offset

    def remembers(self, row: StampRow, ordinals: Sequence[int]) -> int | None:
        """Base offset of a batch among the last five."""
        first = ordinals[0] - row.base
        last = first + len(ordinals) - 1
        if self.state is None or self.state[:2] != (row.producer_id, row.epoch):
            return None
        return next((offset for one, end, offset in self.recent if (one, end) == (first, last)), None)


@dataclass
class Batch:
    cut: BatchBounds
    slot: int
    inherited: bool
    answer: int | list[int] | None = None
    sent: bool = False


@dataclass
class Held:
    """One lease as a shard has it."""

    grant: Grant
    pace: str
    end: int
    cut_through: int
    refs: list[SliceRef] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    owed_pace: bool = False
    waiting: bool = False

    def holes(self) -> set[int]:
        rows, found = self.grant.rows, set[int]()
        for before, after in pairwise(rows):
            if (before.producer_id, before.epoch) == (after.producer_id, after.epoch):
                found |= set(range(after.start - (after.base - before.base), after.start))
        return found


class FakeShard:
    """A shard process: what it was told and has not read, what it said and nobody has read, what is in its journal."""

    def __init__(self, seat: int, brokers: dict[int, BrokerPartition]) -> None:
        self.seat = seat
        self.brokers = brokers
        self.inbox: deque[RouterMessage] = deque()
        self.outbox: deque[ShardMessage] = deque()
        self.leases: dict[int, Held] = {}
        self.journal: dict[int, JournalSlot] = {}
        self.serial = 0
        self.credit: dict[int, int] = {}
        self.nodes: set[int] = set()
        self.freed_by: list[tuple[ShardMessage, list[int]]] = []

    # --- what the router says ----------------------------------------------------------------------------------------

    def hear(self) -> None:
        message = self.inbox.popleft()
        match message:
            case Grant():
                self._granted(message)
            case Slices():
                for ref in message.refs:
                    self._ref(ref)
            case Pace():
                held = self.leases.get(message.partition)
                if held is not None and held.grant.generation == message.generation:
                    held.pace, held.owed_pace = message.pace, False
            case Move():
                held = self.leases.get(message.partition)
                if held is not None and held.grant.generation == message.generation:
                    assert message.node in self.nodes
                    for batch in held.batches:
                        batch.inherited = batch.inherited or batch.sent
                        batch.sent = False
            case Revoke():
                self._revoked(message)
            case Nodes():
                self.nodes = {node.node for node in message.nodes}
                for node in self.nodes:
                    self.credit[node] = self.credit.get(node, 0) + 10_000
                    self.say(Credit(node, self.credit[node]))
            case Stop() | FlushPartitions() | _:
                pass

    def _granted(self, grant: Grant) -> None:
        assert grant.partition not in self.leases, "a second grant of what is held"
        assert grant.node in self.nodes, "a grant at a node that is not ours"
        assert not grant.cuts or grant.cuts[0].first == grant.next_ordinal
        held = Held(grant, grant.pace, grant.next_ordinal, grant.next_ordinal)
        self.leases[grant.partition] = held
        for cut in grant.cuts:
            assert cut.first >= held.cut_through
            held.batches.append(Batch(cut, -1, inherited=True))
            held.cut_through = cut.first + cut.count

    def _ref(self, ref: SliceRef) -> None:
        held = self.leases.get(ref.partition)
        if held is None or held.grant.generation != ref.generation:
            return
        assert ref.first <= held.end < ref.first + ref.count or not held.refs or self._hole(held, ref.first)
        held.refs.append(ref)
        held.end = ref.first + ref.count

    @staticmethod
    def _hole(held: Held, first: int) -> bool:
        return all(ordinal in held.holes() for ordinal in range(held.end, first))

    def _revoked(self, message: Revoke) -> None:
        held = self.leases.get(message.partition)
        if held is not None and held.grant.generation == message.generation:
            del self.leases[message.partition]
            cuts = [batch.cut for batch in held.batches]
            self.say(Revoked(message.partition, message.generation, cuts))
            self.freed_by.append((self.outbox[-1], [b.slot for b in held.batches if b.slot >= 0]))

    # --- what it does by itself --------------------------------------------------------------------------------------

    def say(self, message: ShardMessage) -> None:
        self.outbox.append(message)

    def said(self, message: ShardMessage) -> list[int]:
        """The router has written what follows from this message: these slots are free."""
        slots = [slot for sent, numbers in self.freed_by if sent is message for slot in numbers]
        self.freed_by = [(sent, numbers) for sent, numbers in self.freed_by if sent is not message]
        for slot in slots:
            _ = self.journal.pop(slot, None)
        return slots

    def cut(self, partition: int, wanted: int) -> bool:
        """Cut the next batch, as wide as pace, rows and holes allow."""
        held = self.leases.get(partition)
        if held is None or held.waiting or held.owed_pace or len(held.batches) >= WINDOW:
            return False
        if held.pace != OPEN and held.batches:
            return False
        holes, first = held.holes(), held.cut_through
        while first in holes:
            first += 1
        row = stamp_row_at(held.grant.rows, first)
        count = 0
        while count < (1 if held.pace == FIRST else wanted) and first + count < held.end:
            at = first + count
            if at in holes or stamp_row_at(held.grant.rows, at) is not row:
                break
            count += 1
        if count == 0 or row is None:
            return False
        held.batches.append(Batch(BatchBounds(first, count, row.epoch), -1, inherited=False))
        held.cut_through = first + count
        return True

    def send(self, partition: int) -> bool:
        """Journal and send the oldest batch that is not on the wire. Inherited ones go one at a time."""
        held = self.leases.get(partition)
        if held is None or held.waiting:
            return False
        batch = next((batch for batch in held.batches if not batch.sent), None)
        if batch is None or batch.cut.first + batch.cut.count > held.end:
            return False
        if batch is not held.batches[0] and (held.pace != OPEN or any(b.inherited for b in held.batches)):
            return False
        row = stamp_row_at(held.grant.rows, batch.cut.first)
        assert row is not None
        if batch.slot < 0:
            self.serial += 1
            batch.slot = self.serial
            self.journal[batch.slot] = JournalSlot(
                self.serial, partition, held.grant.generation, *batch.cut, LIVE, row.producer_id
            )
        batch.sent = True
        ordinals = list(range(batch.cut.first, batch.cut.first + batch.cut.count))
        batch.answer = self.brokers[partition].produce(row, ordinals)
        return True

    def answer(self, partition: int) -> bool:
        """The answer for the oldest batch arrives."""
        held = self.leases.get(partition)
        if held is None or held.waiting or not held.batches or not held.batches[0].sent:
            return False
        batch = held.batches[0]
        resolved = [batch]
        if batch.answer is None:
            # It has left the broker's memory: the newest that is remembered tells of all before it.
            resolved = self._probed(held)
            batch = resolved[-1]
        first, count, _ = batch.cut
        if isinstance(batch.answer, list):
            held.waiting = True
            errors = [(index, "poison") for index in batch.answer]
            grant = held.grant
            self.say(
                BatchRefused(
                    partition, grant.generation, first, count, INVALID_RECORD, "", errors, ambiguous=batch.inherited
                )
            )
            return True
        assert batch.answer is not None
        del held.batches[: len(resolved)]
        held.owed_pace = held.pace == FIRST
        item = DoneBatch(
            partition,
            held.grant.generation,
            first,
            count,
            batch.answer,
            WALL_OFFSET_MS,
            -1,
            0,
            held.grant.leader_epoch,
            1,
        )
        self.say(BatchesDone([item]))
        self.freed_by.append((self.outbox[-1], [one.slot for one in resolved if one.slot >= 0]))
        return True

    def _probed(self, held: Held) -> list[Batch]:
        """The batches that one which is remembered resolves, itself the last."""
        for place in range(len(held.batches) - 1, -1, -1):
            batch = held.batches[place]
            row = stamp_row_at(held.grant.rows, batch.cut.first)
            assert row is not None
            ordinals = range(batch.cut.first, batch.cut.first + batch.cut.count)
            batch.answer = self.brokers[held.grant.partition].remembers(row, ordinals)
            if batch.answer is not None:
                return held.batches[: place + 1]
        raise AssertionError(f"out of order: {held}")
