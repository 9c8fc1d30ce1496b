"""All of a shard that decides, without a process: leases over slices in memory, a journal that is a dictionary, and model
brokers whose answers the test delivers, delays or loses."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.producer.accumulator.buffer_pool import BufferPool
from penstock.producer.accumulator.partition_queue import BatchRules
from penstock.producer.accumulator.slice_accumulator import SliceAccumulator
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.protocol.produce_request import LeaderHint, PartitionProduceResponse
from penstock.producer.records.compression import Codec, Levels, make_compressor
from penstock.producer.sender.idempotent import IdempotentPartition
from penstock.producer.sender.leader_checks import LeaderCheckResult
from penstock.producer.sender.modes import LeaderCheck, SendLimits, SendMode
from penstock.producer.sender.partitions import CreditRule, PartitionTable
from penstock.producer.sender.ready_nodes import InFlightRequest, SendPermit
from penstock.wire.journal import LIVE, JournalSlot
from penstock.wire.messages import (
    FIRST,
    OPEN,
    Anchor,
    BatchBounds,
    BatchesDone,
    DoneBatch,
    Grant,
    Move,
    Node,
    Nodes,
    Pace,
    Revoke,
    ShardMessage,
    SliceRef,
    Slices,
    StampRow,
)
from penstock.wire.record_ids import IdRow

from .model_broker import Answer, Log
from .segments import NOW_MS, slice_bytes
from .segments import Row as Record

PRODUCER_ID = 9
TOPIC = "t"
HOUR_MS = 3_600_000
SEQUENCES = 1 << 31
BATCH_BYTES = 2_000
BACKOFF = Backoff(0.1, 1.0)


@dataclass
class MemorySource:
    """One segment, in memory."""

    data: bytearray = field(default_factory=bytearray)
    reads: int = 0
    fault: str = ""

    def read(self, segment: int, offset: int, length: int) -> memoryview | str:
        assert segment == 1
        self.reads += 1
        if self.fault:
            return self.fault
        return memoryview(bytes(self.data[offset : offset + length]))


@dataclass
class OnWire:
    """A request: what is in it, and what the broker will say once it has seen it."""

    flight: InFlightRequest[IdempotentPartition]
    copies: list[tuple[int, int, int, bytes]]
    """Partition, first ordinal, count, bytes."""
    lost: bool = False


class ShardBench:
    """One shard. Partition numbers are indexes; node numbers are free."""

    def __init__(
        self, *, linger_s: float = 0.0, batch_bytes: int = BATCH_BYTES, pool_bytes: int = 1 << 20, codec: Codec = "none",
        slots: int = 1000, source: MemorySource | None = None, logs: dict[int, Log] | None = None,
        backoff: Backoff = BACKOFF,
    ) -> None:  # fmt: skip
        self.source = source or MemorySource()
        self.logs: dict[int, Log] = {} if logs is None else logs
        pool = BufferPool(pool_bytes, batch_bytes)
        rules = BatchRules(batch_bytes, linger_s, make_compressor(codec, Levels()))
        self.table = PartitionTable(
            SendLimits(backoff, 24 * HOUR_MS), SliceAccumulator(pool, self.source), lambda _topic: rules,
            CreditRule(2, 100_000),
        )  # fmt: skip
        self.pool = pool
        self.now = 1000.0
        self.table.wall.set_time(NOW_MS, now=self.now)
        self.slots = slots
        self.journal: dict[int, BatchBounds] = {}
        self.slots_of: dict[int, JournalSlot] = {}
        self.answers_questions = True
        self.hears = True
        """The router takes what the shard says at once; else it waits in the shard's outbox for `listen`."""
        self.serial = 0
        self.incarnation: dict[int, int] = {}
        self.wire: deque[OnWire] = deque()
        self.said: list[ShardMessage] = []
        self.done: list[DoneBatch] = []
        self.next: dict[int, int] = {}
        self.generation: dict[int, int] = {}
        self.budget = 1 << 20
        self.chance = 0.5
        """What spreads waits, in [0, 1): 0.5 is the middle."""

    # --- router ------------------------------------------------------------------------------------------------------

    def nodes(self, *numbers: int) -> None:
        self.table.apply(Nodes([Node(n, "h", 1, "", self.budget) for n in numbers]), now=self.now)
        for number in numbers:
            self.incarnation.setdefault(number, 1)

    def grant(
        self, partition: int = 0, *, node: int = 1, pace: str = OPEN, cuts: Sequence[BatchBounds] = (), next_ordinal: int = 0,
        anchored: bool = True, rows: Sequence[StampRow] = (StampRow(PRODUCER_ID, 0, 0, 0),), leader_epoch: int = 0,
        anchor: Anchor | None = None, id_rows: Sequence[IdRow] = (),
    ) -> IdempotentPartition:  # fmt: skip
        if node not in self.table.nodes:
            self.nodes(*self.table.nodes, node)
        self.generation[partition] = self.generation.get(partition, 0) + 1
        if anchor is None and anchored and pace != FIRST:
            anchor = Anchor(0, NOW_MS, NOW_MS, leader_epoch)
        grant = Grant(
            partition, TOPIC, None, partition, self.generation[partition], node, leader_epoch, list(rows), next_ordinal,
            list(cuts), pace, anchor, 0 if anchor else -1, 0, id_rows,
        )  # fmt: skip
        self.table.apply(grant, now=self.now)
        return self.table.partitions[partition]

    def ref(
        self, partition: int, values: Sequence[bytes], *, first: int | None = None, ts: int | None = None,
        ids: bool = False,
    ) -> SliceRef:  # fmt: skip
        """Spool a slice."""
        begin = self.next.get(partition, 0) if first is None else first
        rows = [Record(value, timestamp=ts) for value in values]
        data = slice_bytes(TOPIC, partition, begin, rows, ids=ids)
        at = len(self.source.data)
        self.source.data += data
        self.next[partition] = begin + len(values)
        return SliceRef(
            partition, self.generation.get(partition, 1), 1, at, len(data), begin, len(values), round(self.now * 1000),
            NOW_MS if ts is None else ts,
        )  # fmt: skip

    def hand(self, *refs: SliceRef) -> None:
        current = [ref._replace(generation=self.generation[ref.partition]) for ref in refs]
        self.table.apply(Slices(current), now=self.now)

    def put(self, partition: int, count: int, *, size: int = 20, ts: int | None = None, ids: bool = False) -> None:
        """Hand out one slice of `count` records whose values tell their ordinals."""
        begin = self.next.get(partition, 0)
        self.hand(self.ref(partition, [value_of(begin + n, size) for n in range(count)], ts=ts, ids=ids))

    def pace(self, pace: str = OPEN, partition: int = 0, anchor: Anchor | None = None) -> None:
        self.table.apply(Pace(partition, self.generation[partition], pace, anchor, -1), now=self.now)

    def move(self, node: int, leader_epoch: int, partition: int = 0) -> None:
        if node not in self.table.nodes:
            self.nodes(*self.table.nodes, node)
        self.table.apply(Move(partition, self.generation[partition], node, leader_epoch), now=self.now)

    def revoke(self, partition: int = 0) -> None:
        self.table.apply(Revoke(partition, self.generation[partition]), now=self.now)

    # --- the shell ---------------------------------------------------------------------------------------------------

    def tell(self, *, end: int = -1) -> None:
        """The leaders answer what they are asked: the log start of the model, and `end` for older epochs."""
        for node in self.table.nodes:
            for asked in self.table.due_checks(node, now=self.now):
                self.table.check_sent(asked, known=True, now=self.now)
                value = {
                    LeaderCheck.LOG_START: None,
                    LeaderCheck.EPOCH_END: end,
                    LeaderCheck.LOG_END: end,
                    LeaderCheck.TOPIC_ID: b"",
                }[asked.check]
                told = [
                    LeaderCheckResult(TOPIC, lease.index, 0, self.log(lease.index).start if value is None else value)
                    for lease in asked.partitions
                ]
                self.table.check_answered(asked, told, now=self.now, chance=0.5)
        self._told()

    def log(self, partition: int = 0) -> Log:
        return self.logs.setdefault(partition, Log(base=1))

    def send(self, *, in_flight_max: int = 5, bytes_max: int = 1 << 20) -> list[OnWire]:
        """A round: fill, then send what may be sent. Questions are answered, batches are not."""
        if self.answers_questions:
            self.tell()
        self.fill()
        sent: list[OnWire] = []
        for node in list(self.table.nodes):
            while sum(one.flight.node == node for one in self.wire) < in_flight_max:
                if not self.table.ready_partitions.has_work(node, now=self.now):
                    break
                request = self.request(node, in_flight_max=in_flight_max, bytes_max=bytes_max)
                if request is None:
                    break
                sent.append(request)
        self._told()
        return sent

    def fill(self) -> None:
        """Read what was handed out into batches, as far as memory goes."""
        while self.table.accumulator.has_unread:
            before = self.source.reads
            self.table.fill(now=self.now)
            if self.source.reads == before:
                break

    def request(self, node: int, *, in_flight_max: int = 5, bytes_max: int = 1 << 20) -> OnWire | None:
        """One request to a node, with what may be sent to it; None: nothing may."""
        permit = SendPermit(self.incarnation[node], self.slots - len(self.journal), in_flight_max)
        entries = self.table.drain(node, permit, bytes_max=bytes_max, now=self.now)
        if not entries:
            return None
        self._record(entries)
        flight = self.table.ready_partitions.begin_request(node, self.incarnation[node], 9, entries)
        self.table.request_sent(flight, now=self.now)
        copies = [(lease.partition, b.first, b.count, bytes(b.data or b"")) for lease, b in entries]
        self.wire.append(OnWire(flight, copies))
        return self.wire[-1]

    def _record(self, entries: list[tuple[IdempotentPartition, "object"]]) -> None:
        for lease, _ in entries:
            for batch in lease.unresolved:
                if batch.slot < 0:
                    assert len(self.journal) < self.slots, "no slot left"
                    self.serial += 1
                    batch.slot = self.serial
                    self.journal[self.serial] = BatchBounds(batch.first, batch.count, batch.epoch)
                    self.slots_of[self.serial] = JournalSlot(
                        self.serial, lease.partition, lease.generation, batch.first, batch.count, batch.epoch, LIVE,
                        batch.producer_id,
                    )  # fmt: skip
            lease.unjournaled = 0
            for slot in lease.replaced_slots:
                del self.journal[slot]
            lease.replaced_slots = []

    def _told(self) -> None:
        if self.hears:
            self.listen()

    def live_slots(self, partition: int) -> list[JournalSlot]:
        """What the journal of this shard says of a partition."""
        return [
            slot for serial, slot in self.slots_of.items() if serial in self.journal and slot.partition == partition
        ]

    def listen(self) -> None:
        """Take what the shard says; the router acknowledges at once."""
        for said in self.table.outbox.take():
            if isinstance(said.message, BatchesDone):
                self.done += said.message.items
            else:
                self.said.append(said.message)
            for slot in said.slots:
                del self.journal[slot]
        self.table.slots_freed(now=self.now)

    def judge(self, wire: OnWire) -> list[PartitionProduceResponse]:
        """The broker gets the request."""
        return [outcome(partition, self.log(partition).produce(data)) for partition, _, _, data in wire.copies]

    def answer(self, wire: OnWire | None = None, outcomes: list[PartitionProduceResponse] | None = None) -> None:
        """Deliver the answer to the oldest request on the wire, or to the one given; the broker's own unless told."""
        one = self.wire[0] if wire is None else wire
        self.wire.remove(one)
        told = self.judge(one) if outcomes is None else outcomes
        self.table.request_answered(one.flight, told, now=self.now, chance=self.chance)
        self._told()

    def refuse(self, code: int, *, wire: OnWire | None = None, log_start: int = -1, hint: LeaderHint | None = None,
               errors: Sequence[tuple[int, str]] = ()) -> None:  # fmt: skip
        """Answer every batch of a request with a code; the broker appends nothing."""
        one = self.wire[0] if wire is None else wire
        told = [
            outcome(partition, Answer(code, log_start=log_start))._replace(leader_hint=hint, record_errors=list(errors))
            for partition, *_ in one.copies
        ]
        self.answer(one, told)

    def cut_connection(self, node: int = 1, *, arrived: int = 0) -> None:
        """The connection ends; the first `arrived` requests on it reached the broker all the same."""
        lost = [one for one in self.wire if one.flight.node == node]
        for place, one in enumerate(lost):
            if place < arrived:
                _ = self.judge(one)
            self.wire.remove(one)
            self.table.request_lost(one.flight, "gone", now=self.now, chance=self.chance)
        self.incarnation[node] += 1
        self._told()

    def run(self, rounds: int = 200) -> None:
        """Send and answer until nothing moves; time passes where something waits for it."""
        for _ in range(rounds):
            _ = self.send()
            if self.wire:
                self.answer()
                continue
            at = self.table.ready_partitions.next_deadline()
            if at is None:
                return
            self.now = max(self.now, at)
        raise AssertionError("it goes on for ever")

    def mode(self, partition: int = 0) -> SendMode:
        return self.table.partitions[partition].mode

    def ordinals(self, partition: int = 0) -> list[int]:
        """What lies in the log."""
        return [ordinal_of(value) for value in self.log(partition).records]


def outcome(partition: int, answer: Answer) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        TOPIC, None, partition, answer.code, answer.base_offset, answer.log_append_ms, answer.log_start, [], "", None
    )


def value_of(ordinal: int, size: int = 20) -> bytes:
    return ordinal.to_bytes(8, "big") + b"." * (size - 8)


def ordinal_of(value: bytes) -> int:
    return int.from_bytes(value[:8], "big")
