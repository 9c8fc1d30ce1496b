"""A cluster of replicas under random accidents: what was acknowledged by all in-sync replicas is never lost, doubled or moved."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from penstock.broker.cluster.controller import CONTROLLER, PlacementError
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.replication.replicated_cluster import ClusterTiming, NoNodeError

from tests.harness.batches import HEAD, numbered
from tests.harness.broker_calls import Part
from tests.harness.cluster_calls import ClusterBench, Waiting
from tests.harness.counts import model_examples

NODES = st.sampled_from([1, 2, 3])
OTHERS = st.sampled_from([CONTROLLER, 1, 2, 3])
PID = 7
SEQUENCE = 11
"""Place of the first sequence among the fields of a batch's head."""


class Replicas(RuleBasedStateMachine):
    """One producer that keeps one batch on its way, as long as it takes, against nodes to which everything happens."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = ClusterBench(timing=ClusterTiming(session_s=3.0, lag_s=5.0))
        self.next = 0
        self.acknowledged: dict[int, int] = {}
        self.waiting: Waiting | None = None

    # The producer

    def running(self, node: int) -> bool:
        return self.bench.cluster.serves(node)

    @rule(node=NODES)
    def offer(self, node: int) -> None:
        """Send the batch that is due, or send it again, to some node."""
        if self.running(node):
            data = numbered(PID, 0, self.next, 1, self.bench.clock.wall_ms)
            self.taken(self.bench.offer(data, node=node, timeout_ms=2000))

    @rule(node=NODES)
    def stray_copy(self, node: int) -> None:
        """An old copy of an acknowledged batch comes late, with one ack."""
        if self.running(node) and self.next:
            _ = self.bench.offer(numbered(PID, 0, self.next - 1, 1, self.bench.clock.wall_ms), node=node, acks=1)

    @rule()
    def wait_on(self) -> None:
        if self.waiting is not None and self.running(self.waiting.node):
            answer = self.bench.go_on(self.waiting)
            self.waiting = None
            self.taken(answer if isinstance(answer, Waiting) else answer.responses[0].partition_responses[0])

    def taken(self, found: Part | Waiting) -> None:
        if isinstance(found, Waiting):
            self.waiting = found
        elif found.error_code == ErrorCode.NONE and found.base_offset not in self.acknowledged:
            self.acknowledged[found.base_offset] = self.next
            self.next += 1
            self.waiting = None

    # Accidents

    @rule(node=NODES, clean=st.booleans())
    def end(self, node: int, clean: bool) -> None:
        if self.bench.cluster.slots[node].node is not None:
            if self.waiting is not None and self.waiting.node == node:
                self.waiting = None
            (self.bench.cluster.stop if clean else self.bench.cluster.kill)(node, self.bench.clock.moment)

    @rule(node=NODES)
    def begin(self, node: int) -> None:
        try:
            self.bench.cluster.start(node, self.bench.clock.moment)
        except NoNodeError:
            assert self.bench.cluster.slots[node].node is not None

    @rule(node=NODES, paused=st.booleans())
    def pause(self, node: int, paused: bool) -> None:
        if self.bench.cluster.slots[node].node is not None:
            self.bench.cluster.pause(node, self.bench.clock.moment, paused=paused)

    @rule(node=NODES, held=st.booleans())
    def hold(self, node: int, held: bool) -> None:
        self.bench.cluster.pause_replication(node, self.bench.clock.moment, held=held)

    @rule(one=NODES, other=OTHERS)
    def cut(self, one: int, other: int) -> None:
        if one != other:
            self.bench.cluster.cut_link(one, other, self.bench.clock.moment)

    @rule()
    def heal(self) -> None:
        self.bench.cluster.heal(self.bench.clock.moment)

    @rule(node=NODES, seconds=st.sampled_from([0.0, 0.5, 4.0]))
    def delay_news(self, node: int, seconds: float) -> None:
        self.bench.cluster.delay_metadata(node, seconds)

    @rule(node=NODES)
    def elect(self, node: int) -> None:
        try:
            self.bench.cluster.elect("t", 0, node, self.bench.clock.moment)
        except PlacementError:
            assert node not in self.bench.in_sync or node not in self.bench.cluster.controller.live

    @rule(seconds=st.sampled_from([0.5, 3.5, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.bench.pass_s(seconds)

    # What must hold

    @invariant()
    def readers_see_whole_logs_in_order(self) -> None:
        for node in (1, 2, 3):
            if self.bench.cluster.slots[node].node is not None:
                heads = [HEAD.unpack_from(data) for data in self.bench.log(node)]
                assert [head[0] for head in heads] == list(range(len(heads)))
                assert self.bench.high_watermark(node) <= self.bench.log_end(node)

    def teardown(self) -> None:
        """All accidents end: everything acknowledged is there, once, and all replicas are alike."""
        cluster, clock = self.bench.cluster, self.bench.clock
        cluster.heal(clock.moment)
        for node, place in cluster.slots.items():
            if place.node is None:
                cluster.start(node, clock.moment)
            cluster.pause(node, clock.moment, paused=False)
            cluster.pause_replication(node, clock.moment, held=False)
            cluster.delay_metadata(node, 0.0)
        self.bench.pass_s(20)
        assert self.bench.in_sync == {1, 2, 3}
        logs = [self.bench.log(node) for node in (1, 2, 3)]
        assert logs[0] == logs[1] == logs[2]
        sequences = [HEAD.unpack_from(data)[SEQUENCE] for data in logs[0]]
        assert sequences == list(range(len(sequences)))
        assert {offset: sequences[offset] for offset in self.acknowledged} == self.acknowledged
        assert len(sequences) - len(self.acknowledged) in {0, 1}


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=model_examples(80), stateful_step_count=40, deadline=None)
