"""The router's leases and the shards' cores together, through deaths, lost connections, moves and refusals at any moment: each
log is the ordinal order, each record once, less what was parked."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes.joined_world import NODES, JoinedWorld
from tests.harness.counts import model_examples

SEATS = st.integers(0, 1)
PARTITIONS = st.integers(0, 2)


class Joined(RuleBasedStateMachine):
    @initialize(opened=st.booleans())
    def begin(self, opened: bool) -> None:
        self.world = JoinedWorld()
        self.world.exchange()
        if opened:
            for number in range(3):
                self.world.frame(number, 2)
            self.work(times=2, answers=3)

    @rule(
        numbers=st.lists(PARTITIONS, min_size=1, max_size=4),
        count=st.integers(1, 30),
        poison=st.sampled_from([None, None, None, None, 0, 5]),
    )
    def frames(self, numbers: list[int], count: int, poison: int | None) -> None:
        for number in numbers:
            self.world.frame(number, count, () if poison is None else (poison,))

    @rule(sync=st.booleans())
    def round(self, sync: bool) -> None:
        self.world.router_round(sync=sync)

    @rule(times=st.integers(1, 3), answers=st.integers(0, 5))
    def work(self, times: int, answers: int) -> None:
        for _ in range(times):
            self.world.exchange()
            for seat in self.world.shards:
                self.world.shard_sends(seat)
                for _ in range(answers):
                    if not self.world.shard_answered(seat):
                        break
        if answers > 3:
            self.world.exchange()

    @rule(seat=SEATS, heard=st.integers(0, 4), said=st.integers(0, 4), answers=st.integers(0, 2))
    def one_shard_works(self, seat: int, heard: int, said: int, answers: int) -> None:
        world = self.world
        if seat in world.shards:
            for _ in range(heard):
                world.shard_hears(seat)
            world.shard_sends(seat)
            for _ in range(answers):
                world.shard_answered(seat)
            for _ in range(said):
                world.router_hears(seat)

    @rule(number=PARTITIONS, node=st.sampled_from(NODES))
    def leader_moves(self, number: int, node: int) -> None:
        self.world.leader_moves(number, node)

    @rule(seat=SEATS, node=st.sampled_from(NODES), arrived=st.integers(0, 3))
    def connection_ends(self, seat: int, node: int, arrived: int) -> None:
        if seat in self.world.shards:
            self.world.connection_ends(seat, node, arrived)

    @rule(seat=SEATS, said=st.integers(0, 3), arrived=st.integers(0, 5))
    def shard_dies(self, seat: int, said: int, arrived: int) -> None:
        if seat in self.world.shards:
            self.world.shard_dies(seat, said=said, arrived=arrived)

    @rule(seat=SEATS)
    def shard_comes(self, seat: int) -> None:
        self.world.greet(seat)

    @rule(arrived=st.integers(0, 5))
    def router_dies(self, arrived: int) -> None:
        self.world.router_dies(arrived)

    @rule(arrived=st.integers(0, 5), journals=st.booleans())
    def power_cut(self, arrived: int, journals: bool) -> None:
        self.world.power_cut(arrived, journals=journals)

    @rule(number=PARTITIONS, arrived=st.integers(0, 5))
    def broker_restarts(self, number: int, arrived: int) -> None:
        self.world.broker_restarts(number, arrived)

    @rule(seconds=st.sampled_from([0.2, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.exchange()
        self.world.desk.now += seconds
        self.world.router_round(sync=True)

    @precondition(lambda self: self.world.requests)
    @rule()
    def letter_written(self) -> None:
        self.world.letter()

    @invariant()
    def at_most_one_holder(self) -> None:
        for number in range(3):
            holders = [seat for seat, shard in self.world.shards.items() if number in shard.table.partitions]
            assert len(holders) <= 1, (number, holders)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()
            self.world.check()


Joined.TestCase.settings = settings(
    max_examples=model_examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_router_and_shards_together_lose_and_double_nothing = Joined.TestCase
