"""The lease table against shards that die, brokers that refuse and leaders that move, at any moment.

At the end of every run, once everything is up again, each partition's log holds every record once, in order, less those that
were parked, and every slice has ended exactly once, telling the truth.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.daemon.leases.refused_batches import DeadLetterRequest
from penstock.daemon.ledger.entries import AckedEntry, CheckpointEntry, Lsn, PartitionSnapshot, StampRowEntry
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.ledger.slices import PendingSlice, SliceEnded
from penstock.wire.journal import JournalSlot
from penstock.wire.messages import FIRST, Grant, Pace, RouterMessage, Slices

from tests.fakes.lease_desk import Desk
from tests.fakes.lease_shards import BrokerPartition, FakeShard
from tests.harness.counts import model_examples

SEATS = st.integers(0, 1)
PARTITIONS = st.integers(0, 2)
NODES = (1, 2, 3)


class LeaseMachine(RuleBasedStateMachine):
    @initialize(opened=st.booleans())
    def begin(self, opened: bool) -> None:
        self.desk = Desk()
        self.brokers = {number: BrokerPartition() for number in range(3)}
        self.shards: dict[int, FakeShard] = {}
        self.dead_journals: list[list[JournalSlot]] = []
        self.pieces: dict[int, list[PendingSlice]] = {number: [] for number in range(3)}
        self.parked: dict[int, set[int]] = {number: set() for number in range(3)}
        self.requests: list[DeadLetterRequest] = []
        self.ended: list[SliceEnded] = []
        self.generations: dict[int, int] = {}
        self.leaders = {0: (1, 1), 1: (2, 1), 2: (3, 1)}
        self.written = 0
        self.synced = 0
        for index in range(3):
            self.desk.partition(index)
        self.desk.leases.set_producer_id(7)
        self.metadata()
        for seat in (0, 1):
            self.greet(seat)
        self.settle_round(sync=True)
        if opened:
            self.frames([0, 1, 2], 2, None)
            self.everybody_works(1, 1, heard=True)
            self.deliver_all()

    # --- the router's round ------------------------------------------------------------------------------------------

    def settle_round(self, *, sync: bool) -> None:
        leases, desk = self.desk.leases, self.desk
        if sync:
            leases.synced(Lsn(self.written))
            self.synced = self.written
        leases.tick(desk.now)
        self.requests += leases.dead_letter_requests
        leases.dead_letter_requests.clear()
        self.written = desk.log.place
        self.collect(leases.ended)
        leases.hand_out(desk.now)
        assert leases.shards_to_kill == []
        for seat, message in leases.outbox:
            self.check_said(message)
            if seat in self.shards:
                self.shards[seat].inbox.append(message)
        leases.outbox.clear()

    def collect(self, ended: list[SliceEnded]) -> None:
        self.ended += ended
        for one in ended:
            assert self.pieces[one.slice.partition][0] is one.slice, "slices end in order, once"
            self.pieces[one.slice.partition].pop(0)
        ended.clear()

    def check_said(self, message: RouterMessage) -> None:
        if isinstance(message, Grant):
            assert message.generation > self.generations.get(message.partition, 0)
            self.generations[message.partition] = message.generation
            for place, entry in enumerate(self.desk.log.entries_at, 1):
                if isinstance(entry, StampRowEntry) and entry.partition == message.partition:
                    assert place <= self.synced or entry.row not in message.rows
        if isinstance(message, Grant | Pace) and message.pace != FIRST:
            acked = [
                place
                for place, entry in enumerate(self.desk.log.entries_at, 1)
                if isinstance(entry, AckedEntry) and entry.partition == message.partition
            ]
            assert acked, "wide without an acknowledgement"
            assert acked[0] <= self.synced, "wide before its acknowledgement is synced"
        if isinstance(message, Slices):
            for ref in message.refs:
                piece = next(p for p in self.pieces[ref.partition] if p.first == ref.first)
                assert piece.lsn <= self.synced, "handed out before its sync"

    def metadata(self) -> None:
        leaders = [(index, node, epoch) for index, (node, epoch) in self.leaders.items()]
        self.desk.cluster(*leaders, nodes=NODES)

    def greet(self, seat: int) -> None:
        self.shards[seat] = FakeShard(seat, self.brokers)
        self.desk.leases.shard_connected(seat, self.desk.now)
        self.desk.leases.shard_ready(seat, self.desk.now)

    # --- rules -------------------------------------------------------------------------------------------------------

    @rule(
        numbers=st.lists(PARTITIONS, min_size=1, max_size=5),
        count=st.integers(1, 5),
        poison=st.sampled_from([None, None, None, 0, 2]),
    )
    def frames(self, numbers: list[int], count: int, poison: int | None) -> None:
        for number in numbers:
            piece = self.desk.push(number, count)
            self.pieces[number].append(piece)
            if poison is not None and poison < count:
                self.brokers[number].poison.add(piece.first + poison)

    @rule(sync=st.booleans())
    def round(self, sync: bool) -> None:
        self.settle_round(sync=sync)

    @rule(seat=SEATS, times=st.integers(1, 6))
    def shard_hears(self, seat: int, times: int) -> None:
        shard = self.shards.get(seat)
        for _ in range(times):
            if shard is not None and shard.inbox:
                shard.hear()

    @rule(seat=SEATS, times=st.integers(1, 6))
    def router_hears(self, seat: int, times: int) -> None:
        shard = self.shards.get(seat)
        for _ in range(times):
            if shard is not None and shard.outbox:
                self.router_reads(shard)

    def router_reads(self, shard: FakeShard) -> None:
        message = shard.outbox.popleft()
        self.desk.leases.message(shard.seat, message, self.desk.now)
        # The round is written at once here; hop acknowledgements follow it.
        self.settle_round(sync=False)
        shard.said(message)

    @rule(seat=SEATS, number=PARTITIONS, count=st.integers(1, 5), send=st.booleans(), answer=st.booleans())
    def shard_works(self, seat: int, number: int, count: int, send: bool, answer: bool) -> None:
        shard = self.shards.get(seat)
        if shard is not None:
            shard.cut(number, count)
            if send:
                shard.send(number)
            if answer:
                shard.answer(number)

    @rule(count=st.integers(1, 5), answers=st.integers(0, 2), heard=st.booleans())
    def everybody_works(self, count: int, answers: int, heard: bool) -> None:
        if heard:
            self.deliver_all()
        for shard in self.shards.values():
            for number in range(3):
                for _ in range(3):
                    shard.cut(number, count)
                    shard.send(number)
                for _ in range(answers):
                    shard.answer(number)

    @rule(number=PARTITIONS, node=st.sampled_from(NODES))
    def leader_moves(self, number: int, node: int) -> None:
        self.leaders[number] = (node, self.leaders[number][1] + 1)
        self.metadata()

    @precondition(lambda self: self.shards)
    @rule(data=st.data(), heard=st.integers(0, 3))
    def shard_dies(self, data: st.DataObject, heard: int) -> None:
        seat = data.draw(st.sampled_from(sorted(self.shards)))
        shard = self.shards[seat]
        self.desk.leases.shard_dying(seat, self.desk.now)
        for _ in range(min(heard, len(shard.outbox))):
            self.router_reads(shard)
        del self.shards[seat]
        self.desk.leases.shard_dead(seat, list(shard.journal.values()), self.desk.now, facts=True)

    @rule(seat=SEATS)
    def shard_comes(self, seat: int) -> None:
        if seat not in self.shards:
            self.greet(seat)

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        # Shards answer within the time they have: a recall that waits longer is another test's.
        self.deliver_all()
        self.desk.now += seconds
        self.settle_round(sync=True)

    @precondition(lambda self: self.requests)
    @rule()
    def letter_written(self) -> None:
        self.park(self.requests.pop(0))

    def park(self, request: DeadLetterRequest) -> None:
        for piece in request.ranges:
            self.parked[request.partition] |= set(range(piece.first, piece.first + piece.count))
        self.desk.leases.dead_lettered(request, "letter", self.desk.now)
        self.collect(self.desk.leases.ended)

    @rule(clean=st.booleans())
    def router_dies(self, clean: bool) -> None:
        """All shards end with it, right after a write. The tables come from the log, and the first sync covers all of it."""
        if clean:
            self.deliver_all()
        slots = [slot for shard in self.shards.values() for slot in shard.journal.values()]
        self.shards.clear()
        self.requests.clear()
        self.written = self.desk.log.place
        desk = self.desk
        snapshots: list[PartitionSnapshot] = desk.ledger.snapshot()
        desk.ledger = Ledger()
        desk.ledger.apply(CheckpointEntry(snapshots, []))
        desk.leases = desk.start()
        desk.leases.recover(slots, facts=True)
        for number, pieces in self.pieces.items():
            state = desk.ledger.by_number[number]
            for piece in pieces:
                piece.lsn = Lsn(min(piece.lsn, self.written))
            pieces[:] = [piece for piece in pieces if piece.end > state.mark]
            for piece in pieces:
                desk.leases.push(piece)
        desk.leases.set_producer_id(7)
        self.metadata()
        for seat in (0, 1):
            self.greet(seat)
        self.settle_round(sync=True)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def at_most_one_holder(self) -> None:
        for number in range(3):
            holders = [seat for seat, shard in self.shards.items() if number in shard.leases]
            assert len(holders) <= 1, (number, holders)

    @invariant()
    def records_are_conserved(self) -> None:
        pending = sum(piece.count for pieces in self.pieces.values() for piece in pieces)
        assert self.desk.leases.pending_records == pending

    # --- the end -----------------------------------------------------------------------------------------------------

    def deliver_all(self) -> None:
        for _ in range(100):
            busy = False
            self.settle_round(sync=True)
            for shard in self.shards.values():
                while shard.inbox:
                    shard.hear()
                    busy = True
                while shard.outbox:
                    self.router_reads(shard)
                    busy = True
            if not busy:
                return
        raise AssertionError("messages do not come to an end")

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        for broker in self.brokers.values():
            broker.poison.clear()
        for seat in (0, 1):
            self.shard_comes(seat)
        for _ in range(400):
            if not any(self.pieces.values()):
                break
            while self.requests:
                self.park(self.requests.pop())
            self.deliver_all()
            for shard in self.shards.values():
                for number in range(3):
                    while shard.cut(number, 3):
                        pass
                    while shard.send(number):
                        pass
                    while shard.answer(number):
                        pass
            self.deliver_all()
            self.desk.now += 1.0
        self.check_end()

    def check_end(self) -> None:
        assert not any(self.pieces.values()), list(self.desk.leases.all())
        for number, broker in self.brokers.items():
            total = self.desk.ledger.by_number[number].next_ordinal
            expected = [ordinal for ordinal in range(total) if ordinal not in self.parked[number]]
            assert broker.log == expected
        for one in self.ended:
            self.check_told(one)

    def check_told(self, one: SliceEnded) -> None:
        number, first = one.slice.partition, one.slice.first
        parked = {first + index + i for index, count, _ in one.parked for i in range(count)}
        told = sum(run.count for run in one.runs) + len(parked)
        assert told == one.slice.count
        ordinals = iter([o for o in range(first, one.slice.end) if o not in parked])
        for run in one.runs:
            for i in range(run.count):
                ordinal = next(ordinals)
                assert run.offset == -1 or self.brokers[number].log[run.offset + i] == ordinal


LeaseMachine.TestCase.settings = settings(
    max_examples=model_examples(100),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_leases_of_shards_that_die_and_leaders_that_move = LeaseMachine.TestCase
