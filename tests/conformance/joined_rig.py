"""`InProcessDelivery` with all it is made of, on a virtual clock, towards brokers whose answers the test gives: for the rows of group F.

::

    rig = JoinedRig()                       # tp0, tp1 led by node 0, tp2 by node 1; delivery 1500 ms, linger 0, backoff 0
    rig.append(0)                           # one record (key "key", value "value"), one slice; ordinals go on from `rig.first(0)`
    rig.run()                               # an iteration: upkeep, questions answered, then what may be sent is on the wire
    rig.wire                                # requests without answer, oldest first; rig.on_wire(0): those with a batch of tp0
    rig.answer()                            # the oldest is answered by the model brokers ...
    rig.answer(rig.wire[1], {0: ok(5)})     # ... or one of them by the test, partition by partition (`ok`, `error`)
    rig.refuse(OUT_OF_ORDER, partition=0)   # the oldest request with a batch of tp0 gets this code, and the log stays as it is
    rig.lose(0)                             # the connection to node 0 ends; `arrived`: requests that were carried out all the same
    rig.lead(0, node=1, epoch=5)            # Metadata tells of another leader
    rig.pass_ms(1500)
    rig.delivered(0), rig.failed(0), rig.released(0)      # outcomes of tp0 so far, by ordinal

`has_id` False: no producer id was given yet. Every partition but those of a `fresh` rig has had one record acknowledged on its connection (ordinal 0, sequence 0, offset 0): it is
at pace OPEN in RUNNING, and the next record has ordinal 1 and sequence 1. A batch on the wire is a `Sent`: epoch, sequence, count,
producer id, as in its bytes. Questions (where a log starts, where an epoch ended, who leads) are answered at once unless
`rig.answers_questions` is False; `rig.replicas_know` is the leader epoch that replicas tell.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.producer.accumulator.buffer_pool import BufferPool
from penstock.producer.accumulator.partition_queue import BatchRules
from penstock.producer.accumulator.slice_accumulator import SliceAccumulator
from penstock.producer.delivery.assignment import PartitionAlarm
from penstock.producer.delivery.gap_confirmation import LeaderUpdate
from penstock.producer.delivery.in_process import InProcessDelivery, InProcessDeliveryLimits
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryOutcome, Failed, Released
from penstock.producer.metadata.cluster import BrokerAddress, Cluster, MetadataAnswer, PartitionView, TopicAnswer
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.protocol.produce_request import LeaderHint, PartitionProduceResponse
from penstock.producer.records.batch_builder import HEADER_BYTES
from penstock.producer.records.compression import Codec, Levels, make_compressor
from penstock.producer.sender.idempotent import IdempotentPartition
from penstock.producer.sender.leader_checks import LeaderCheckResult
from penstock.producer.sender.modes import LeaderCheck, SendLimits
from penstock.producer.sender.ready_nodes import InFlightRequest, SendPermit

from tests.fakes.model_broker import HEADER, Answer, Log
from tests.fakes.segments import NOW_MS, Row, slice_bytes

TOPIC: Final = "test"
TOPIC_ID: Final = b"\x07" * 16
PRODUCER_ID: Final = 343434
LEADERS: Final = {0: 0, 1: 0, 2: 1}

OUT_OF_ORDER: Final = 45
UNKNOWN_PRODUCER_ID: Final = 59
NOT_LEADER: Final = 6
LEADER_NOT_AVAILABLE: Final = 5
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
DUPLICATE: Final = 46
TOPIC_AUTHORIZATION_FAILED: Final = 29
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
INVALID_REQUEST: Final = 42
INVALID_RECORD: Final = 87


class Sent(NamedTuple):
    """One batch in a request, as its bytes say."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]
    producer_id: int
    epoch: int
    sequence: int
    data: bytes


@dataclass(eq=False)
class Request:
    """A Produce request on the wire."""

    flight: InFlightRequest[IdempotentPartition]
    sent: list[Sent]

    @property
    def node(self) -> int:
        return self.flight.node

    def of(self, partition: int) -> Sent:
        """Its batch of a partition."""
        return next(one for one in self.sent if one.partition == partition)


def ok(base_offset: int, *, log_start: int = 0) -> Answer:
    """A success at this offset."""
    return Answer(0, base_offset, -1, log_start)


def error(code: int, *, log_start: int = -1) -> Answer:
    """A refusal."""
    return Answer(code, -1, -1, log_start)


@dataclass
class MemoryChunks:
    """Where slices are read, by segment number."""

    chunks: dict[int, bytes] = field(default_factory=dict)

    def read(self, segment: int, offset: int, length: int) -> memoryview | str:
        return memoryview(self.chunks[segment])[offset : offset + length]


