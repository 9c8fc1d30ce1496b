"""Brokers killed in the middle of transactions: a commit that readers never get to see (Kafka 4 can lose its marker, KAFKA-20734)
is reported by the producer, and everything that it told committed can be read."""

import os
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

import pytest

from tests.harness.kafka_cluster import OwnCluster, unique_topic
from tests.harness.kafka_node import VERSIONS
from tests.harness.transaction_job import Job
from tests.harness.transaction_judge import End, judge
from tests.harness.transaction_runs import Clients, end_hanging_transactions, read_committed_by_java

from .conftest import count_from

KILLS: Final = count_from("PENSTOCK_BROKER_KILLS", 2)
CLIENTS: Final = 3
PARTITIONS: Final = 6
A_KILL: Final = 60
"""Transactions of all clients between two kills."""
BLOCK_MS: Final = 20_000
REPORTED: Final = 4
"""How a client ends that was told of a commit nobody sees."""


def jobs_of(cluster: OwnCluster, topic: str, folder: Path, seed: int) -> list[Job]:
    return [
        Job(
            through="direct",
            bootstrap=cluster.bootstrap,
            transactional_id=f"{topic[-8:]}-{number}",
            topic=topic,
            partitions=PARTITIONS,
            ledger=str(folder / f"app-{number}.ledger"),
            first=0,
            end=(KILLS + 1) * A_KILL // CLIENTS,
            seed=seed,
            max_block_ms=BLOCK_MS,
        )
        for number in range(CLIENTS)
    ]


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize("version", VERSIONS[:1] if KILLS <= 2 else VERSIONS)
def test_what_was_told_committed_can_be_read_and_the_rest_is_reported(version: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED") or SystemRandom().randrange(1 << 32))
    random = Random(seed)
    cluster = OwnCluster(version, node_count=1)
    try:
        topic = cluster.create_topic(unique_topic(["markers"]), PARTITIONS)
        with Clients(jobs_of(cluster, topic, tmp_path, seed), tmp_path) as clients:
            for kill in range(KILLS):
                clients.wait_reached(kill * A_KILL + random.randrange(A_KILL // 4, A_KILL), seconds=60)
                cluster.nodes[1].kill()
                cluster.restart(1)
            statuses = clients.wait_ended(seconds=120 + 30 * KILLS)
            hanging = end_hanging_transactions(cluster, topic)
            verdict = judge(clients.told(), read_committed_by_java(cluster, topic))
    finally:
        cluster.close()
    print(
        f"\nKafka {version}, {KILLS} kills of the broker, seed {seed}: {verdict.summary()}; {verdict.unseen_missing} unseen, "
        f"statuses {statuses}, hanging in partitions {hanging}"
    )
    assert not verdict.wrong(), "\n".join([f"seed {seed}", *verdict.wrong()])
    assert verdict.ends[End.COMMITTED] > 0
    reported = verdict.ends[End.UNSEEN] + verdict.ends[End.UNCLEAR]
    assert reported or not hanging
    # Whoever stopped early had such a commit to report; nobody stopped for another reason.
    assert statuses.count(REPORTED) == reported
    assert set(statuses) <= {0, REPORTED}
