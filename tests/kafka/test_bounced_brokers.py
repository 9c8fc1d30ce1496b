"""Brokers are bounced one after the other while records flow, and leaders are moved in between: nothing is lost, doubled or put
in another order, neither through the daemon nor by the direct producer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.harness.checker import judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.readers import read_topic
from tests.harness.records import Shape

from .conftest import count_from, own

PARTITIONS: Final = 6
BOUNCES: Final = count_from("PENSTOCK_BOUNCES", 3)
RATE: Final = 1_000
RECORDS_A_BOUNCE: Final = 6_000
FINISH_S: Final = 180.0
KINDS: Final = [(1, Shape(key_count=100, headers=True)), (20, Shape())]


@contextmanager
def address_of(through: str, cluster: Cluster) -> Iterator[str]:
    """Where clients of that way connect to."""
    if through == "direct":
        yield cluster.bootstrap
        return
    with Daemon(cluster.bootstrap) as daemon:
        daemon.start()
        yield str(daemon.socket_path)
        assert daemon.stop() == 0


@pytest.mark.timeout(300 + 60 * BOUNCES)
@pytest.mark.parametrize("through", ["direct", "penstock"])
def test_brokers_bounced_one_after_the_other_cost_nothing(
    kafka_three: Cluster, topic_name: str, tmp_path: Path, through: str
) -> None:
    cluster = own(kafka_three)
    topic = cluster.create_topic(topic_name, PARTITIONS)
    records = RECORDS_A_BOUNCE * BOUNCES
    with address_of(through, cluster) as address:
        jobs = [
            Job(
                through=through,
                address=address,
                client=f"app-{number}",
                topic=topic,
                ledger=str(tmp_path / f"app-{number}.ledger"),
                records=records,
                frame_records=frame_records,
                rate=RATE,
                finish_s=FINISH_S,
                shape=shape,
            )
            for number, (frame_records, shape) in enumerate(KINDS)
        ]
        with Load(jobs, tmp_path) as load:
            for bounce in range(BOUNCES):
                load.wait_sent((2 * bounce + 1) * records * len(jobs) // (2 * BOUNCES + 1), seconds=120)
                node = bounce % len(cluster.nodes) + 1
                # Killed and stopped in turn: one leaves its leaders behind, the other hands them over.
                if bounce % 2:
                    cluster.nodes[node].stop()
                else:
                    cluster.nodes[node].kill()
                cluster.restart(node)
                cluster.rotate_leaders(topic)
            load.wait_done(seconds=FINISH_S)
        figures = judge(load.ledgers(), read_topic(cluster, topic))
    print(f"\n{through}, Kafka {cluster.version}, {BOUNCES} bounces: {figures.summary()}")
    figures.assert_clean()
