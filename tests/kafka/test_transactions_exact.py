"""Many transactions with random aborts, while their processes are killed and coordinators are stopped: Kafka's own consumer sees
exactly the committed ones, once.

The count comes from PENSTOCK_TRANSACTIONS for long runs, the schedule from PENSTOCK_SEED, named in a failure.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

import pytest

from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.transaction_job import Job
from tests.harness.transaction_judge import End, judge
from tests.harness.transaction_runs import (
    Clients,
    coordinator_of,
    read_committed_by_java,
    set_transaction_version,
)

from .conftest import count_from, own

TRANSACTIONS: Final = count_from("PENSTOCK_TRANSACTIONS", 300)
KILLS: Final = count_from("PENSTOCK_TRANSACTION_KILLS", 4)
STOPS: Final = count_from("PENSTOCK_COORDINATOR_STOPS", 2)
CLIENTS: Final = 3
PARTITIONS: Final = 6
EACH_S: Final = 0.5
"""What a transaction may take on average, on a machine that runs other things too."""
TURN_S: Final = 150.0
NEWEST: Final = "4."


def seed_of_run() -> int:
    return int(os.environ.get("PENSTOCK_SEED") or SystemRandom().randrange(1 << 32))


@contextmanager
def finalised(cluster: OwnCluster, level: int) -> Iterator[None]:
    """The cluster finalises this version of transactions meanwhile; older ones know only the first."""
    if not cluster.version.startswith(NEWEST):
        if level != 1:
            pytest.skip(f"Kafka {cluster.version} has no version 2")
        yield
        return
    if level == 1:
        set_transaction_version(cluster, 1)
    try:
        yield
    finally:
        if level == 1:
            set_transaction_version(cluster, 2)


def jobs_of(cluster: OwnCluster, topic: str, folder: Path, *, through: str, seed: int, count: int) -> list[Job]:
    return [
        Job(
            through=through,
            bootstrap=cluster.bootstrap,
            transactional_id=f"{topic[-8:]}-{number}",
            topic=topic,
            partitions=PARTITIONS,
            ledger=str(folder / f"app-{number}.ledger"),
            first=0,
            end=count // CLIENTS + (number < count % CLIENTS),
            seed=seed,
        )
        for number in range(CLIENTS)
    ]


def run_transactions(cluster: OwnCluster, topic: str, folder: Path, through: str, kills: int, stops: int) -> None:
    """The run, with kills of clients and orderly stops of coordinators at moments drawn from a seed, and the verdict."""
    seed = seed_of_run()
    random = Random(seed)
    jobs = jobs_of(cluster, topic, folder, through=through, seed=seed, count=TRANSACTIONS)
    strikes = ["kill"] * kills + ["stop"] * stops
    random.shuffle(strikes)
    struck: list[str] = []
    try:
        with Clients(jobs, folder) as clients:
            moments = sorted(random.randrange(TRANSACTIONS // 20, TRANSACTIONS * 9 // 10) for _ in strikes)
            for moment, strike in zip(moments, strikes, strict=True):
                clients.wait_reached(moment, seconds=TURN_S + TRANSACTIONS * EACH_S)
                client = random.choice(clients.all)
                if strike == "kill":
                    client.kill()
                    struck.append(f"{client.job.transactional_id} killed at {moment}")
                else:
                    node = coordinator_of(cluster, client.job.transactional_id)
                    cluster.nodes[node].stop()
                    cluster.restart(node)
                    struck.append(f"node {node} stopped at {moment}")
            assert clients.wait_ended(seconds=TURN_S + TRANSACTIONS * EACH_S) == [0] * CLIENTS
            verdict = judge(clients.told(), read_committed_by_java(cluster, topic))
            print(
                f"\n{through}, Kafka {cluster.version}, {topic}, {kills} kills, {stops} stops, seed {seed}: {verdict.summary()}"
            )
    except BaseException as failure:
        failure.add_note(f"PENSTOCK_SEED={seed}; struck: {', '.join(struck)}")
        raise
    assert not verdict.wrong(), "\n".join([f"seed {seed}", *struck, *verdict.wrong()])
    assert sum(verdict.ends.values()) >= TRANSACTIONS - 1
    assert verdict.ends[End.COMMITTED] > TRANSACTIONS // 2
    assert verdict.ends[End.ABORTED] > 0
    assert verdict.ends[End.UNSEEN] == 0
    assert verdict.ends[End.DOUBTFUL] + verdict.ends[End.LEFT] <= kills


@pytest.mark.timeout(int(300 + TRANSACTIONS * EACH_S))
@pytest.mark.parametrize("version", [1, 2], ids=["TV1", "TV2"])
def test_readers_see_exactly_the_committed_transactions_once(
    kafka_three: Cluster, topic_name: str, tmp_path: Path, version: int
) -> None:
    cluster = own(kafka_three)
    with finalised(cluster, version):
        topic = cluster.create_topic(topic_name, PARTITIONS)
        run_transactions(cluster, topic, tmp_path, "direct", KILLS, STOPS)


@pytest.mark.skipif("PENSTOCK_TRANSACTIONS" not in os.environ, reason="proves the harness, in long runs")
def test_the_harness_judges_a_known_client_right(kafka_three: Cluster, topic_name: str, tmp_path: Path) -> None:
    cluster = own(kafka_three)
    topic = cluster.create_topic(topic_name, PARTITIONS)
    run_transactions(cluster, topic, tmp_path, "confluent", KILLS, 0)
