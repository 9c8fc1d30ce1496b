"""Random answers, losses, moves, restarts and kills: the log is the ordinal order, each record once."""

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.daemon.leases.batch_bounds import from_journal_slots
from penstock.producer.protocol.produce_request import PartitionProduceResponse
from penstock.producer.sender.modes import SendMode
from penstock.wire.journal import JournalSlot
from penstock.wire.messages import (
    FIRST,
    OPEN,
    Anchor,
    BatchBounds,
    BatchRefused,
    DoneBatch,
    PartitionHalted,
    ProbeRefused,
    Revoked,
    SliceRef,
    SliceUnreadable,
    StampRow,
)

from tests.fakes.model_broker import MESSAGE_TOO_LARGE, Answer, Log
from tests.fakes.segments import NOW_MS
from tests.fakes.shard_bench import PRODUCER_ID, MemorySource, OnWire, ShardBench, outcome, value_of
from tests.harness.counts import model_examples

ROWS = [StampRow(PRODUCER_ID, 0, 0, 0)]
PARTITIONS = (0, 1)
NODES = (1, 2)
NO_REPLICAS = 19
TIMED_OUT = 7
NOT_LEADER = 6
BAD = (ProbeRefused, PartitionHalted, SliceUnreadable, BatchRefused)


class Shards(RuleBasedStateMachine):
    """A router without a process: it keeps what a spool would keep."""

    def __init__(self) -> None:
        super().__init__()
        self.source = MemorySource()
        self.logs = {partition: Log() for partition in PARTITIONS}
        self.refs: dict[int, list[SliceRef]] = {partition: [] for partition in PARTITIONS}
        self.mark = dict.fromkeys(PARTITIONS, 0)
        self.cuts: dict[int, list[BatchBounds]] = {partition: [] for partition in PARTITIONS}
        self.last: dict[int, DoneBatch] = {}
        self.leader = dict.fromkeys(PARTITIONS, 1)
        self.epoch = dict.fromkeys(PARTITIONS, 0)
        self.held = dict.fromkeys(PARTITIONS, False)
        self.generation = dict.fromkeys(PARTITIONS, 0)
        self.inherited = dict.fromkeys(PARTITIONS, 0)
        self.next = dict.fromkeys(PARTITIONS, 0)
        self.stale: list[tuple[int, bytes]] = []
        self.limited: set[int] = set()
        self.stuck: set[int] = set()
        """Partitions whose too large batch may be in the log: the router keeps them and raises an alarm."""
        self.start_shard()

    @initialize(largest=st.sampled_from((1 << 30, 1 << 30, 280, 160)))
    def limit_batches(self, largest: int) -> None:
        """Some topics take smaller batches than we make: they are split."""
        for log in self.logs.values():
            log.largest_batch = largest
        if largest < 1 << 30:
            self.limited = set(PARTITIONS)

    @rule(partition=st.sampled_from(PARTITIONS), largest=st.sampled_from((1 << 30, 280)))
    def change_limit(self, partition: int, largest: int) -> None:
        """A batch that is in the log may be refused for its size when it is sent again."""
        self.logs[partition].largest_batch = largest
        self.limited.add(partition)

    # --- the router --------------------------------------------------------------------------------------------------

    def start_shard(self) -> None:
        self.shard = ShardBench(source=self.source, logs=self.logs, batch_bytes=400)
        self.shard.hears = False
        self.shard.generation = self.generation
        self.shard.next = self.next
        self.shard.nodes(*NODES)
        for partition in PARTITIONS:
            self.grant(partition)

    def grant(self, partition: int) -> None:
        last = self.last.get(partition)
        anchor = None if last is None else Anchor(last.base_offset, NOW_MS, NOW_MS, 0)
        cuts = [cut for cut in self.cuts[partition] if cut.first >= self.mark[partition]]
        _ = self.shard.grant(
            partition,
            node=self.leader[partition],
            pace=FIRST if anchor is None else OPEN,
            cuts=cuts,
            next_ordinal=self.mark[partition],
            anchor=anchor,
            anchored=False,
            leader_epoch=self.epoch[partition],
        )
        self.held[partition] = True
        self.inherited[partition] = len(cuts)
        refs = [ref for ref in self.refs[partition] if ref.first + ref.count > self.mark[partition]]
        if refs:
            self.shard.hand(*refs)

    def hear(self) -> None:
        self.shard.listen()
        for item in self.shard.done:
            end = item.first + item.count
            assert end > self.mark[item.partition], "reported twice"
            self.mark[item.partition] = end
            self.cuts[item.partition] = [cut for cut in self.cuts[item.partition] if cut.first >= end]
            known = item.partition in self.last
            self.last[item.partition] = item
            if not known and self.held[item.partition]:
                self.shard.pace(OPEN, item.partition, Anchor(item.base_offset, NOW_MS, NOW_MS, 0))
        self.shard.done.clear()
        for message in self.shard.said:
            if isinstance(message, Revoked):
                self.cuts[message.partition] = message.cuts
                self.held[message.partition] = False
            if isinstance(message, BatchRefused) and message.ambiguous and message.code == MESSAGE_TOO_LARGE:
                assert message.first == self.mark[message.partition], "only the oldest is reported"
                self.stuck.add(message.partition)
                continue
            if isinstance(message, PartitionHalted) and message.code == MESSAGE_TOO_LARGE:
                # A trial of a probe that has become too large.
                assert message.partition in self.limited
                self.stuck.add(message.partition)
                continue
            assert not isinstance(message, BAD), message
        self.shard.said.clear()

    # --- rules -------------------------------------------------------------------------------------------------------

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 12))
    def put(self, partition: int, count: int) -> None:
        first = self.next[partition]
        ref = self.shard.ref(partition, [value_of(first + n) for n in range(count)])
        self.refs[partition].append(ref)
        if self.held[partition]:
            self.shard.hand(ref)

    @rule()
    def send(self) -> None:
        _ = self.shard.send()

    @rule(counts=st.lists(st.integers(1, 30), min_size=1, max_size=4), left=st.integers(0, 5))
    def traffic(self, counts: list[int], left: int) -> None:
        """An undisturbed while, at whose end some requests are still on the wire."""
        for partition in PARTITIONS:
            for count in counts:
                self.put(partition=partition, count=count)
        for _ in range(20):
            _ = self.shard.send()
            if len(self.shard.wire) <= left:
                break
            wire = self.heads()[0]
            self.shard.answer(wire, self.outcomes(wire, self.reach(wire)))
            self.hear()

    @rule(ms=st.sampled_from((1, 50, 2000)))
    def time_passes(self, ms: int) -> None:
        self.shard.now += ms / 1000

    @rule()
    def router_hears(self) -> None:
        self.hear()

    def heads(self) -> list[OnWire]:
        """The oldest request of each connection: a broker takes one after the other."""
        seen: dict[int, OnWire] = {}
        for wire in self.shard.wire:
            _ = seen.setdefault(wire.flight.node, wire)
        return list(seen.values())

    def reach(self, wire: OnWire) -> list[Answer]:
        """The request reaches its node, which may have been deposed."""
        answers: list[Answer] = []
        for partition, _, _, data in wire.copies:
            if wire.flight.node == self.leader[partition]:
                answers.append(self.logs[partition].produce(data))
            else:
                answers.append(Answer(NOT_LEADER))
        return answers

    @staticmethod
    def outcomes(wire: OnWire, answers: list[Answer]) -> list[PartitionProduceResponse]:
        return [outcome(copy[0], one) for copy, one in zip(wire.copies, answers, strict=True)]

    @precondition(lambda self: bool(self.shard.wire))
    @rule(data=st.data(), fate=st.sampled_from(("told", "told", "told", "no replicas", "timed out", "left out")))
    def answer(self, data: st.DataObject, fate: str) -> None:
        wire = data.draw(st.sampled_from(self.heads()))
        if fate == "no replicas":
            answers = [Answer(NO_REPLICAS) for _ in wire.copies]
        else:
            answers = self.reach(wire)
            if fate == "timed out":
                answers = [one._replace(code=TIMED_OUT) if one.code == 0 else one for one in answers]
        told = self.outcomes(wire, answers)
        if fate == "left out":
            del told[0]
        self.shard.answer(wire, told)

    @rule(node=st.sampled_from(NODES), arrived=st.integers(0, 5), late=st.booleans())
    def cut_connection(self, node: int, arrived: int, late: bool) -> None:
        lost = [wire for wire in self.shard.wire if wire.flight.node == node]
        for place, wire in enumerate(lost):
            if place < arrived:
                _ = self.reach(wire)
            elif late:
                self.stale += [(copy[0], copy[3]) for copy in wire.copies]
        self.shard.cut_connection(node)

    @precondition(lambda self: bool(self.stale))
    @rule(data=st.data())
    def stale_copy_lands(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.stale) - 1))
        partition, batch = self.stale.pop(place)
        _ = self.logs[partition].produce(batch)

    @rule(node=st.sampled_from(NODES))
    def restart_broker(self, node: int) -> None:
        self.cut_connection(node=node, arrived=0, late=False)
        for partition in PARTITIONS:
            if self.leader[partition] == node:
                self.logs[partition].restart()

    @rule(partition=st.sampled_from(PARTITIONS), forgetful=st.booleans())
    def move_leader(self, partition: int, forgetful: bool) -> None:
        self.leader[partition] = 3 - self.leader[partition]
        self.epoch[partition] += 1
        if forgetful:
            self.logs[partition].restart()
        if self.held[partition]:
            self.shard.move(self.leader[partition], self.epoch[partition], partition)

    @rule(partition=st.sampled_from(PARTITIONS))
    def revoke_and_grant(self, partition: int) -> None:
        if self.held[partition]:
            self.shard.revoke(partition)
            self.hear()
        self.grant(partition)

    @rule(arrived=st.integers(0, 3))
    def kill_shard(self, arrived: int) -> None:
        """What it had not told is lost; its journal is read; bytes in the kernel may still arrive."""
        for wire in list(self.shard.wire)[:arrived]:
            _ = self.reach(wire)
        self.stale += [(copy[0], copy[3]) for wire in list(self.shard.wire)[arrived:] for copy in wire.copies]
        for partition in PARTITIONS:
            slots: list[JournalSlot] = self.shard.live_slots(partition)
            found = from_journal_slots(slots, self.cuts[partition], ROWS, self.mark[partition])
            assert found.certain
            self.cuts[partition] = found.bounds
        now = self.shard.now
        self.start_shard()
        self.shard.now = max(self.shard.now, now)

    # --- checks ------------------------------------------------------------------------------------------------------

    @invariant()
    def the_log_is_the_ordinal_order_each_once(self) -> None:
        for partition in PARTITIONS:
            found = [int.from_bytes(value[:8], "big") for value in self.logs[partition].records]
            assert found == list(range(len(found)))
            assert self.mark[partition] <= len(found)

    @invariant()
    def the_window_holds(self) -> None:
        for lease in self.shard.table.partitions.values():
            # What the dead shard had told and nobody heard is among the cuts of the next one.
            assert len(lease.unresolved) <= max(5, self.inherited[lease.partition]) or lease.partition in self.limited
            live = {slot.first for slot in self.shard.live_slots(lease.partition)}
            assert all(batch.first in live for batch in lease.unresolved if batch.request_number)

    def teardown(self) -> None:
        """Faults stop, and everything arrives."""
        self.shard.hears = True
        for _ in range(4000):
            self.hear()
            for partition in PARTITIONS:
                if not self.held[partition]:
                    self.grant(partition)
            _ = self.shard.send()
            wires: deque[OnWire] = self.shard.wire
            if wires:
                wire = wires[0]
                self.shard.answer(wire, self.outcomes(wire, self.reach(wire)))
            elif (at := self.shard.table.ready_partitions.next_deadline()) is not None:
                self.shard.now = max(self.shard.now, at)
            elif all(self.mark[partition] == self.next[partition] for partition in PARTITIONS):
                break
        self.hear()
        for partition in set(PARTITIONS) - self.stuck:
            lease = self.shard.table.partitions[partition]
            assert self.mark[partition] == self.next[partition], (lease.mode, lease.last_error, lease.unresolved)
            assert len(self.logs[partition].records) == self.next[partition]
            assert lease.mode in (SendMode.RUNNING, SendMode.ONE_IN_FLIGHT)
        if not self.stuck:
            assert self.shard.journal == {}
            assert self.shard.pool.lent_bytes == 0


Shards.TestCase.settings = settings(
    max_examples=model_examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestShards = Shards.TestCase
