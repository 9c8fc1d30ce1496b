"""Faults of other clients' senders under brokers that answer anything at any moment: nobody falls silent, nothing changes places."""

import random
from typing import Final

import pytest

from tests.conformance.joined_rig import (
    INVALID_RECORD,
    LEADER_NOT_AVAILABLE,
    LEADERS,
    MESSAGE_TOO_LARGE,
    NOT_LEADER,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_PRODUCER_ID,
    JoinedRig,
)

UNKNOWN_SERVER: Final = -1
NOT_ENOUGH_REPLICAS: Final = 19
CODES: Final = (
    NOT_LEADER,
    LEADER_NOT_AVAILABLE,
    REQUEST_TIMED_OUT,
    NOT_ENOUGH_REPLICAS,
    UNKNOWN_SERVER,
    OUT_OF_ORDER,
    UNKNOWN_PRODUCER_ID,
    MESSAGE_TOO_LARGE,
    INVALID_RECORD,
    TOPIC_AUTHORIZATION_FAILED,
)
STEPS: Final = 60
ROUNDS: Final = 10_000
REST_S: Final = 60.0
"""Enough for a gap to be confirmed, which may take longer than a record is waited for."""


class Trouble:
    """A rig whose brokers do what chance says."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = JoinedRig(
            in_flight=self.chance.choice([1, 5]),
            backoff_ms=(10, 100),
            delivery_ms=self.chance.choice([1500, 3000, 600_000]),
        )
        self.sent = 0
        self.ids = 1000

    def send(self, partition: int) -> int:
        """The next record; values rise."""
        self.sent += 1
        return self.rig.append(partition, value=b"%d" % self.sent)

    def step(self, epoch: int) -> None:
        """Some records, and one event."""
        rig, chance = self.rig, self.chance
        for partition in LEADERS:
            if chance.random() < 0.5:
                _ = self.send(partition)
        rig.chance = chance.random()
        rig.run()
        event = chance.random()
        if rig.wire and event < 0.5:
            rig.answer()
        elif rig.wire and event < 0.75:
            sent = chance.choice(rig.wire[0].sent)
            rig.refuse(chance.choice(CODES), partition=sent.partition, request=rig.wire[0], log_start=0)
        elif event < 0.85:
            rig.lose(chance.choice([0, 1]), arrived=chance.randrange(3))
        elif event < 0.9:
            rig.lead(chance.choice(list(LEADERS)), node=chance.choice([0, 1]), epoch=epoch)
        elif event < 0.93:
            rig.log(chance.choice(list(LEADERS))).restart()
        rig.pass_ms(chance.choice([0, 10, 200, 2000]))

    def settle(self, rest_s: float = 0.0) -> None:
        """No more faults: until so much time has passed and every record has its outcome."""
        rig = self.rig
        end = rig.now + rest_s
        for _ in range(ROUNDS):
            rig.run()
            if rig.joined.wants_producer_id:
                self.ids += 1
                rig.joined.producer_id_known(self.ids, 0, now=rig.now)
            elif rig.wire:
                rig.answer()
            elif rig.now >= end and all(
                self.outcomes(partition) == set(range(1, rig.first(partition))) for partition in LEADERS
            ):
                return
            else:
                rig.pass_ms(100)
        raise AssertionError("some records have no outcome")

    def outcomes(self, partition: int) -> set[int]:
        """Ordinals that are delivered or have failed."""
        delivered, failed = set(self.rig.delivered(partition)), set(self.rig.failed(partition))
        assert not delivered & failed
        return delivered | failed


@pytest.mark.fault("K1", "K6", "K7", "K8", "K16")
@pytest.mark.parametrize("seed", range(60))
def test_whatever_brokers_answer_each_record_has_one_outcome_and_the_next_ones_are_delivered(seed: int) -> None:
    trouble = Trouble(seed)
    rig = trouble.rig
    for epoch in range(1, STEPS + 1):
        trouble.step(epoch)
    trouble.settle(REST_S)
    assert rig.joined.failure is None
    later = {partition: [trouble.send(partition) for _ in range(3)] for partition in LEADERS}
    trouble.settle()
    for partition in LEADERS:
        assert set(later[partition]) <= set(rig.delivered(partition))
        found = [int(value) for value in rig.log(partition).records[1:]]
        assert found == sorted(set(found)), "each once, in order"
        assert len(found) >= len(rig.delivered(partition))
