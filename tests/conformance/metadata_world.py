"""Snapshot, plan and waits as a producer joins them, with brokers that say what the test wants, on a clock in milliseconds.

::

    world = World(idle_ms=60_000)
    world.cache.want("t", world.now)
    assert world.wait_ms() == 0                     # how long until topics are asked for; the clock is moved there
    world.answer(told("t", (1, 7)))                 # what the question brings: partition 0, led by node 1 in epoch 7
    wait = world.begin("t", max_block_ms=60_000)    # as `send` does
    world.update()                                  # the broker knows of nothing new; waits are told
"""

import uuid
from collections.abc import Sequence
from typing import Final

from penstock.producer.metadata.cache import CacheOptions, MetadataCache, MetadataResult
from penstock.producer.metadata.cluster import BrokerAddress, MetadataAnswer, PartitionView, TopicAnswer
from penstock.producer.metadata.refresh import (
    BrokerConfigQuery,
    BrokerTarget,
    MetadataUpdaterLimits,
    ProducerIdQuery,
    TopicConfigQuery,
    TopicMetadataQuery,
)
from penstock.producer.metadata.topic_waits import TopicSnapshot, TopicWait, TopicWaits, topic_snapshot
from penstock.producer.protocol.backoff import Backoff

ONE, TWO, THREE = (BrokerAddress(node, f"broker-{node}", 9092, "") for node in (1, 2, 3))
ID_A, ID_B, ID_C, ID_D = (uuid.UUID(int=number).bytes for number in (1, 2, 3, 4))
SEED: Final = ("seed", 9092)
UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, INVALID, FORBIDDEN = 3, 5, 17, 29
_ROUNDS_MAX: Final = 10_000


def told(
    name: str,
    *leaders: tuple[int, int],
    topic_id: bytes | None = ID_A,
    code: int = 0,
    in_sync: tuple[int, ...] = (1, 2, 3),
) -> TopicAnswer:
    """What a broker says of a topic: (leader, epoch) of each partition."""
    parts = [PartitionView(index, node, epoch, (1, 2, 3), in_sync, 0) for index, (node, epoch) in enumerate(leaders)]
    return TopicAnswer(name, topic_id, code, False, parts)


def missing(name: str, code: int = UNKNOWN_TOPIC) -> TopicAnswer:
    return TopicAnswer(name, None, code, False, [])


def whole(*topics: TopicAnswer, brokers: Sequence[BrokerAddress] = (ONE, TWO, THREE), code: int = 0) -> MetadataAnswer:
    return MetadataAnswer(list(brokers), "c", 1, list(topics), code)


