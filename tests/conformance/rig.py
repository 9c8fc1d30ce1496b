"""The producer's own classes, joined without a process, as the rows of groups E and F want them: a virtual clock in milliseconds,
two nodes, and partitions that send at once.

::

    rig = Rig(batch_bytes=1025, linger_ms=10)      # tp0 and tp1 led by node 1, tp2 by node 2
    rig.append(0, count=68)                        # 68 times key "key", value "value": slices of one record each
    ready = rig.ready()                            # nodes with something to send now, and ms until the next look
    rig.pass_ms(10)
    sent = rig.drain(ready.nodes, max_bytes=1024)  # one request per node: {1: [(partition, batch), ...]}
    rig.answer()                                   # the model broker's answer to the oldest request on the wire
    rig.refuse(NOT_ENOUGH_REPLICAS)                # or a code for all its batches; both want a request with `wire=` else
    rig.cut_connection(1)                          # or the connection to node 1 ends
    rig.told                                       # outcomes in order: DoneItem; other messages lie in `rig.said`

Every partition has had one batch acknowledged on its connection (ordinal 0, sequence `next_sequence` - 1) and is at pace OPEN in
RUNNING, so the next record has ordinal 1 and sequence `next_sequence`. `batch_bytes` is the room for records: the 61 bytes of
the header come on top. Brokers forget nobody, and nodes share half of the pool. `rig.chance` spreads waits: 0 is 20 % less, 0.5 the middle, just below 1 is 20 % more. `rig.move`,
`rig.pace`, `rig.revoke`, `rig.grant` are the router's (or the joined sequencer's) messages.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from penstock.producer.accumulator.batch import ProducerBatch
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.records.batch_builder import HEADER_BYTES
from penstock.producer.records.compression import Codec
from penstock.producer.sender.modes import SendMode
from penstock.wire.messages import DoneBatch, FlushPartitions, SliceRef, StampRow

from tests.fakes.segments import NOW_MS, Row, slice_bytes
from tests.fakes.shard_bench import PRODUCER_ID, SEQUENCES, TOPIC, OnWire, ShardBench

LEADERS = {0: 1, 1: 1, 2: 2}

NOT_ENOUGH_REPLICAS = 19
"""A retriable refusal that leaves no doubt."""


class Ready(NamedTuple):
    """Nodes with something to send, and after how many ms to look again, if nothing happens; None: never."""

    nodes: set[int]
    delay_ms: float | None


class Rig(ShardBench):
    """See the module."""

    def __init__(
        self,
        *,
        batch_bytes: int = 1024,
        linger_ms: float = 0,
        pool_bytes: int = 1 << 20,
        codec: Codec = "none",
        retry_ms: tuple[float, float] = (100, 1000),
        leaders: dict[int, int] = LEADERS,
        leader_epoch: int = 0,
        next_sequence: int = 0,
    ) -> None:
        super().__init__(
            linger_s=linger_ms / 1000,
            batch_bytes=batch_bytes + HEADER_BYTES,
            pool_bytes=pool_bytes,
            codec=codec,
            backoff=Backoff(retry_ms[0] / 1000, retry_ms[1] / 1000),
        )
        self.budget = pool_bytes // (2 * len(set(leaders.values())))
        self.table.limits = self.table.limits._replace(expiration_ms=1 << 40, idle_check_s=math.inf)
        self.nodes(*sorted(set(leaders.values())))
        for partition, node in leaders.items():
            base = (1 - next_sequence) % SEQUENCES
            rows = [StampRow(PRODUCER_ID, 0, 0, base)]
            _ = self.grant(partition, node=node, rows=rows, leader_epoch=leader_epoch)
            self.append(partition)
            self.flush(partition)
            _ = self.send()
            self.answer()
            assert self.mode(partition) is SendMode.RUNNING
        self.started = len(self.done)
        self.ratio = self.table.accumulator.ratios.of(TOPIC, codec)
        """The estimate of compression, without what the small batches of the beginning told."""
        self.ratio.value = 1.0

    @property
    def told(self) -> list[DoneBatch]:
        """Batches that were acknowledged, in order, without those of the beginning."""
        return self.done[self.started :]

    def pass_ms(self, ms: float) -> None:
        """Time goes on."""
        self.now = round(self.now * 1000 + ms, 6) / 1000

    def slice_of(self, partition: int, rows: Sequence[Row]) -> SliceRef:
        """Put a slice where slices are read; `hand` it out."""
        first = self.next.get(partition, 0)
        data = slice_bytes(TOPIC, partition, first, rows)
        at = len(self.source.data)
        self.source.data += data
        self.next[partition] = first + len(rows)
        created_ms = round(self.now * 1000)
        return SliceRef(partition, self.generation[partition], 1, at, len(data), first, len(rows), created_ms, NOW_MS)

    def append(self, partition: int, *, value: bytes = b"value", key: bytes | None = b"key", count: int = 1) -> None:
        """Slices of one record each."""
        for _ in range(count):
            self.hand(self.slice_of(partition, [Row(value, key=key)]))

    def flush(self, *partitions: int) -> None:
        """Whatever was handed out of these partitions (of all, if none is named) waits for company no more."""
        through = [(one, self.next[one] - 1) for one in partitions or self.next]
        self.table.apply(FlushPartitions(through), now=self.now)

    def ready(self) -> Ready:
        """Look at the partitions, and send nothing."""
        self.tell()
        self.fill()
        nodes = {node for node in self.table.nodes if self.table.ready_partitions.has_work(node, now=self.now)}
        at = self.table.ready_partitions.next_deadline()
        return Ready(nodes, None if at is None else round((at - self.now) * 1000, 6))

    def drain(
        self, nodes: set[int] | None = None, *, max_bytes: int = 1 << 20
    ) -> dict[int, list[tuple[int, ProducerBatch]]]:
        """One request for each of these nodes (all that are ready, if None), on the wire now; by node what is in it."""
        drained: dict[int, list[tuple[int, ProducerBatch]]] = {}
        ready = self.ready().nodes
        for node in sorted(ready if nodes is None else nodes):
            request = self.request(node, bytes_max=max_bytes)
            entries = [] if request is None else request.flight.entries
            drained[node] = [(lease.partition, batch) for lease, batch in entries]
        self.listen()
        return drained

    def wire_of(self, partition: int) -> OnWire:
        """The oldest request on the wire with a batch of the partition."""
        return next(one for one in self.wire if any(copy[0] == partition for copy in one.copies))

    def unresolved(self, partition: int) -> list[ProducerBatch]:
        """Batches of the partition that wait for an outcome, oldest first."""
        return list(self.table.partitions[partition].unresolved)

    def counts(self, partition: int) -> list[int]:
        """How many records each batch in the partition's log has, without the first one."""
        return self.log(partition).batches[1:]


def partitions(drained: dict[int, list[tuple[int, ProducerBatch]]]) -> set[int]:
    """Whose batches were drained."""
    return {partition for entries in drained.values() for partition, _ in entries}
