"""Any history of questions, answers and losses: one question of a kind at a time, and every topic gets its turn."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from penstock.producer.metadata.cluster import BrokerAddress
from penstock.producer.metadata.refresh import (
    BOOTSTRAP,
    BrokerConfigQuery,
    ControlQuery,
    MetadataUpdater,
    MetadataUpdaterLimits,
    ProducerIdQuery,
    TopicConfigQuery,
    TopicMetadataQuery,
    TopicStatus,
)
from penstock.producer.protocol.backoff import Backoff

from tests.harness.counts import model_examples

LIMITS = MetadataUpdaterLimits(
    retry=Backoff(0.1, 1.0),
    reconnect=Backoff(0.05, 1.0),
    permission_backoff=Backoff(1.0, 30.0),
    max_age_s=300.0,
    max_idle_s=3_600.0,
    rebootstrap_after_s=300.0,
)
TOPICS = ["a", "b", "c", "d"]
ALL = {node: BrokerAddress(node, f"broker-{node}", 9092, "") for node in range(4)}
MIDDLE = 0.5


class PlanMachine(RuleBasedStateMachine):
    """The plan, driven as the shell drives it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1.0
        self.plan = MetadataUpdater(LIMITS, [("seed", 1), ("broker-1", 9092)], now=self.now)
        self.asked: list[ControlQuery] = []
        self.wanted: set[str] = set()
        self.known: set[str] = set()
        self.producer_id_owed = False

    @rule(topic=st.sampled_from(TOPICS))
    def want(self, topic: str) -> None:
        assert self.plan.want(topic, self.now) == (topic not in self.wanted)
        self.wanted.add(topic)

    @rule(topic=st.sampled_from(TOPICS))
    def forget(self, topic: str) -> None:
        self.plan.forget(topic)
        self.wanted.discard(topic)
        self.known.discard(topic)

    @rule()
    def refresh(self) -> None:
        self.plan.refresh(self.now)

    @rule()
    def need_producer_id(self) -> None:
        self.plan.request_producer_id(self.now)
        self.producer_id_owed = True

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.3, 2.0, 400.0]), chance=st.floats(0, 1, exclude_max=True))
    def go_on(self, seconds: float, chance: float) -> None:
        self.now += seconds
        if self.plan.target(self.now, chance) is not None:
            self.ask()

    def ask(self) -> None:
        asks = self.plan.due_queries(self.now)
        on_a_bootstrap_address = self.plan.current is not None and self.plan.current.node == BOOTSTRAP
        for ask in asks:
            assert isinstance(ask, TopicMetadataQuery) or not on_a_bootstrap_address
            assert not isinstance(ask, TopicMetadataQuery) or set(ask.topics) <= self.wanted
            assert isinstance(ask, TopicConfigQuery) or type(ask) not in {type(other) for other in self.asked}
        self.asked += asks

    @precondition(lambda self: self.asked)
    @rule(
        data=st.data(),
        told=st.sampled_from([*TopicStatus]),
        fine=st.booleans(),
        nodes=st.sets(st.sampled_from(sorted(ALL)), min_size=1),
    )
    def answer(self, data: st.DataObject, told: TopicStatus, fine: bool, nodes: set[int]) -> None:
        ask = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        match ask:
            case TopicMetadataQuery(topics):
                self.plan.answered_topics(ask, dict.fromkeys(topics, told), changed=fine, now=self.now, chance=MIDDLE)
                if told is TopicStatus.SETTLED:
                    self.known |= set(topics) & self.wanted
                if self.plan.update_nodes({node: ALL[node] for node in nodes}):
                    self.lose()
            case ProducerIdQuery():
                if fine:
                    self.plan.answered_producer_id()
                    self.producer_id_owed = False
                else:
                    self.plan.refused_producer_id(forbidden=False, now=self.now, chance=MIDDLE)
            case TopicConfigQuery(topics):
                self.plan.answered_topic_settings(topics if fine else (), () if fine else topics, self.now, MIDDLE)
            case BrokerConfigQuery():
                self.plan.answered_broker_settings(told=fine, now=self.now, chance=MIDDLE)

    def lose(self) -> None:
        self.plan.queries_failed(self.asked, self.now, MIDDLE)
        self.asked.clear()

    @precondition(lambda self: self.plan.current is not None)
    @rule()
    def connection_ends(self) -> None:
        self.lose()
        self.plan.connection_failed(self.now, MIDDLE)
        assert self.plan.current is None

    @precondition(lambda self: self.plan.current is not None)
    @rule()
    def sent_back(self) -> None:
        self.lose()
        self.plan.rebootstrap()

    @invariant()
    def something_always_comes_next(self) -> None:
        connected = self.plan.current is not None
        told = any(isinstance(ask, TopicMetadataQuery) for ask in self.asked)
        assert self.plan.next_deadline(connected=connected) is not None or told

    def teardown(self) -> None:
        """From any state on, honest brokers answer everything within a few rounds."""
        for _ in range(40):
            if self.plan.target(self.now, 0.0) is not None:
                self.ask()
            while self.asked:
                ask = self.asked.pop(0)
                match ask:
                    case TopicMetadataQuery(topics):
                        news = dict.fromkeys(topics, TopicStatus.SETTLED)
                        self.plan.answered_topics(ask, news, changed=True, now=self.now, chance=MIDDLE)
                        self.known |= set(topics)
                        if self.plan.update_nodes(ALL):
                            self.lose()
                    case ProducerIdQuery():
                        self.plan.answered_producer_id()
                        self.producer_id_owed = False
                    case TopicConfigQuery(topics):
                        self.plan.answered_topic_settings(topics, (), self.now, MIDDLE)
                    case BrokerConfigQuery():
                        self.plan.answered_broker_settings(told=True, now=self.now, chance=MIDDLE)
            deadline = self.plan.next_deadline(connected=self.plan.current is not None)
            assert deadline is not None
            self.now = max(self.now, deadline)
        assert self.wanted <= self.known
        assert not self.producer_id_owed


TestPlan = PlanMachine.TestCase
TestPlan.settings = settings(TestPlan.settings, max_examples=model_examples(100))