class JoinedRig:
    """See the module."""

    def __init__(
        self,
        *,
        leaders: Mapping[int, int] = LEADERS,
        replicas: tuple[int, ...] = (),
        delivery_ms: int = 1500,
        batch_bytes: int = 16_384,
        linger_ms: int = 0,
        backoff_ms: tuple[int, int] = (0, 0),
        pool_bytes: int = 1 << 20,
        codec: Codec = "none",
        in_flight: int = 5,
        leader_epoch: int = 0,
        epoch: int = 0,
        fresh: bool = False,
        has_id: bool = True,
        idempotent: bool = True,
        retries: int = (1 << 31) - 1,
    ) -> None:
        self.now = 1000.0
        self.in_flight = in_flight
        self.source = MemoryChunks()
        self.pool = BufferPool(pool_bytes, batch_bytes + HEADER_BYTES)
        rules = BatchRules(batch_bytes + HEADER_BYTES, linger_ms / 1000, make_compressor(codec, Levels()))
        backoff = Backoff(backoff_ms[0] / 1000, backoff_ms[1] / 1000)
        table = SendLimits(backoff, 24 * 3_600_000, retries=retries, confirms_gaps=True)
        limits = InProcessDeliveryLimits(table, delivery_ms / 1000, pool_bytes, idempotent=idempotent)
        self.joined = self._joined(limits, SliceAccumulator(self.pool, self.source), rules)
        self.joined.table.wall.set_time(NOW_MS, now=self.now)
        self.down: set[int] = set()
        self.incarnations: dict[int, int] = {}
        self.logs: dict[int, Log] = {}
        self.wire: deque[Request] = deque()
        self.outcomes: list[DeliveryOutcome] = []
        self.notices: list[PartitionAlarm] = []
        self.hints: list[LeaderUpdate] = []
        self.answers_questions = True
        self.replicas_know = leader_epoch
        self.chance = 0.5
        self.requests = 0
        self._ends: dict[int, int] = {}
        self._leaders = {index: (node, leader_epoch) for index, node in leaders.items()}
        self._replicas = replicas
        self._cluster = Cluster()
        self.topic_id = TOPIC_ID
        self.metadata()
        if self.joined.wants_producer_id and has_id:
            self.joined.producer_id_known(PRODUCER_ID, 0, now=self.now)
        if not fresh:
            self._begin(epoch)

    def _joined(
        self, limits: InProcessDeliveryLimits, accumulator: SliceAccumulator, rules: BatchRules
    ) -> InProcessDelivery:
        return InProcessDelivery(
            limits,
            accumulator,
            lambda _topic: rules,
            trouble_with=lambda node: "unplugged" if node in self.down else None,
        )

    def _begin(self, epoch: int) -> None:
        for partition in self._leaders:
            part = self.joined.partitions[self.joined.number_of(TOPIC, partition)]
            part.rows = [row._replace(epoch=max(epoch, row.epoch)) for row in part.rows]
            self.append(partition)
        while self.wire or not self.joined.idle:
            self.run()
            self.answer()
        self.outcomes.clear()
        self.notices.clear()
        self.requests = 0

    # --- records -----------------------------------------------------------------------------------------------------

    def first(self, partition: int) -> int:
        """The ordinal of the next record."""
        return self._ends.get(partition, 0)

    def append(self, partition: int, *, count: int = 1, value: bytes = b"value", timestamp: int | None = None) -> int:
        """One slice of `count` records; returns the first ordinal."""
        first = self.first(partition)
        rows = [Row(value, key=b"key", timestamp=timestamp)] * count
        data = slice_bytes(TOPIC, partition, first, rows)
        segment = len(self.source.chunks) + 1
        self.source.chunks[segment] = data
        self._ends[partition] = first + count
        self.joined.submit(
            self.joined.number_of(TOPIC, partition),
            segment,
            len(data),
            first,
            count,
            round(self.now * 1000),
            NOW_MS if timestamp is None else timestamp,
            now=self.now,
        )
        return first

    # --- rounds ------------------------------------------------------------------------------------------------------

    def pass_ms(self, ms: float) -> None:
        """Time goes on."""
        self.now = round(self.now * 1000 + ms, 6) / 1000

    def run(self) -> list[Request]:
        """An iteration; returns what was sent."""
        table = self.joined.table
        self.joined.upkeep(now=self.now)
        if self.answers_questions:
            self.tell()
        while table.accumulator.has_unread:
            if not table.fill(now=self.now):
                break
        sent: list[Request] = []
        for node in [one for one in table.nodes if one not in self.down]:
            while sum(one.node == node for one in self.wire) < self.in_flight:
                request = self._request(node)
                if request is None:
                    break
                sent.append(request)
        self._collect()
        return sent

    def _request(self, node: int) -> Request | None:
        table = self.joined.table
        if not table.ready_partitions.has_work(node, now=self.now):
            return None
        incarnation = self.incarnations.setdefault(node, 1)
        permit = SendPermit(incarnation, self.joined.journal.free_slots, self.in_flight)
        entries = table.drain(node, permit, bytes_max=1 << 20, now=self.now)
        if not entries:
            return None
        for lease, _ in entries:
            for batch in lease.unresolved:
                if batch.slot < 0:
                    batch.slot = 1
            lease.unjournaled = 0
            lease.replaced_slots = []
        flight = table.ready_partitions.begin_request(node, incarnation, 13, entries)
        table.request_sent(flight, now=self.now)
        sent: list[Sent] = []
        for lease, batch in entries:
            data = bytes(batch.data or b"")
            producer_id, epoch, sequence, count = HEADER.unpack_from(data)[9:]
            sent.append(Sent(lease.index, batch.first, count, producer_id, epoch, sequence, data))
        request = Request(flight, sent)
        self.wire.append(request)
        self.requests += 1
        return request

    def tell(self) -> None:
        """Leaders and replicas answer what they are asked."""
        table = self.joined.table
        for node in [one for one in table.nodes if one not in self.down]:
            for asked in table.due_checks(node, now=self.now):
                table.check_sent(asked, known=True, now=self.now)
                told = [self._told(asked.check, lease) for lease in asked.partitions]
                table.check_answered(asked, told, now=self.now, chance=self.chance)
            if table.replica_queries.has_request(node):
                view = self._metadata(self.replicas_know)
                table.replica_queries.complete(node, table.replica_queries.take_request(node), view)
        self.joined.upkeep(now=self.now)

    def _told(self, question: LeaderCheck, lease: IdempotentPartition) -> LeaderCheckResult:
        value = {
            LeaderCheck.LOG_START: self.log(lease.index).start,
            LeaderCheck.EPOCH_END: -1,
            LeaderCheck.LOG_END: -1,
            LeaderCheck.TOPIC_ID: TOPIC_ID,
        }[question]
        return LeaderCheckResult(TOPIC, -1 if question is LeaderCheck.TOPIC_ID else lease.index, 0, value)

    def until_idle(self, rounds: int = 200) -> None:
        """Send and answer by the model brokers until nothing is left; time passes where something waits for it."""
        for _ in range(rounds):
            self.run()
            if self.wire:
                self.answer()
            elif self.joined.idle:
                return
            else:
                wanted = [self.joined.next_deadline(self.now), self.joined.table.ready_partitions.next_deadline()]
                wanted += [self.joined.table.next_check_at(node) for node in self.joined.table.nodes]
                at = min((one for one in wanted if one is not None), default=None)
                assert at is not None, "nothing will ever happen"
                self.now = max(self.now, at)
        raise AssertionError("it goes on for ever")

    # --- brokers -----------------------------------------------------------------------------------------------------

    def log(self, partition: int) -> Log:
        """The log of the model broker."""
        return self.logs.setdefault(partition, Log())

    def on_wire(self, partition: int) -> list[Sent]:
        """Batches of a partition without answer, oldest request first."""
        return [one for request in self.wire for one in request.sent if one.partition == partition]

    def request_of(self, partition: int) -> Request:
        """The oldest request with a batch of the partition."""
        return next(one for one in self.wire if any(sent.partition == partition for sent in one.sent))

    def answer(self, request: Request | None = None, answers: Mapping[int, Answer] | None = None) -> None:
        """Answer a request, the oldest if none is named: by the test for the partitions given, by the model for others."""
        if not self.wire:
            return
        one = self.wire[0] if request is None else request
        told = dict(answers or {})
        outcomes = [
            outcome(sent.partition, told.get(sent.partition) or self.log(sent.partition).produce(sent.data))
            for sent in one.sent
        ]
        self.answer_with(one, outcomes)

    def answer_with(self, request: Request, outcomes: list[PartitionProduceResponse]) -> None:
        """Answer a request with exactly this."""
        self.wire.remove(request)
        self.joined.table.request_answered(request.flight, outcomes, now=self.now, chance=self.chance)
        self.joined.upkeep(now=self.now)
        self._collect()

    def refuse(
        self,
        code: int,
        *,
        partition: int,
        request: Request | None = None,
        log_start: int = -1,
        hint: tuple[int, int] | None = None,
        errors: list[tuple[int, str]] | None = None,
        message: str = "",
    ) -> None:
        """Answer the oldest request with a batch of the partition; it gets this code, the others what the model says."""
        one = self.request_of(partition) if request is None else request
        outcomes: list[PartitionProduceResponse] = []
        for sent in one.sent:
            if sent.partition == partition:
                told = outcome(partition, error(code, log_start=log_start))
                leader = None if hint is None else LeaderHint(*hint)
                outcomes.append(told._replace(leader_hint=leader, record_errors=list(errors or []), message=message))
            else:
                outcomes.append(outcome(sent.partition, self.log(sent.partition).produce(sent.data)))
        self.answer_with(one, outcomes)

    def lose(self, node: int, *, arrived: int = 0) -> None:
        """The connection ends; it is made again at once."""
        lost = [one for one in self.wire if one.node == node]
        for place, one in enumerate(lost):
            if place < arrived:
                for sent in one.sent:
                    _ = self.log(sent.partition).produce(sent.data)
            self.wire.remove(one)
            self.joined.table.request_lost(one.flight, "disconnected", now=self.now, chance=self.chance)
        self.incarnations[node] = self.incarnations.get(node, 1) + 1
        self.joined.upkeep(now=self.now)
        self._collect()

    def lead(self, partition: int, *, node: int, epoch: int) -> None:
        """Another leader, told by Metadata."""
        self._leaders[partition] = (node, epoch)
        self.replicas_know = max(self.replicas_know, epoch)
        self.metadata()

    def follow(self, *addresses: BrokerAddress) -> None:
        """What answers told of leaders is believed, as the sender thread does; `addresses` came with them."""
        known = {one.node: one for one in addresses}
        for hint in self.hints:
            told = hint.topic, hint.index, hint.leader, hint.leader_epoch
            self._cluster, change = self._cluster.apply_leader_hint(*told, known.get(hint.leader))
            self.joined.cluster_changed(self._cluster, change, now=self.now)

    def metadata(self) -> None:
        """A Metadata answer."""
        self._cluster, change = self._cluster.merge(self._metadata(None))
        self.joined.cluster_changed(self._cluster, change, now=self.now)

    def _metadata(self, epoch: int | None) -> MetadataAnswer:
        nodes = {0, 1, *self._replicas, *(node for node, _ in self._leaders.values())}
        partitions = [
            PartitionView(index, node, own if epoch is None else epoch, (node, *self._replicas), (node,), 0)
            for index, (node, own) in sorted(self._leaders.items())
        ]
        topics = [TopicAnswer(TOPIC, self.topic_id, 0, False, partitions)]
        return MetadataAnswer([BrokerAddress(node, "h", 1, "") for node in sorted(nodes)], "c", 0, topics, 0)

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        self.outcomes += self.joined.take_outcomes()
        self.notices += self.joined.take_alarms()
        self.hints += self.joined.take_hints()

    def _of(self, partition: int) -> list[DeliveryOutcome]:
        self._collect()
        number = self.joined.number_of(TOPIC, partition)
        return [one for one in self.outcomes if one.partition == number]

    def delivered(self, partition: int) -> dict[int, int]:
        """Ordinal: offset (-1: not known)."""
        return {
            one.first + n: one.base_offset + n if one.base_offset >= 0 else -1
            for one in self._of(partition)
            if isinstance(one, Delivered)
            for n in range(one.count)
        }

    def failed(self, partition: int) -> dict[int, DeliveryFailure]:
        """Ordinal: why."""
        return {
            one.first + n: one.failure
            for one in self._of(partition)
            if isinstance(one, Failed)
            for n in range(one.count)
        }

    def released(self, partition: int) -> list[int]:
        """Ghosts that are resolved."""
        return [one.first + n for one in self._of(partition) if isinstance(one, Released) for n in range(one.count)]

    def ghosts(self, partition: int) -> list[int]:
        """Records that have failed and keep their memory."""
        told = [one for one in self._of(partition) if isinstance(one, Failed) and not one.released]
        released = set(self.released(partition))
        return [one.first + n for one in told for n in range(one.count) if one.first + n not in released]


def outcome(partition: int, answer: Answer) -> PartitionProduceResponse:
    """A partition's part of an answer."""
    return PartitionProduceResponse(
        "", TOPIC_ID, partition, answer.code, answer.base_offset, answer.log_append_ms, answer.log_start, [], "", None
    )
