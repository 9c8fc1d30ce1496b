"""The router's lease table and the shards' own cores around one model of Kafka: nothing between them but their messages.

What is not here is the outside: sockets, files, ZeroMQ. A message that was said may wait as long as the test likes; a process
that is killed loses what it has not said.
"""

from collections import deque
from collections.abc import Sequence

from penstock.daemon.leases.refused_batches import DeadLetterRequest
from penstock.daemon.ledger.entries import CheckpointEntry, FrameEntry, Lsn, ParkedEntry, SliceEntry
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.ledger.slices import PendingSlice, SliceEnded
from penstock.producer.protocol.produce_request import PartitionProduceResponse
from penstock.producer.sender.outbox import ShardOutboxEntry
from penstock.wire.journal import JournalSlot
from penstock.wire.messages import Nodes, RouterMessage

from tests.fakes.lease_desk import WALL_OFFSET_MS, Desk, a_frame
from tests.fakes.model_broker import Answer, Log
from tests.fakes.segments import Row, slice_bytes
from tests.fakes.shard_bench import TOPIC, MemorySource, OnWire, ShardBench, outcome, value_of

INVALID_RECORD = 87
NODES = (1, 2, 3)
TOPIC_ID = b"\x07" * 16
BATCH_BYTES = 400


class PoisonedBench(ShardBench):
    """A shard whose brokers refuse some records by their content."""

    def __init__(self, source: MemorySource, logs: dict[int, Log], poison: dict[int, set[int]]) -> None:
        super().__init__(source=source, logs=logs, batch_bytes=BATCH_BYTES)
        self.hears = False
        self.poison = poison
        self.outgoing: deque[ShardOutboxEntry] = deque()
        self.incoming: deque[RouterMessage] = deque()

    def judge(self, wire: OnWire) -> list[PartitionProduceResponse]:
        told: list[PartitionProduceResponse] = []
        for partition, first, count, data in wire.copies:
            bad = [n - first for n in sorted(self.poison[partition]) if first <= n < first + count]
            if bad:
                refused = outcome(partition, Answer(INVALID_RECORD))
                told.append(refused._replace(record_errors=[(index, "poison") for index in bad]))
            else:
                told.append(outcome(partition, self.log(partition).produce(data)))
        return told

    def hear(self) -> None:
        message = self.incoming.popleft()
        self.table.apply(message, now=self.now)
        if isinstance(message, Nodes):
            for node in message.nodes:
                self.incarnation.setdefault(node.node, 1)

    def speak(self) -> None:
        """What it has to say is on its way; from here on its own death does not take it back."""
        self.outgoing += [ShardOutboxEntry(credit, []) for credit in self.table.credits()]
        self.outgoing += self.table.outbox.take()


