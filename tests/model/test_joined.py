"""The joined producer against model brokers, with losses, moves, restarts, refusals and time at random.

Held at every step: a log has our records in order, each once. At the end: every record had one outcome; what was delivered is in the
log, what was refused or expired unsent is not.
"""

from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailureKind, Failed, Released

from tests.conformance.joined_rig import INVALID_RECORD, NOT_LEADER, TOPIC, JoinedRig
from tests.harness.counts import model_examples

PARTITIONS: Final = (0, 1)
CODES: Final = (NOT_LEADER, 5, 7, 19, -1)


class JoinedMachine(RuleBasedStateMachine):
    @initialize(delivery_ms=st.sampled_from((2_000, 20_000, 120_000)), batch_bytes=st.sampled_from((60, 300, 16_384)))
    def start(self, delivery_ms: int, batch_bytes: int) -> None:
        self.rig = JoinedRig(
            leaders=dict.fromkeys(PARTITIONS, 0), delivery_ms=delivery_ms, batch_bytes=batch_bytes, backoff_ms=(10, 100)
        )
        for log in self.rig.logs.values():
            log.records[0] = (0).to_bytes(8, "big")
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.leaders = dict.fromkeys(PARTITIONS, 0)

    @rule(partition=st.sampled_from(PARTITIONS), counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def append(self, partition: int, counts: list[int]) -> None:
        for count in counts:
            for _ in range(count):
                _ = self.rig.append(partition, value=self.rig.first(partition).to_bytes(8, "big"))
            self.rig.run()

    @rule()
    def run(self) -> None:
        self.rig.run()

    @rule(ms=st.sampled_from((1, 100, 1_000, 15_000, 45_000)))
    def pass_time(self, ms: int) -> None:
        self.rig.pass_ms(ms)
        self.rig.run()

    @precondition(lambda self: self.rig.wire)
    @rule()
    def answer(self) -> None:
        self.rig.answer()

    @precondition(lambda self: self.rig.wire)
    @rule(code=st.sampled_from(CODES), appended=st.booleans())
    def trouble(self, code: int, appended: bool) -> None:
        request = self.rig.wire[0]
        if appended and code != 19:
            for sent in request.sent:
                _ = self.rig.log(sent.partition).produce(sent.data)
        self.rig.refuse(code, partition=request.sent[0].partition, request=request)

    @precondition(lambda self: self.rig.wire)
    @rule()
    def refuse(self) -> None:
        """The limits of the topic changed: what may be in the log is refused all the same."""
        request = self.rig.wire[0]
        self.rig.refuse(INVALID_RECORD, partition=request.sent[0].partition, request=request)

    @rule(node=st.integers(0, 1), arrived=st.integers(0, 3))
    def lose(self, node: int, arrived: int) -> None:
        self.rig.lose(node, arrived=arrived)

    @rule(partition=st.sampled_from(PARTITIONS))
    def move(self, partition: int) -> None:
        self.epochs[partition] += 1
        self.leaders[partition] = 1 - self.leaders[partition]
        self.rig.lead(partition, node=self.leaders[partition], epoch=self.epochs[partition])

    @rule(partition=st.sampled_from(PARTITIONS))
    def restart_broker(self, partition: int) -> None:
        self.rig.log(partition).restart()

    @rule(node=st.integers(0, 1))
    def stop_or_start(self, node: int) -> None:
        self.rig.lose(node)
        self.rig.down ^= {node}

    @invariant()
    def every_log_is_in_order_each_once(self) -> None:
        if not hasattr(self, "rig"):
            return
        for partition in PARTITIONS:
            found = self.logged(partition)
            assert found == sorted(set(found)), (partition, found)

    def logged(self, partition: int) -> list[int]:
        return [int.from_bytes(value[:8], "big") for value in self.rig.log(partition).records]

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        rig.down.clear()
        for more in range(5):
            if rig.joined.idle:
                break
            self.drain()
            if rig.joined.wants_producer_id:
                rig.joined.producer_id_known(500_000 + more, 0, now=rig.now)
        assert rig.joined.idle
        for partition in PARTITIONS:
            self.check(partition)
        while rig.wire:
            rig.answer()
        assert rig.pool.lent_bytes == 0

    def drain(self) -> None:
        rig = self.rig
        for _ in range(2_000):
            rig.run()
            if rig.wire:
                rig.answer()
            elif rig.joined.idle or rig.joined.wants_producer_id:
                return
            else:
                rig.pass_ms(500)
        raise AssertionError("it goes on for ever")

    def check(self, partition: int) -> None:
        rig = self.rig
        number = rig.joined.number_of(TOPIC, partition)
        told: dict[int, Delivered | Failed] = {}
        ghosts: set[int] = set()
        for one in rig.outcomes:
            if one.partition != number:
                continue
            for ordinal in range(one.first, one.first + one.count):
                if isinstance(one, Released):
                    ghosts.remove(ordinal)
                    continue
                assert ordinal not in told, f"record {ordinal} has two outcomes"
                told[ordinal] = one
                if isinstance(one, Failed) and not one.released:
                    ghosts.add(ordinal)
        assert sorted(told) == list(range(1, rig.first(partition)))
        assert not ghosts
        logged = self.logged(partition)
        for ordinal, one in told.items():
            if isinstance(one, Delivered):
                assert ordinal in logged
                if one.base_offset >= 0:
                    assert logged.index(ordinal) == one.base_offset + ordinal - one.first
            elif one.failure.kind in (DeliveryFailureKind.REFUSED, DeliveryFailureKind.EXPIRED):
                assert ordinal not in logged, f"record {ordinal} is in the log: {one.failure}"


TestJoined = JoinedMachine.TestCase
TestJoined.settings = settings(max_examples=model_examples(300), stateful_step_count=40, deadline=None)
