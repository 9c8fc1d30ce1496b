"""A real shard process between a router played by the test and real brokers of our own."""

import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from penstock.config import handover
from penstock.runtime.clock import monotonic, wall_ms
from penstock.wire.messages import (
    FIRST,
    OPEN,
    Anchor,
    BatchBounds,
    Grant,
    Move,
    Node,
    Nodes,
    Pace,
    SliceRef,
    Slices,
    StampRow,
)

from tests.fakes.router import FakeRouter, settings_for
from tests.fakes.segments import Row as Record
from tests.fakes.segments import SegmentWriter
from tests.harness.embedded import Caller
from tests.harness.kafka_cluster import Cluster
from tests.harness.processes import end, start_tied, tail

PRODUCER_ID = 4711
BUDGET = 16 << 20


class ShardWorld:
    """One shard, one router, one cluster. Partitions are numbered 100 + index."""

    def __init__(self, root: Path, cluster: Cluster, **kafka: object) -> None:
        self.root = root
        self.cluster = cluster
        self.settings = settings_for(root, **kafka)
        self.router = FakeRouter(self.settings)
        self.settings_path = root / "settings.json"
        handover.write(self.settings, self.settings_path)
        self.writer = SegmentWriter(self.settings.spool_dir)
        self.next: dict[int, int] = {}
        self.generation: dict[int, int] = {}
        self.leader_epoch: dict[int, int] = {}
        self.start()

    def start(self) -> None:
        with (self.root / "shard.stderr").open("ab") as stderr:
            self.process = start_tied(
                [
                    sys.executable,
                    "-I",
                    "-m",
                    "penstock.shards.worker",
                    "--settings",
                    str(self.settings_path),
                    "--seat",
                    "0",
                ],
                stderr=stderr,
            )

    def log(self) -> str:
        return tail(self.root / "shard.stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log())
        if self.process.poll() is None:
            self.process.kill()
        _ = end(self.process)
        self.writer.close()
        self.router.close()

    # --- the router's part ---------------------------------------------------------------------------------------------

    def nodes(self) -> Nodes:
        brokers = self.cluster.metadata().brokers
        return Nodes([Node(number, broker.host, broker.port, "", BUDGET) for number, broker in brokers.items()])

    def ask(self, topic: str) -> MetadataResponse.MetadataResponseTopic:
        """What any broker says of a topic."""
        host, _, port = self.cluster.bootstrap.split(",")[0].rpartition(":")
        with Caller((host, int(port))) as caller:
            wanted = MetadataRequest.MetadataRequestTopic(name=topic, topic_id=uuid.UUID(int=0))
            answer = caller.ask(MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), 12)
        assert isinstance(answer, MetadataResponse)
        return answer.topics[0]

    def follow(self, topic: str) -> int:
        """MOVE for every granted partition that has a newer leader; how many there were."""
        moved = 0
        for part in self.ask(topic).partitions:
            number = 100 + part.partition_index
            if part.leader_id >= 0 and part.leader_epoch > self.leader_epoch.get(number, 1 << 30):
                self.leader_epoch[number] = part.leader_epoch
                self.router.say(Move(number, self.generation[number], part.leader_id, part.leader_epoch))
                moved += 1
        return moved

    def greet(self) -> Path:
        """Welcome the shard and tell it its nodes; where its journal is."""
        hello = self.router.welcome()
        self.router.say(self.nodes())
        return self.settings.journal_dir / hello.journal

    def ended(self, *, seconds: float = 15) -> int:
        """The exit status of the shard."""
        return self.process.wait(seconds)

    def grant(
        self,
        topic: str,
        index: int,
        *,
        pace: str = FIRST,
        cuts: Sequence[BatchBounds] = (),
        next_ordinal: int = 0,
        anchor: Anchor | None = None,
        rows: Sequence[StampRow] = (StampRow(PRODUCER_ID, 0, 0, 0),),
        by_name: bool = False,
    ) -> int:
        number = 100 + index
        self.generation[number] = self.generation.get(number, 0) + 1
        known = self.ask(topic)
        (part,) = (part for part in known.partitions if part.partition_index == index)
        self.leader_epoch[number] = part.leader_epoch
        topic_id = None if by_name else known.topic_id.bytes
        self.router.say(
            Grant(
                number,
                topic,
                topic_id,
                index,
                self.generation[number],
                part.leader_id,
                part.leader_epoch,
                list(rows),
                next_ordinal,
                list(cuts),
                pace,
                anchor,
                -1 if anchor is None else 0,
            )
        )
        return number

    def open(self, number: int) -> None:
        """PACE OPEN after the first acknowledgement, as the router does once it is synced."""
        item = self.router.until(lambda: next((d for d in self.router.done if d.partition == number), None))
        anchor = Anchor(item.base_offset, item.time_ms, item.time_ms, item.leader_epoch)
        self.router.say(Pace(number, self.generation[number], OPEN, anchor, item.log_start))

    def slice(self, topic: str, index: int, values: Sequence[bytes]) -> SliceRef:
        number = 100 + index
        first = self.next.get(number, 0)
        self.next[number] = first + len(values)
        return self.writer.slice(
            number,
            self.generation.get(number, 1),
            topic,
            index,
            first,
            [Record(value) for value in values],
            created_ms=int(monotonic() * 1000),
            # A broker that starts again forgets a producer whose last batch is old by its records' own time.
            wall_ms=wall_ms(),
        )

    def hand(self, *refs: SliceRef) -> None:
        self.router.say(Slices([ref._replace(generation=self.generation[ref.partition]) for ref in refs]))
