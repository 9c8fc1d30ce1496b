"""A loop that consumes, transforms and produces is killed again and again: each record is carried over exactly once, in order."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.harness.kafka_cluster import Cluster
from tests.harness.processes import Deadline, end, start_tied, tail
from tests.harness.transaction_runs import read_committed_by_java
from tests.harness.transform_loop import transform

from .conftest import count_from

RECORDS: Final = count_from("PENSTOCK_LOOP_RECORDS", 10_000)
KILLS: Final = count_from("PENSTOCK_LOOP_KILLS", 3)
PARTITIONS: Final = 4
DONE_S: Final = 120.0 + RECORDS / 500


def fill(cluster: Cluster, topic: str) -> list[list[str]]:
    """Numbered values, dealt to the partitions; each partition's, in order."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 2})
    dealt: list[list[str]] = [[] for _ in range(PARTITIONS)]
    for number in range(RECORDS):
        value = f"record-{number:07d}"
        dealt[number % PARTITIONS].append(value)
        while True:
            try:
                producer.produce(topic, value.encode(), partition=number % PARTITIONS)
                break
            except BufferError:
                _ = producer.poll(0.1)
    assert producer.flush(60) == 0
    return dealt


def start(cluster: Cluster, source: str, target: str, errors: Path) -> subprocess.Popen[bytes]:
    words = [cluster.bootstrap, f"loop-{source}", f"group-{source}", source, target]
    with errors.open("ab") as log:
        return start_tied(
            [sys.executable, "-m", "tests.harness.transform_loop", *words], stdout=subprocess.PIPE, stderr=log
        )


def follow(process: subprocess.Popen[bytes], count: int, deadline: Deadline) -> bool:
    """Until so many records are carried over. False: the process has ended before."""
    assert process.stdout is not None
    for line in process.stdout:
        _ = deadline.left()
        if int(line) >= count:
            return True
    return False


@pytest.mark.timeout(int(300 + RECORDS / 100))
def test_every_record_is_carried_over_exactly_once_though_the_loop_is_killed(
    kafka_three: Cluster, topic_name: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED") or SystemRandom().randrange(1 << 32))
    source = kafka_three.create_topic(f"{topic_name}-in", PARTITIONS)
    target = kafka_three.create_topic(f"{topic_name}-out", PARTITIONS)
    dealt = fill(kafka_three, source)
    random = Random(seed)
    deadline = Deadline(DONE_S, "everything is carried over")
    errors = tmp_path / "loop.errors"
    process = start(kafka_three, source, target, errors)
    try:
        for moment in sorted(random.randrange(RECORDS // 20, RECORDS * 9 // 10) for _ in range(KILLS)):
            assert follow(process, moment, deadline), tail(errors)
            process.kill()
            _ = process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
            process = start(kafka_three, source, target, errors)
        _ = follow(process, RECORDS + 1, deadline)
        assert process.wait(60) == 0, tail(errors)
    finally:
        _ = end(process, seconds=5)
        assert process.stdout is not None
        process.stdout.close()
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    for partition, value in read_committed_by_java(kafka_three, target):
        found[partition].append(value)
    wanted = [[transform(value.encode()).decode() for value in values] for values in dealt]
    print(f"\n{RECORDS} records, {KILLS} kills, Kafka {kafka_three.version}, seed {seed}")
    for partition, values in enumerate(wanted):
        assert found[partition] == values, f"partition {partition} differs (PENSTOCK_SEED={seed})"