class World:
    """`requests`, `awaits` and `fetches` count what somebody who waits for a topic costs (MDW-4)."""

    def __init__(
        self,
        *,
        backoff_ms: int = 100,
        backoff_max_ms: int = 1_000,
        age_ms: int = 300_000,
        idle_ms: int = 300_000,
        rebootstrap_ms: int | None = 300_000,
        joined: bool = True,
    ) -> None:
        self.now = 10.0
        self.chance = 0.5
        self.used: set[str] = set()
        limits = MetadataUpdaterLimits(
            retry=Backoff(backoff_ms / 1000, backoff_max_ms / 1000),
            reconnect=Backoff(0.05, 1.0),
            permission_backoff=Backoff(1.0, 30.0),
            max_age_s=age_ms / 1000,
            max_idle_s=idle_ms / 1000,
            rebootstrap_after_s=None if rebootstrap_ms is None else rebootstrap_ms / 1000,
        )
        options = CacheOptions(auto_create=False, topic_settings=False, in_use=lambda: self.used)
        self.cache = MetadataCache(limits, [SEED], options, now=self.now)
        self.plan = self.cache.updater
        self.waits = TopicWaits(self.fetch)
        self.wanted: dict[str, None] = {}
        """What records went to since the plan was last told."""
        self.ask: TopicMetadataQuery | None = None
        self.brokers: dict[str, TopicAnswer] = {}
        """What `update` answers, by topic; what is not here is unknown."""
        self.requests = self.awaits = self.fetches = 0
        if joined:
            assert self.wait_ms() == 0
            _ = self.answer()

    # --- time and questions ------------------------------------------------------------------------------------------

    def pass_ms(self, ms: float) -> None:
        self.now += ms / 1000

    def connect(self) -> BrokerTarget | None:
        return self.plan.target(self.now, self.chance)

    def asks(self) -> TopicMetadataQuery | None:
        """What the shell does in a round: connect, ask; questions of other kinds are answered at once."""
        if self.connect() is None:
            return None
        for ask in self.plan.due_queries(self.now):
            match ask:
                case TopicMetadataQuery():
                    self.ask = ask
                case BrokerConfigQuery():
                    self.plan.answered_broker_settings(told=True, now=self.now, chance=self.chance)
                case ProducerIdQuery() | TopicConfigQuery():
                    raise AssertionError("nobody wanted it")
        return self.ask

    def wait_ms(self) -> int:
        """Go round as the loop does, to the next question for topics. The time that took."""
        began = self.now
        self.ask = None
        for _ in range(_ROUNDS_MAX):
            if self.asks() is not None:
                return round((self.now - began) * 1000)
            at = self.plan.next_deadline(connected=self.plan.current is not None)
            assert at is not None, "nothing would ever be asked again"
            assert at > self.now, "the loop would not rest"
            self.now = at
        raise AssertionError("no question came")

    def answer(
        self, *topics: TopicAnswer, brokers: Sequence[BrokerAddress] = (ONE, TWO, THREE), code: int = 0
    ) -> MetadataResult:
        """Answer the open question."""
        assert self.ask is not None, "nothing was asked"
        ask, self.ask = self.ask, None
        return self.cache.apply_response(ask, whole(*topics, brokers=brokers, code=code), self.now, self.chance)

    def ask_and_answer(self, *topics: TopicAnswer, brokers: Sequence[BrokerAddress] = (ONE, TWO, THREE)) -> int:
        """Both; the time until the question."""
        waited = self.wait_ms()
        _ = self.answer(*topics, brokers=brokers)
        return waited

    def lose(self) -> None:
        """The open question is not answered; the connection stays."""
        assert self.ask is not None, "nothing was asked"
        self.plan.queries_failed([self.ask], self.now, self.chance)
        self.ask = None

    # --- who waits ---------------------------------------------------------------------------------------------------

    def begin(self, topic: str, partition: int | None = None, *, max_block_ms: int = 60_000) -> TopicWait:
        self.wanted[topic] = None
        return self.waits.begin(topic, partition, max_block_ms=max_block_ms, now=self.now)

    def hand_over(self) -> None:
        """What the sender thread does before its round: what is wanted goes to the plan."""
        for topic in self.wanted:
            self.cache.want(topic, self.now)
        self.wanted.clear()
        for topic in self.waits.take_requests():
            self.requests += 1
            self.plan.request(topic, self.now)

    def update(self, *, late_ms: int = 0) -> list[TopicWait]:
        """The next question is asked and answered with what `brokers` know, and the waits are told `late_ms` after it."""
        self.hand_over()
        self.awaits += self.waits.next_deadline() is not None
        _ = self.wait_ms()
        assert self.ask is not None
        _ = self.answer(*(self.brokers.get(topic, missing(topic)) for topic in self.ask.topics))
        self.pass_ms(late_ms)
        return self.waits.metadata_updated(self.now)

    def leader(self, topic: str = "t", index: int = 0) -> tuple[int, int]:
        """Who leads, as far as it has an address (-1: nobody), and in which epoch."""
        view = self.cache.cluster.partition(topic, index)
        assert view is not None
        address = self.cache.cluster.leader(topic, index)
        return -1 if address is None else address.node, view.leader_epoch

    def fetch(self, topic: str) -> TopicSnapshot:
        self.fetches += 1
        return topic_snapshot(self.cache.cluster, topic)
