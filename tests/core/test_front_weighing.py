"""What waits weighs the direct producer's choice of partitions."""

from penstock.producer.accumulator.partitioners import RoundRobinPartitioner

from tests.fakes.front_bench import FrontBench

VALUE = bytes(200)
"""More than a batch."""
NODES = {0: 1, 1: 1, 2: 2}


def bench(**settings: object) -> FrontBench:
    return FrontBench(NODES, **{"batch.size": 128, **settings})


def fill(front: FrontBench, *counts: int) -> None:
    for partition, count in enumerate(counts):
        for _ in range(count):
            _ = front.put(VALUE, partition=partition)


def chosen(front: FrontBench, count: int) -> list[int]:
    found = [front.put(VALUE) for _ in range(count + 1)][1:]
    return [found.count(partition) for partition in NODES]


def in_time(_node: int) -> float:
    return 0.0


def node_1_is_late(node: int) -> float:
    return 0.2 if node == 1 else 0.0


def test_the_choice_is_even_until_every_partition_has_been_written_to() -> None:
    front = bench()
    fill(front, 5, 5)
    front.front.update_partition_load(in_time)
    assert chosen(front, 30) == [10, 10, 10]
    fill(front, 0, 0, 1)
    front.front.update_partition_load(in_time)
    counts = chosen(front, 30)
    assert counts != [10, 10, 10]


def test_a_late_node_is_left_at_once_and_before_everything_was_written_to() -> None:
    front = bench(**{"partitioner.availability.timeout.ms": 100})
    assert front.put(b"small") == 0
    front.front.update_partition_load(node_1_is_late)
    assert front.put(b"small") == 2
    assert chosen(front, 10) == [0, 0, 10]
    front.front.update_partition_load(in_time)
    assert sum(chosen(front, 30)[:2]) > 0


def test_lateness_counts_for_nothing_without_a_timeout() -> None:
    front = bench()
    front.front.update_partition_load(node_1_is_late)
    assert chosen(front, 30) == [10, 10, 10]


def test_leaders_in_the_own_rack_are_preferred_while_one_of_them_takes_records() -> None:
    settings = {"partitioner.rack.aware": True, "client.rack": "east", "partitioner.availability.timeout.ms": 100}
    front = FrontBench(NODES, racks={1: "east", 2: "west"}, **{"batch.size": 128, **settings})
    assert chosen(front, 10) == [5, 5, 0]
    front.front.update_partition_load(node_1_is_late)
    assert chosen(front, 10) == [0, 0, 10]


def test_records_in_turn_are_not_weighed() -> None:
    front = bench(**{"partitioner.availability.timeout.ms": 100})
    topic = front.front.topics.by_name["t"]
    topic.keyless = RoundRobinPartitioner()
    front.lead(NODES, {})
    front.front.update_partition_load(node_1_is_late)
    assert chosen(front, 30) == [10, 10, 10]
