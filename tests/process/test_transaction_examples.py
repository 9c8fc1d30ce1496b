"""The examples of the page about transactions, run as they stand there."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.embedded import EmbeddedCluster, confluent
from tests.harness.readers import read_committed

pytestmark = pytest.mark.process
PAGE: Final = Path(__file__).resolve().parents[2] / "docs/howto/transactions.md"
BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BROKERS: Final = "broker-1:9092,broker-2:9092"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as running:
        for topic in ("orders", "payments", "events"):
            running.create_topic(topic, partitions=3)
        yield running


def run(cluster: EmbeddedCluster, number: int) -> None:
    text = BLOCK.findall(PAGE.read_text())[number]
    assert BROKERS in text
    command = [sys.executable, "-c", text.replace(BROKERS, cluster.bootstrap)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_the_first_example_commits_what_it_sends(cluster: EmbeddedCluster) -> None:
    run(cluster, 0)
    assert [one.value for one in read_committed(cluster, "payments")] == [b"12 EUR"]
    assert [one.value for one in read_committed(cluster, "events")] == [b"paid"]


def test_the_loop_carries_every_order_over_once_also_when_it_is_run_again(cluster: EmbeddedCluster) -> None:
    producer = confluent(cluster)
    orders = [b"order %d" % number for number in range(1000)]
    for place, order in enumerate(orders):
        producer.produce("orders", order, b"%d" % (place % 7))
        if place == len(orders) // 2:
            assert producer.flush(20) == 0
            run(cluster, 1)
    assert producer.flush(20) == 0
    run(cluster, 1)
    carried = sorted(one.value or b"" for one in read_committed(cluster, "payments"))
    assert carried == sorted(order.upper() for order in orders)
