"""What the partitions of one node take of its credit when some of them cannot send (HOP-3, DRN-4). A slice has 100 bytes."""

import pytest

from tests.fakes.lease_desk import Desk, refs


@pytest.fixture
def desk() -> Desk:
    """Three partitions, all led by node 1, with a credit of 20,000 slices."""
    made = Desk(seats=1)
    for index in range(3):
        made.partition(index)
    made.leases.set_producer_id(7)
    made.cluster((0, 1, 5), (1, 1, 5), (2, 1, 5), nodes=(1,))
    made.shard(0, credit=2_000_000)
    return made


def handed(desk: Desk) -> list[int]:
    """How many slices of each partition the shard was handed since it was last asked."""
    partitions = [ref.partition for ref in refs(desk.settle())]
    return [partitions.count(number) for number in range(3)]


def push(desk: Desk, number: int, slices: int) -> None:
    for _ in range(slices):
        desk.push(number, 1)


def test_stuck_partitions_leave_room_for_another_of_their_node(desk: Desk) -> None:
    push(desk, 0, 12_000)
    assert handed(desk) == [4_000, 0, 0]
    push(desk, 1, 12_000)
    assert handed(desk) == [0, 3_200, 0]
    push(desk, 2, 2_000)
    assert handed(desk) == [0, 0, 2_000]


def test_a_partition_at_its_share_goes_on_when_some_of_it_ends(desk: Desk) -> None:
    push(desk, 0, 12_000)
    assert handed(desk) == [4_000, 0, 0]

    desk.done(desk.held(0), 0, 700)

    assert handed(desk) == [560, 0, 0]


def test_a_partition_at_its_share_goes_on_when_credit_comes(desk: Desk) -> None:
    push(desk, 0, 12_000)
    assert handed(desk) == [4_000, 0, 0]

    desk.shard_credit(0, 1, 2_100_000)

    assert handed(desk) == [200, 0, 0]
