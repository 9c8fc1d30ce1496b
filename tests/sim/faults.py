"""What happens to a cluster and to the way to it, by a seed. Every fault ends by itself, or when all are to end."""

from collections.abc import Callable
from functools import partial
from random import Random

from penstock.broker.cluster.acls import AclBinding, AclOperation, AclResourceType
from penstock.broker.cluster.controller import CONTROLLER, PlacementError
from penstock.broker.cluster.faults import FailNext
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.log.topics import check_settings

from .network import NODES
from .world import PLACES, World

RETRIABLE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
ALLOWED = [AclBinding("*", operation, resource) for operation in AclOperation for resource in AclResourceType]


class Faults:
    """`begin` something; `end_all` is the end of all trouble."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world = world
        self.net = world.net
        self.cluster = world.cluster
        self.rng = rng
        self.log: list[str] = []
        self._denied: set[str] = set()
        self._quota: float | None = None
        self._ends: list[Callable[[], None]] = []
        usual = self.usual()
        # Some runs know few kinds of trouble, and those often.
        self.kinds = usual if rng.random() < 0.5 else rng.sample(usual, rng.randint(2, 5))
        self.pause_s = rng.choice((0.3, 1.0, 3.0))
        self.length = rng.choice((0.3, 1.0, 1.0, 3.0))

    def usual(self) -> list[Callable[[], None]]:
        """All that may go wrong, what happens more often more than once."""
        return [
            self.move, self.move, self.cut, self.cut, self.cut, self.kill, self.stop, self.pause, self.cut_off,
            self.part, self.hold, self.delay_news, self.silence, self.slow, self.throttle, self.forbid, self.shrink,
            self.lie,
        ]  # fmt: skip

    def begin(self) -> None:
        """Something goes wrong."""
        self.rng.choice(self.kinds)()

    def end_all(self) -> None:
        """Everything is well from now on."""
        while self._ends:
            self._ends[0]()

    def _note(self, what: str) -> None:
        self.log.append(f"{self.net.now - 1000:.3f} {what}")

    def _for(self, longest_s: float, end: Callable[[], None]) -> None:
        """Undo it after a while."""

        def once() -> None:
            if once in self._ends:
                self._ends.remove(once)
                end()

        self._ends.append(once)
        self.net.after(self.rng.uniform(0.05, longest_s * self.length), once)

    def _running(self) -> list[int]:
        return [node for node in NODES if self.cluster.slots[node].node is not None]

    # --- the cluster -------------------------------------------------------------------------------------------------

    def move(self) -> None:
        place, node = self.rng.choice(PLACES), self.rng.choice(NODES)
        try:
            self.cluster.elect(*place, node, self.net.moment)
        except PlacementError:
            return
        self._note(f"{place} is led by {node}")

    def kill(self) -> None:
        self._end_node(clean=False)

    def stop(self) -> None:
        self._end_node(clean=True)

    def _end_node(self, *, clean: bool) -> None:
        running = self._running()
        if not running:
            return
        node = self.rng.choice(running)
        (self.cluster.stop if clean else self.cluster.kill)(node, self.net.moment)
        self.net.ended(node)
        self._note(f"{node} is {'stopped' if clean else 'killed'}")
        self._for(8.0, partial(self._start, node))

    def _start(self, node: int) -> None:
        self.cluster.start(node, self.net.moment)
        self._tell_rights()
        self._note(f"{node} is started")

    def pause(self) -> None:
        node = self.rng.choice(self._running() or [0])
        if node and not self.cluster.slots[node].paused:
            self.cluster.pause(node, self.net.moment)
            self._note(f"{node} is paused")
            self._for(6.0, partial(self._resume, node))

    def _resume(self, node: int) -> None:
        if self.cluster.slots[node].node is not None:
            self.cluster.pause(node, self.net.moment, paused=False)
            self.net.resumed(node)
            self._note(f"{node} goes on")

    def cut_off(self) -> None:
        """A leader does not hear that it is none any more, and goes on answering."""
        self._cut(self.rng.choice(NODES), CONTROLLER)

    def part(self) -> None:
        one, other = self.rng.sample(NODES, 2)
        self._cut(one, other)

    def _cut(self, one: int, other: int) -> None:
        self.cluster.cut_link(one, other, self.net.moment)
        self._note(f"{one} and {other} do not hear each other")
        self._for(10.0, self._heal)

    def _heal(self) -> None:
        self.cluster.heal(self.net.moment)
        self._note("all nodes hear each other")

    def hold(self) -> None:
        node = self.rng.choice(NODES)
        self.cluster.pause_replication(node, self.net.moment)
        self._note(f"{node} does not copy")
        self._for(5.0, lambda: self.cluster.pause_replication(node, self.net.moment, held=False))

    def delay_news(self) -> None:
        node = self.rng.choice(NODES)
        self.cluster.delay_metadata(node, self.rng.choice((0.3, 1.0, 4.0)))
        self._note(f"{node} hears late")
        self._for(8.0, lambda: self.cluster.delay_metadata(node, 0.0))

    # --- what brokers say --------------------------------------------------------------------------------------------

    def throttle(self) -> None:
        self._quota = self.rng.choice((500.0, 3_000.0))
        self._tell_rights()
        self._note("the producer is slowed down")
        self._for(5.0, self._full_speed)

    def _full_speed(self) -> None:
        self._quota = None
        self._tell_rights()

    def forbid(self) -> None:
        topic = self.rng.choice(("three", "one"))
        self._denied.add(topic)
        self._tell_rights()
        self._note(f"nobody may write to {topic}")
        self._for(3.0, partial(self._allow, topic))

    def _allow(self, topic: str) -> None:
        self._denied.discard(topic)
        self._tell_rights()
        self._note(f"writing to {topic} is allowed")

    def _tell_rights(self) -> None:
        for number in self._running():
            node = self.cluster.node(number)
            node.quotas.set("simulated", self._quota)
            node.authorizer.clear()
            if self._denied:
                for grant in ALLOWED:
                    node.authorizer.add(grant)
                for topic in self._denied:
                    node.authorizer.add(AclBinding("*", AclOperation.WRITE, AclResourceType.TOPIC, topic, deny=True))

    def shrink(self) -> None:
        """Smaller batches are taken than before."""
        topic, size = self.rng.choice(("three", "one")), self.rng.choice((110, 200, 500))
        self._limit(topic, size)
        self._note(f"{topic} takes batches of {size} bytes")
        self._for(3.0, partial(self._limit, topic, None))

    def _limit(self, topic: str, size: int | None) -> None:
        controller = self.cluster.controller
        settings = dict(controller.topic(topic).settings)
        _ = settings.pop("max.message.bytes", None)
        if size is not None:
            settings["max.message.bytes"] = str(size)
        assert controller.alter(controller.topic(topic), check_settings(settings))
        self.cluster.run_until_stable(self.net.moment)

    def lie(self) -> None:
        """A broker answers with an error that says nothing, whether it wrote or not."""
        for number in self._running():
            node = self.cluster.node(number)
            rule = FailNext(0, self.rng.choice(RETRIABLE), self.rng.randint(1, 3), applied=self.rng.random() < 0.5)
            node.faults.add(rule)
        self._note("brokers fail without cause")
        self._for(1.0, self._truth)

    def _truth(self) -> None:
        for number in self._running():
            self.cluster.node(number).faults.clear()

    # --- the way there -----------------------------------------------------------------------------------------------

    def cut(self) -> None:
        wires = [wire for node in NODES for wire in self.net.wires_of(node) if not wire.deaf]
        if wires:
            wire = self.rng.choice(wires)
            wire.cut()
            self._note(f"a connection to {wire.node} ends")

    def silence(self) -> None:
        node = self.rng.choice(NODES)
        self.net.silent.add(node)
        self._note(f"nothing gets through to {node}")
        self._for(5.0, partial(self.net.unsilence, node))

    def slow(self) -> None:
        node = self.rng.choice(NODES)
        self.net.slow[node] = self.rng.choice((0.05, 0.5, 2.0))
        self._note(f"{node} is far away")
        self._for(6.0, lambda: self.net.slow.pop(node, None) and None)
