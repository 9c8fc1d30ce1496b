"""Records that meet the end of the producer: every future ends."""

import pytest
from penstock.api.errors import ClosedError, ExpiredMayBeWrittenError, FatalError, MetadataTimeoutError
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryFailureKind

from tests.fakes.front_world import TOPIC, FrontWorld


def test_a_keyless_record_that_meets_the_close_is_refused_where_nodes_have_budgets() -> None:
    world: FrontWorld

    def closes(*_: object) -> None:
        world.front.stop()

    world = FrontWorld(4, nodes=2, partitioner=closes)
    rounds = 0
    evade = world.front.topics.leave_full_node

    def counted(*given: object) -> bool:
        nonlocal rounds
        rounds += 1
        assert rounds < 10, "it goes round for ever under the lock"
        return evade(*given)

    world.front.topics.leave_full_node = counted
    with pytest.raises(ClosedError):
        world.send(TOPIC, b"v")


def test_memory_that_comes_back_when_the_producer_is_over_is_given_to_nobody() -> None:
    world = FrontWorld(1, buffer_memory=4096, batch_size=1024, max_request_size=4096, max_block_ms=5000)
    full = [world.send(TOPIC, bytes(900)) for _ in range(4)]
    sealed = world.take()

    def ends() -> None:
        world.front.stop()
        world.settle(*(Delivered(0, one.first, one.count, one.first, -1) for one in sealed))
        world.end()

    world.at(1, ends)
    with pytest.raises(ClosedError):
        world.send(TOPIC, bytes(900))
    assert all(future.done() for future in full)
    assert not world.front.completion.unsettled


def test_what_was_sealed_when_the_thread_ended_by_a_fault_may_be_written_and_the_rest_was_not() -> None:
    world = FrontWorld(1)
    sealed = world.send(TOPIC, b"v")
    world.take()
    held = world.send(TOPIC, b"v")
    world.end(DeliveryFailure(DeliveryFailureKind.FATAL, -1, "SENDER_FAILED", "a fault"))
    assert isinstance(sealed.exception(), ExpiredMayBeWrittenError)
    assert isinstance(held.exception(), FatalError)


def test_a_future_is_not_done_while_its_outcome_is_being_told_with_others() -> None:
    world = FrontWorld(2)
    future = world.send(TOPIC, b"v", partition=0)
    world.send(TOPIC, b"v", partition=1)
    sealed = world.take()
    seen: list[bool] = []

    def looks(number: int) -> tuple[str, int]:
        # Another thread looks, which is not the sender's.
        world.sender.is_current = False
        if number == 1:
            seen.append(future.done())
        world.sender.is_current = True
        return TOPIC, number

    world.sender.topic_of = looks
    world.settle(*(Delivered(one.index, one.first, one.count, 0, -1) for one in sealed))
    assert seen == [False]
    assert future.done()


@pytest.mark.parametrize(("there", "partition"), [(0, None), (1, 1)], ids=["gone", "smaller"])
def test_a_topic_that_is_gone_again_before_its_caller_goes_on_is_told_as_missing(
    there: int, partition: int | None
) -> None:
    world = FrontWorld(0, max_block_ms=1000)

    def comes_and_goes() -> None:
        world.tell(2)
        world.tell(there, code=0 if there else 3)

    world.at(0.1, comes_and_goes)
    future = world.send(TOPIC, b"v", partition=partition)
    assert isinstance(future.exception(), MetadataTimeoutError)


def test_a_partitioner_may_choose_a_partition_that_the_topic_got_since_it_was_forgotten() -> None:
    world: FrontWorld

    def chooses(*_: object) -> int:
        world.tell(0, code=3)
        world.tell(6)
        return 5

    world = FrontWorld(2, partitioner=lambda topic, key, value, partitions: len(partitions) - 1)
    partitions_of = world.front.topics.partitions_of

    def grown(topic: str) -> object:
        _ = chooses()
        return partitions_of(topic)

    world.front.topics.partitions_of = grown
    future = world.send(TOPIC, b"v")
    world.front.topics.partitions_of = partitions_of
    world.deliver()
    assert future.result().partition == 5