class JoinedWorld:
    """One router, up to two shards, three partitions on three nodes."""

    def __init__(self) -> None:
        self.source = MemorySource()
        self.logs = {number: Log() for number in range(3)}
        self.poison: dict[int, set[int]] = {number: set() for number in range(3)}
        self.parked: dict[int, set[int]] = {number: set() for number in range(3)}
        self.pieces: dict[int, list[PendingSlice]] = {number: [] for number in range(3)}
        self.shards: dict[int, PoisonedBench] = {}
        self.leaders = {number: (number + 1, 1) for number in range(3)}
        self.spooled: list[PendingSlice] = []
        self.synced = 0
        self.requests: list[DeadLetterRequest] = []
        self.ended: list[SliceEnded] = []
        self.desk = Desk()
        for index in range(3):
            _ = self.desk.partition(index, TOPIC, TOPIC_ID)
        self.begin_router()

    def begin_router(self) -> None:
        self.desk.leases.set_producer_id(9)
        self.metadata()
        for seat in (0, 1):
            self.greet(seat)

    @property
    def wall_ms(self) -> int:
        return WALL_OFFSET_MS + int(self.desk.now * 1000)

    def metadata(self) -> None:
        self.desk.cluster(
            *((index, *leader) for index, leader in self.leaders.items()), nodes=NODES, topic=TOPIC, topic_id=TOPIC_ID
        )

    def greet(self, seat: int) -> None:
        if seat not in self.shards:
            self.shards[seat] = PoisonedBench(self.source, self.logs, self.poison)
            self.shards[seat].now = self.desk.now
            self.shards[seat].table.wall.set_time(self.wall_ms, now=self.desk.now)
            self.desk.leases.shard_connected(seat, self.desk.now)
            self.desk.leases.shard_ready(seat, self.desk.now)

    def frame(self, number: int, count: int, poison: Sequence[int] = ()) -> None:
        state = self.desk.ledger.by_number[number]
        first = state.next_ordinal
        rows = [Row(value_of(first + n)) for n in range(count)]
        data = slice_bytes(TOPIC, number, first, rows, wall_ms=self.wall_ms)
        at = len(self.source.data)
        self.source.data += data
        part = SliceEntry(number, first, count, self.wall_ms, 0, len(data))
        entry = FrameEntry("app", 1000, first, -1, 2, 0, count, None, [part])
        place = self.desk.log.step(entry)
        self.desk.ledger.apply(entry)
        created_ms = int(self.desk.now * 1000)
        piece = PendingSlice(number, first, count, 1, at, len(data), self.wall_ms, created_ms, place, a_frame(count))
        self.pieces[number].append(piece)
        self.spooled.append(piece)
        self.poison[number] |= {first + index for index in poison if index < count}
        self.desk.leases.push(piece)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def router_round(self, *, sync: bool) -> None:
        leases = self.desk.leases
        if sync:
            self.synced = self.desk.log.place
            leases.synced(Lsn(self.synced))
        leases.tick(self.desk.now)
        self.requests += leases.dead_letter_requests
        leases.dead_letter_requests.clear()
        self.collect()
        leases.hand_out(self.desk.now)
        assert leases.shards_to_kill == []
        for seat, message in leases.outbox:
            if seat in self.shards:
                self.shards[seat].incoming.append(message)
        leases.outbox.clear()

    def collect(self) -> None:
        leases = self.desk.leases
        for one in leases.ended:
            assert self.pieces[one.slice.partition].pop(0) is one.slice
        self.ended += leases.ended
        leases.ended.clear()

    def router_hears(self, seat: int) -> bool:
        shard = self.shards[seat]
        if not shard.outgoing:
            return False
        said = shard.outgoing.popleft()
        self.desk.say(seat, said.message)
        self.router_round(sync=False)
        for slot in said.slots:
            del shard.journal[slot]
        shard.table.slots_freed(now=shard.now)
        return True

    def shard_hears(self, seat: int) -> bool:
        shard = self.shards[seat]
        if not shard.incoming:
            return False
        shard.hear()
        return True

    def shard_sends(self, seat: int) -> None:
        shard = self.shards[seat]
        shard.now = self.desk.now
        _ = shard.send()
        shard.speak()

    def shard_answered(self, seat: int) -> bool:
        shard = self.shards[seat]
        if not shard.wire:
            return False
        shard.answer()
        shard.speak()
        return True

    def exchange(self) -> None:
        """Everything that was said is heard."""
        for _ in range(1_000):
            self.router_round(sync=True)
            busy = False
            for seat, shard in self.shards.items():
                while self.shard_hears(seat):
                    busy = True
                shard.speak()
                while self.router_hears(seat):
                    busy = True
            if not busy:
                return
        raise AssertionError("they talk for ever")

    # --- faults ------------------------------------------------------------------------------------------------------

    def connection_ends(self, seat: int, node: int, arrived: int) -> None:
        shard = self.shards[seat]
        if node in shard.incarnation:
            shard.cut_connection(node, arrived=arrived)
            shard.speak()

    def shard_dies(self, seat: int, *, said: int, arrived: int) -> None:
        """Some of what it said is still heard; some of what it sent still arrives."""
        self.desk.leases.shard_dying(seat, self.desk.now)
        for _ in range(said):
            _ = self.router_hears(seat)
        shard = self.shards.pop(seat)
        for one in list(shard.wire)[:arrived]:
            _ = shard.judge(one)
        slots = self.journal_of(shard)
        self.desk.leases.shard_dead(seat, slots, self.desk.now, facts=True)

    @staticmethod
    def journal_of(shard: PoisonedBench) -> list[JournalSlot]:
        return [slot for serial, slot in shard.slots_of.items() if serial in shard.journal]

    def router_dies(self, arrived: int) -> None:
        slots: list[JournalSlot] = []
        for shard in self.shards.values():
            for one in list(shard.wire)[:arrived]:
                _ = shard.judge(one)
            slots += self.journal_of(shard)
        self.shards.clear()
        self.requests.clear()
        desk = self.desk
        snapshot = CheckpointEntry(desk.ledger.snapshot(), [])
        desk.ledger = Ledger()
        desk.ledger.apply(snapshot)
        desk.leases = desk.start()
        desk.leases.recover(slots, facts=True)
        for number, pieces in self.pieces.items():
            pieces[:] = [piece for piece in pieces if piece.end > desk.ledger.by_number[number].mark]
            for piece in pieces:
                desk.leases.push(piece)
        self.begin_router()
        self.router_round(sync=True)

    def power_cut(self, arrived: int, *, journals: bool) -> None:
        """The machine is off: what no sync covered is gone, and so, perhaps, are the journals. What had left it may arrive."""
        slots: list[JournalSlot] = []
        for shard in self.shards.values():
            for one in list(shard.wire)[:arrived]:
                _ = shard.judge(one)
            slots += self.journal_of(shard) if journals else []
        self.shards.clear()
        self.requests.clear()
        desk = self.desk
        del desk.log.entries_at[self.synced :]
        desk.ledger = Ledger()
        self.parked = {number: set() for number in range(3)}
        for entry in desk.log.entries_at:
            assert entry is not None
            desk.ledger.apply(entry)
            if isinstance(entry, ParkedEntry):
                self.parked[entry.partition] |= {first + n for first, count in entry.ordinals for n in range(count)}
        self.spooled = [piece for piece in self.spooled if piece.lsn <= self.synced]
        desk.leases = desk.start()
        desk.leases.recover(slots, facts=False)
        for number, state in desk.ledger.by_number.items():
            self.poison[number] = {ordinal for ordinal in self.poison[number] if ordinal < state.next_ordinal}
            self.pieces[number] = [
                piece for piece in self.spooled if piece.partition == number and piece.end > state.mark
            ]
            for piece in self.pieces[number]:
                desk.leases.push(piece)
        self.begin_router()
        self.router_round(sync=True)

    def broker_restarts(self, number: int, arrived: int) -> None:
        """The leader of a partition loses its connections, and remembers one batch of each producer."""
        for seat in self.shards:
            self.connection_ends(seat, self.leaders[number][0], arrived)
        for other, log in self.logs.items():
            if self.leaders[other][0] == self.leaders[number][0]:
                log.restart()

    def leader_moves(self, number: int, node: int) -> None:
        self.leaders[number] = (node, self.leaders[number][1] + 1)
        self.metadata()

    def letter(self) -> None:
        """The next request is in the dead letters."""
        request = self.requests.pop(0)
        for piece in request.ranges:
            self.parked[request.partition] |= set(range(piece.first, piece.first + piece.count))
        self.desk.leases.dead_lettered(request, "letter", self.desk.now)
        self.collect()

    # --- the end -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """No more faults; time passes until nothing is left."""
        for bad in self.poison.values():
            bad.clear()
        for seat in (0, 1):
            self.greet(seat)
        for _ in range(600):
            self.exchange()
            while self.requests:
                self.letter()
            if not any(self.pieces.values()):
                return
            for seat in self.shards:
                self.shard_sends(seat)
                while self.shard_answered(seat):
                    self.shard_sends(seat)
            self.exchange()
            self.desk.now += 0.5
        raise AssertionError([list(self.desk.leases.all()), self.desk.leases.alarms])

    def check(self) -> None:
        """Every record once, in order, but for what was parked."""
        for number, log in self.logs.items():
            total = self.desk.ledger.by_number[number].next_ordinal
            expected = [ordinal for ordinal in range(total) if ordinal not in self.parked[number]]
            assert [int.from_bytes(value[:8], "big") for value in log.records] == expected
