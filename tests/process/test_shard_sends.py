"""A shard process against real sockets: from a grant to records in a broker, and what its journal says meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.readers import read_topic
from tests.process.shard_world import ShardWorld

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as made:
        yield made


def test_slices_of_a_granted_partition_are_in_the_log_once_and_in_order(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    topic = cluster.create_topic("plain", 3)
    with ShardWorld(tmp_path, cluster, compression_type="lz4", linger_ms=1) as world:
        world.greet()
        numbers = [world.grant(topic, index) for index in range(3)]
        for round_ in range(20):
            refs = [
                world.slice(topic, index, [b"%d-%d-%d" % (index, round_, n) for n in range(50)]) for index in range(3)
            ]
            world.hand(*refs)
        for number in numbers:
            world.open(number)
        for number in numbers:
            _ = world.router.until(lambda number=number: world.router.acked_to(number) == 1000)
    found = list(read_topic(cluster, topic))
    for index in range(3):
        values = [one.value for one in found if one.partition == index]
        assert values == [b"%d-%d-%d" % (index, round_, n) for round_ in range(20) for n in range(50)]
