"""Leaders move and brokers die while records flow through the daemon: nothing is lost, doubled or put in another order."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.harness.checker import judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.ledger import Level
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.readers import read_topic
from tests.harness.records import Shape

from .conftest import own

# Older brokers are bounced, and their leaders moved, in test_bounced_brokers.
pytestmark = pytest.mark.newest_kafka
PARTITIONS: Final = 6
RECORDS: Final = 6_000
RATE: Final = 1_500
STEPS: Final = 5
BOUNCES: Final = 2


def jobs(daemon: Daemon, topic: str, folder: Path) -> list[Job]:
    """A keyed and a keyless client at `delivered`, and one at `spooled`."""
    kinds = [
        (Level.DELIVERED, 1, Shape(key_count=100, headers=True)),
        (Level.DELIVERED, 20, Shape()),
        (Level.SPOOLED, 20, Shape(key_count=100)),
    ]
    return [
        Job(
            through="penstock",
            address=str(daemon.socket_path),
            client=f"app-{number}",
            topic=topic,
            ledger=str(folder / f"app-{number}.ledger"),
            records=RECORDS,
            level=int(level),
            frame_records=frame_records,
            rate=RATE,
            shape=shape,
        )
        for number, (level, frame_records, shape) in enumerate(kinds)
    ]


def run_disturbed(cluster: Cluster, topic: str, folder: Path, disturb: Callable[[int], None], *, done_s: float) -> None:
    """Load with `disturb(step)` five times on the way, then the verdict."""
    with Daemon(cluster.bootstrap) as daemon:
        daemon.start()
        clients = jobs(daemon, topic, folder)
        with Load(clients, folder) as load:
            for step in range(STEPS):
                load.wait_sent((step + 1) * RECORDS * len(clients) // (STEPS + 1))
                disturb(step)
            load.wait_done(seconds=done_s)
        assert daemon.stop() == 0
        figures = judge(load.ledgers(), read_topic(cluster, topic))
        print(f"\nKafka {cluster.version}: {figures.summary()}")
        figures.assert_clean()


def test_leaders_that_move_while_records_flow_cost_nothing(
    kafka_three: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic = kafka_three.create_topic(topic_name, PARTITIONS)

    def move(step: int) -> None:
        kafka_three.rotate_leaders(topic)

    run_disturbed(kafka_three, topic, tmp_path, move, done_s=60)


def kill_and_restart(cluster: OwnCluster, node: int) -> None:
    cluster.nodes[node].kill()
    cluster.restart(node)


def stop_and_restart(cluster: OwnCluster, node: int) -> None:
    cluster.nodes[node].stop()
    cluster.restart(node)


@pytest.mark.parametrize("bounce", [kill_and_restart, stop_and_restart])
def test_a_broker_that_dies_and_comes_back_costs_nothing(
    kafka_three: Cluster, topic_name: str, tmp_path: Path, bounce: Callable[[OwnCluster, int], None]
) -> None:
    cluster = own(kafka_three)
    topic = cluster.create_topic(topic_name, PARTITIONS)

    def bounce_one(step: int) -> None:
        if step < BOUNCES:
            bounce(cluster, step + 1)

    run_disturbed(cluster, topic, tmp_path, bounce_one, done_s=120)


def test_the_only_broker_dies_and_comes_back_and_nothing_is_lost(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    cluster = own(kafka_one)
    topic = cluster.create_topic(topic_name, PARTITIONS)

    def bounce(step: int) -> None:
        if step < BOUNCES:
            kill_and_restart(cluster, 1)

    run_disturbed(cluster, topic, tmp_path, bounce, done_s=120)
