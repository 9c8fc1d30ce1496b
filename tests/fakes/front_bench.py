"""The direct producer's front without its sender thread: one topic whose partitions are known, a clock and chance that the test
moves, chunks that the test takes."""

import threading
from collections.abc import Callable, Mapping
from itertools import count

from penstock.config.direct import direct_settings
from penstock.producer.direct.environment import Environment
from penstock.producer.direct.front import Front
from penstock.producer.kernel.append import SendMethods
from penstock.producer.metadata.cluster import BrokerAddress, Cluster, PartitionView, TopicView

from .segments import NOW_MS
from .shard_bench import TOPIC


class NoThread:
    """A sender thread that never does anything: the test is it."""

    is_current = False

    def wake(self) -> None: ...
    def want_topic(self, topic: str) -> None: ...
    def request_topic(self, topic: str) -> None: ...
    def start(self) -> None: ...
    def close(self, timeout_s: float | None) -> None: ...
    def after_fork(self) -> None: ...

    def join(self, timeout_s: float | None = None) -> bool:
        return True

    def topic_of(self, number: int) -> tuple[str, int]:
        raise AssertionError(f"partition {number} has no number")


class FrontBench(SendMethods):
    """`leaders`: node of each partition, -1 for none. Chance counts 0, 1, 2, …; `draws` says how often it was asked."""

    condition: Callable[[threading.Lock], threading.Condition] = threading.Condition

    def __init__(
        self, leaders: Mapping[int, int], *, racks: Mapping[int, str] | None = None, **settings: object
    ) -> None:
        self.now = 1000.0
        self.draws = 0
        numbers = count()

        def random31() -> int:
            self.draws += 1
            return next(numbers)

        checked = direct_settings({"bootstrap.servers": "broker:1", **settings})
        lock = threading.Lock()
        shared = self.condition(lock)
        self.front = Front(
            checked, Environment(lambda: self.now, lambda: NOW_MS, shared, random31, lambda: self.condition(lock))
        )
        self.front.connect_sender(NoThread())
        self._appender = self.front.appender
        self.told = Counted(self.front)
        self.lead(leaders, racks or {})

    def lead(self, leaders: Mapping[int, int], racks: Mapping[int, str]) -> None:
        """The cluster as metadata has it."""
        nodes = {node: BrokerAddress(node, "h", 9092, racks.get(node, "")) for node in leaders.values() if node >= 0}
        partitions = {index: PartitionView(index, node, 0, (node,), (node,), 0) for index, node in leaders.items()}
        view = TopicView(TOPIC, None, partitions, 0, internal=False)
        self.front.topics.cluster = Cluster(nodes=nodes, topics={TOPIC: view})
        with self.front.condition:
            _ = self.front.topics.update(TOPIC, view)

    def put(self, value: bytes, *, partition: int | None = None, key: bytes | None = None) -> int:
        """Send a record; returns its partition."""
        before = self.told.counts()
        _ = self.send(TOPIC, value, key, partition=partition)
        after = self.told.counts()
        (grown,) = [index for index, many in after.items() if many != before.get(index, 0)]
        return grown


class Counted:
    """How many records each partition has without an outcome."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def counts(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for chunk in self._front.completion.unsettled.values():
            found[chunk.part.index] = found.get(chunk.part.index, 0) + chunk.count
        return found
