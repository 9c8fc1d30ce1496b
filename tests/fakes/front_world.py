"""A direct producer on virtual time: its sender thread is a script, and who waits lets the script go on instead of sleeping."""

import heapq
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from penstock.producer import DirectProducer
from penstock.producer.accumulator.chunk_store import SealedChunk
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryFailureKind, DeliveryOutcome, Failed
from penstock.producer.direct.environment import Environment, SenderPort
from penstock.producer.direct.front import Front
from penstock.producer.metadata.cluster import BrokerAddress, Cluster, PartitionView, TopicView

TOPIC = "topic"
NOW_MS = 1_488_748_346_917


class Patience(threading.Condition):
    """A wait passes time in the world: the next event of its script, or the time-out, whichever comes first."""

    def __init__(self, world: "FrontWorld", lock: threading.RLock) -> None:
        super().__init__(lock)
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.release()
        try:
            self._world.pass_time(timeout)
        finally:
            self.acquire()
        return True


class ScriptedSender:
    """The sender thread as the front sees it; everything it is asked for is written down."""

    def __init__(self, world: "FrontWorld") -> None:
        self.is_current = False
        self.wakes = 0
        self.requests: list[str] = []
        self.wanted: list[str] = []
        self.closes: list[float | None] = []
        self._world = world

    def wake(self) -> None:
        self.wakes += 1

    def want_topic(self, topic: str) -> None:
        self.wanted.append(topic)

    def request_topic(self, topic: str) -> None:
        self.requests.append(topic)

    def start(self) -> None: ...
    def after_fork(self) -> None: ...

    def topic_of(self, number: int) -> tuple[str, int]:
        return TOPIC, number

    def close(self, timeout_s: float | None) -> None:
        self.closes.append(timeout_s)
        if timeout_s == 0:
            self._world.end()

    def join(self, timeout_s: float | None = None) -> bool:
        self._world.joined(timeout_s)
        return self._world.over


class FrontWorld(DirectProducer):
    """`partitions` of `TOPIC` are known from the start; 0: nothing is. Partition numbers are the partitions' own; `nodes` lead
    them in turn. `plugins`: serializers and interceptors."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        nodes: int = 1,
        partitioner: Any = None,
        plugins: Mapping[str, Any] | None = None,
        **settings: object,
    ) -> None:
        self.nodes = nodes
        self.now = 1000.0
        self.over = False
        self.told = 0
        self.script: list[tuple[float, int, Callable[[], None]]] = []
        self.sender = ScriptedSender(self)
        self.sent: list[SealedChunk] = []
        super().__init__({"bootstrap.servers": "broker:1", **settings}, partitioner=partitioner, **(plugins or {}))
        if partitions:
            self.tell(partitions)

    def _make_front_and_sender(self, seams: Environment) -> tuple[Front, SenderPort]:
        lock = threading.RLock()
        front, _ = super()._make_front_and_sender(
            Environment(lambda: self.now, lambda: NOW_MS, Patience(self, lock), lambda: 0, lambda: Patience(self, lock))
        )
        return front, cast("SenderPort", self.sender)

    @property
    def front(self) -> Front:
        return self._front

    # --- time --------------------------------------------------------------------------------------------------------

    def at(self, after_s: float, event: Callable[[], None]) -> None:
        """Have something happen while somebody waits."""
        heapq.heappush(self.script, (self.now + after_s, len(self.script), event))

    def pass_time(self, longest_s: float) -> None:
        if self.script and self.script[0][0] <= self.now + longest_s:
            self.now, _, event = heapq.heappop(self.script)
            event()
        else:
            assert longest_s < 3600, "a wait without an end, and nothing will happen"
            self.now += longest_s

    def joined(self, timeout_s: float | None) -> None:
        """Somebody waits for the thread."""
        deadline = self.now + (3000 if timeout_s is None else timeout_s)
        while not self.over and self.now < deadline:
            self.pass_time(deadline - self.now)

    # --- the sender thread -------------------------------------------------------------------------------------------

    def as_sender(self, work: Callable[[], None]) -> None:
        self.sender.is_current = True
        try:
            work()
        finally:
            self.sender.is_current = False

    def tell(self, partitions: int, *, code: int = 0, topic: str = TOPIC) -> None:
        """A Metadata answer came."""
        led = {index: index % self.nodes for index in range(partitions)}
        parts = {index: PartitionView(index, node, 0, (node,), (node,), 0) for index, node in led.items()}
        self.told += 1
        view = TopicView(topic, None, MappingProxyType(parts), code, internal=False, updated_version=self.told)
        nodes: Mapping[int, BrokerAddress] = {node: BrokerAddress(node, "broker", 1, "") for node in range(self.nodes)}
        self.as_sender(lambda: self._front.cluster_changed(Cluster("c", 0, nodes, {topic: view})))

    def take(self) -> list[SealedChunk]:
        """Seal everything that is open or full."""
        due = self._front.drain(self.now, all_chunks=True)
        self.sent += due
        return due

    def settle(self, *outcomes: DeliveryOutcome) -> None:
        self.as_sender(lambda: self._front.settle(outcomes))

    def deliver(self, offset: int = 0, log_append_ms: int = -1) -> None:
        """All that is open reaches the log, with offsets from this one on in each partition."""
        sealed: Sequence[SealedChunk] = self.take()
        self.settle(*(Delivered(one.index, one.first, one.count, offset + one.first, log_append_ms) for one in sealed))

    def fail(
        self, kind: DeliveryFailureKind, *, code: int = -1, name: str = "WHY", first: int = 0, count: int = 1
    ) -> None:
        """These records of partition 0 have failed; they were taken before."""
        self.settle(Failed(0, first, count, DeliveryFailure(kind, code, name, "because"), released=True))

    def end(self, failure: DeliveryFailure | None = None) -> None:
        """The thread is over."""
        self.over = True
        self.as_sender(lambda: self._front.sender_ended(failure))
