"""A shard process before real Kafka, with a router played by the test."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from penstock.wire.messages import OPEN, Anchor, NewLeaderHint, PartitionHalted, Revoke

from tests.harness.kafka_cluster import Cluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.process.shard_world import ShardWorld

from .conftest import own


def values(index: int, start: int, count: int) -> list[bytes]:
    return [b"%d-%06d" % (index, start + n) for n in range(count)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_arrives_in_order(kafka_one: Cluster, topic_name: str, tmp_path: Path, codec: str) -> None:
    topic = kafka_one.create_topic(topic_name, 2)
    with ShardWorld(tmp_path, kafka_one, compression_type=codec, linger_ms=1, batch_size=8192) as world:
        _ = world.greet()
        numbers = [world.grant(topic, index) for index in range(2)]
        for n in range(30):
            world.hand(*(world.slice(topic, index, values(index, 100 * n, 100)) for index in range(2)))
        for number in numbers:
            world.open(number)
        for number in numbers:
            _ = world.router.until(lambda number=number: world.router.acked_to(number) == 3000)
    found = list(read_topic(kafka_one, topic))
    for index in range(2):
        assert [one.value for one in found if one.partition == index] == values(index, 0, 3000)


def test_leaders_that_move_and_die_neither_lose_nor_repeat_nor_reorder(
    kafka_three: Cluster, topic_name: str, tmp_path: Path
) -> None:
    cluster = own(kafka_three)
    topic = cluster.create_topic(topic_name, 3)
    total = 30_000
    with ShardWorld(tmp_path, cluster, linger_ms=0, batch_size=2048, request_timeout_ms=4000) as world:
        _ = world.greet()
        numbers = [world.grant(topic, index) for index in range(3)]
        refs = [[world.slice(topic, index, values(index, n, 100)) for n in range(0, total, 100)] for index in range(3)]
        for line in refs:
            world.hand(*line)
        for number in numbers:
            world.open(number)

        def reached(goal: int) -> bool:
            if any(isinstance(message, NewLeaderHint) for message in world.router.messages):
                world.router.messages = [one for one in world.router.messages if not isinstance(one, NewLeaderHint)]
                _ = world.follow(topic)
            return all(world.router.acked_to(number) >= goal for number in numbers)

        _ = world.router.until(lambda: reached(2000), seconds=60)
        cluster.rotate_leaders(topic)
        _ = world.router.until(lambda: reached(8000), seconds=60)
        victim = next(iter(cluster.leaders(topic).values()))
        cluster.nodes[victim].kill()
        cluster.restart(victim)
        _ = world.follow(topic)
        _ = world.router.until(lambda: reached(14_000), seconds=60)
        cluster.rotate_leaders(topic)
        _ = world.router.until(lambda: reached(total), seconds=90)
        assert not world.router.messages
    found = list(read_topic(cluster, topic))
    for index in range(3):
        assert [one.value for one in found if one.partition == index] == values(index, 0, total)


def test_a_topic_made_again_takes_nothing_as_a_success(kafka_one: Cluster, topic_name: str, tmp_path: Path) -> None:
    topic = kafka_one.create_topic(topic_name, 1)
    with ShardWorld(tmp_path, kafka_one, linger_ms=0) as world:
        _ = world.greet()
        number = world.grant(topic, 0)
        world.hand(world.slice(topic, 0, values(0, 0, 100)))
        world.open(number)
        _ = world.router.until(lambda: world.router.acked_to(number) == 100)
        before = world.ask(topic).topic_id
        kafka_one.delete_topic(topic)
        _ = wait_until(lambda: made_again(kafka_one, topic), seconds=30, what="the topic is made again")
        assert world.ask(topic).topic_id != before
        world.hand(world.slice(topic, 0, values(0, 100, 10)))
        # By id the broker does not know it; by name its offsets or its new id give it away.
        told = world.router.until(
            lambda: next(
                (one for one in world.router.messages if isinstance(one, NewLeaderHint | PartitionHalted)), None
            )
        )
        if isinstance(told, NewLeaderHint):
            assert told.leader == -1
        assert world.router.acked_to(number) == 100


def made_again(cluster: Cluster, topic: str) -> bool:
    try:
        _ = cluster.create_topic(topic, 1)
    except KafkaException:
        return False
    return True


def test_a_lease_taken_over_asks_where_the_log_starts_and_goes_on(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic = kafka_one.create_topic(topic_name, 1)
    with ShardWorld(tmp_path, kafka_one, linger_ms=0, batch_size=2048) as world:
        _ = world.greet()
        number = world.grant(topic, 0)
        refs = [world.slice(topic, 0, values(0, n, 100)) for n in range(0, 6000, 100)]
        world.hand(*refs)
        world.open(number)
        _ = world.router.until(lambda: world.router.acked_to(number) >= 500)
        world.router.say(Revoke(number, world.generation[number]))
        returned = world.router.revoked(number)
        mark, item = world.router.acked_to(number), world.router.done[-1]
        anchor = Anchor(item.base_offset, item.time_ms, item.time_ms, item.leader_epoch)
        _ = world.grant(topic, 0, pace=OPEN, cuts=returned.cuts, next_ordinal=mark, anchor=anchor)
        world.hand(*(ref for ref in refs if ref.first + ref.count > mark))
        _ = world.router.until(lambda: world.router.acked_to(number) == 6000)
        assert not world.router.messages
    assert [one.value for one in read_topic(kafka_one, topic)] == values(0, 0, 6000)
