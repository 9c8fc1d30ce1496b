"""Many records of 100 B through the socket at `delivered`, undisturbed and with kills: all distinct, all in order.

PENSTOCK_RECORDS says how many (`make soak`: a million). Who is killed comes from the commit; `PENSTOCK_SEED` repeats it.
"""

from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.harness.checker import Figures, judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster
from tests.harness.ledger import Level
from tests.harness.load import Load, spread
from tests.harness.load_client import Job
from tests.harness.readers import read_topic
from tests.harness.records import Shape
from tests.harness.seeds import first_seed, named_in_failures

from .conftest import count_from

PARTITIONS: Final = 12
CLIENTS: Final = 4
SHORT_RUN: Final = 200_000
"""Below this many records there are two kills of each kind, else five: recovery takes longer than the records."""
DONE_S: Final = 240.0
LONGEST_WAIT_S: Final = 29.0
"""With kills one after another; below the 30 s after which a request would be given up, so that a stall shows."""


def jobs(daemon: Daemon, topic: str, folder: Path, records: int) -> list[Job]:
    """Four clients, two keyed and two keyless, with columns of 1,000."""
    return [
        Job(
            through="penstock",
            address=str(daemon.socket_path),
            client=f"app-{number}",
            topic=topic,
            ledger=str(folder / f"app-{number}.ledger"),
            records=share,
            level=int(Level.DELIVERED),
            frame_records=1_000,
            finish_s=DONE_S,
            shape=Shape(value_bytes=100, key_count=10_000 if number % 2 else 0),
        )
        for number, share in enumerate(spread(records, CLIENTS))
    ]


def verdict(cluster: Cluster, topic: str, load: Load) -> Figures:
    """The figures, which must be those of a clean run."""
    figures = judge(load.ledgers(), read_topic(cluster, topic, seconds=DONE_S))
    print(f"\nKafka {cluster.version}: {figures.summary()}")
    figures.assert_clean()
    assert figures.longest_wait_s <= LONGEST_WAIT_S
    return figures


@pytest.mark.timeout(600)
def test_every_record_arrives_once_and_in_order(kafka_one: Cluster, topic_name: str, tmp_path: Path) -> None:
    records = count_from("PENSTOCK_RECORDS", 100_000)
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    with Daemon(kafka_one.bootstrap, kafka={"compression.type": "lz4"}) as daemon:
        daemon.start()
        with Load(jobs(daemon, topic, tmp_path, records), tmp_path) as load:
            load.wait_done(seconds=DONE_S)
        assert daemon.stop() == 0
        assert kafka_one.record_count(topic) == records
        assert verdict(kafka_one, topic, load).sent == records


@pytest.mark.timeout(600)
def test_every_record_arrives_once_and_in_order_though_shards_and_router_are_killed(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    records = count_from("PENSTOCK_RECORDS", 100_000)
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    seed = first_seed()
    random = Random(seed)
    with named_in_failures(seed), Daemon(kafka_one.bootstrap, kafka={"compression.type": "lz4"}) as daemon:
        daemon.start()
        with Load(jobs(daemon, topic, tmp_path, records), tmp_path) as load:
            kills = 4 if records < SHORT_RUN else 10
            for strike in range(kills):
                # By answers, not by calls: the clients run ahead as far as their buffers let them.
                load.wait_answered(records * (strike + 1) // (kills + 2), seconds=DONE_S)
                _ = daemon.kill("router" if strike % 2 else f"shard-{random.randrange(daemon.shards)}")
            load.wait_done(seconds=DONE_S)
        assert daemon.stop() == 0
        assert kafka_one.record_count(topic) == records
        assert verdict(kafka_one, topic, load).sent == records
