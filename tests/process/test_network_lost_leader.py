"""A leader that dies without a word: the router must learn of it from who noticed."""

from pathlib import Path

from penstock.wire.messages import NewLeaderHint

from tests.harness.embedded import EmbeddedCluster
from tests.process.shard_world import ShardWorld


def test_a_shard_whose_connection_ends_says_that_metadata_is_stale(tmp_path: Path) -> None:
    with EmbeddedCluster(1) as cluster:
        topic = cluster.create_topic("lost-leader", 1)
        with ShardWorld(tmp_path, cluster, linger_ms=1) as world:
            world.greet()
            number = world.grant(topic, 0)
            world.hand(world.slice(topic, 0, [b"one"]))
            _ = world.router.until(lambda: world.router.acked_to(number) == 1)
            cluster.nodes[0].kill()
            hint = world.router.first(NewLeaderHint)
            assert (hint.partition, hint.leader) == (number, -1)
