"""K1, K2, K3: a shard, the router, or everything is killed again and again under load, and the topic is read back.

Counts come from the environment for long runs (PENSTOCK_KILLS); the schedule from PENSTOCK_SEED, drawn and named in a
failure when it is not set.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, NamedTuple

import pytest

from tests.harness.checker import Figures, judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster
from tests.harness.ledger import Level
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.readers import read_topic
from tests.harness.records import Shape

from .conftest import count_from

PARTITIONS: Final = 12
RATE: Final = 2_500
RECORDS_A_KILL: Final = 1_800
DONE_S: Final = 90.0

Strike = Callable[[Daemon, Random], str]


def kill_a_shard(daemon: Daemon, random: Random) -> str:
    return daemon.kill_some_shard(random)


def kill_the_router(daemon: Daemon, random: Random) -> str:
    _ = daemon.kill("router")
    # The socket outlives the router: a connect in this very moment waits in the backlog instead of being refused.
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(daemon.socket_path))
    return "router"


def kill_everything(daemon: Daemon, random: Random) -> str:
    daemon.kill_everything()
    daemon.start(ready=False)
    return "everything"


class Row(NamedTuple):
    """One row of the matrix."""

    name: str
    strike: Strike
    longest_wait_s: float
    """What an acknowledgement may take, on a machine that runs other things too."""


ROWS: Final = (
    Row("K1-shard", kill_a_shard, 30),
    Row("K2-router", kill_the_router, 30),
    Row("K3-everything", kill_everything, 60),
)
# What is killed is ours, so the version of the broker matters little: on older ones, only everything at once.
EACH_ROW: Final = pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row.strike is kill_everything else pytest.mark.newest_kafka) for row in ROWS],
    ids=[row.name for row in ROWS],
)


def jobs(daemon: Daemon, topic: str, folder: Path, records: int) -> list[Job]:
    """Four clients: every level, keyed and keyless, single records and columns."""
    kinds = [
        (Level.ACCEPTED, 1, Shape(key_count=200)),
        (Level.SPOOLED, 10, Shape(value_bytes=300, headers=True, timestamps=True, null_every=9)),
        (Level.DELIVERED, 1, Shape(key_count=50, headers=True)),
        (Level.DELIVERED, 50, Shape(key_count=1_000)),
    ]
    return [
        Job(
            through="penstock",
            address=str(daemon.socket_path),
            client=f"app-{number}",
            topic=topic,
            ledger=str(folder / f"app-{number}.ledger"),
            records=records // len(kinds),
            level=int(level),
            frame_records=frame_records,
            rate=RATE / len(kinds),
            shape=shape,
        )
        for number, (level, frame_records, shape) in enumerate(kinds)
    ]


def run_kills(cluster: Cluster, topic_name: str, folder: Path, row: Row, kills: int) -> Figures:
    """Load, `kills` strikes at moments drawn from a seed, the drain, and the verdict."""
    seed = int(os.environ.get("PENSTOCK_SEED") or SystemRandom().randrange(1 << 32))
    random = Random(seed)
    topic = cluster.create_topic(topic_name, PARTITIONS)
    records = (kills + 2) * RECORDS_A_KILL
    struck: list[str] = []
    try:
        with Daemon(cluster.bootstrap) as daemon:
            daemon.start()
            with Load(jobs(daemon, topic, folder, records), folder) as load:
                for moment in sorted(random.randrange(records // 20, records * 19 // 20) for _ in range(kills)):
                    load.wait_sent(moment)
                    struck.append(f"{row.strike(daemon, random)} at {moment}")
                load.wait_done(seconds=DONE_S)
            assert daemon.stop() == 0, "an orderly stop ends with status 0"
            figures = judge(load.ledgers(), read_topic(cluster, topic))
            print(f"\n{row.name}, Kafka {cluster.version}, {kills} kills, seed {seed}: {figures.summary()}")
            figures.assert_clean()
            # Many kills may hit one recovery after another.
            assert figures.longest_wait_s <= row.longest_wait_s * max(1.0, kills / 10)
    except BaseException as failure:
        failure.add_note(f"PENSTOCK_SEED={seed}; struck: {', '.join(struck)}")
        raise
    return figures


@EACH_ROW
def test_no_kill_loses_doubles_or_reorders_a_record_on_one_node(
    kafka_one: Cluster, topic_name: str, tmp_path: Path, row: Row
) -> None:
    figures = run_kills(kafka_one, topic_name, tmp_path, row, count_from("PENSTOCK_KILLS", 10))
    assert all(figures.acknowledged.values())


@EACH_ROW
def test_no_kill_loses_doubles_or_reorders_a_record_on_three_nodes(
    kafka_three: Cluster, topic_name: str, tmp_path: Path, row: Row
) -> None:
    figures = run_kills(kafka_three, topic_name, tmp_path, row, count_from("PENSTOCK_KILLS", 10))
    assert all(figures.acknowledged.values())


@pytest.mark.newest_kafka
def test_clients_without_an_id_lose_nothing_when_the_router_is_killed_and_may_find_records_twice(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    kills = 5
    with Daemon(kafka_one.bootstrap) as daemon:
        daemon.start()
        clients = [job._replace(anonymous=True) for job in jobs(daemon, topic, tmp_path, kills * RECORDS_A_KILL)]
        with Load(clients, tmp_path) as load:
            for strike in range(kills):
                load.wait_sent((strike + 1) * RECORDS_A_KILL // 2)
                _ = daemon.kill("router")
            load.wait_done(seconds=DONE_S)
        assert daemon.stop() == 0
        figures = judge(load.ledgers(), read_topic(kafka_one, topic))
    print(f"\nanonymous, Kafka {kafka_one.version}: {figures.summary()}")
    assert not any(figures.lost.values())
    assert (figures.phantom, figures.corrupt, figures.zombie_nack, figures.failed) == (0, 0, 0, 0)
