"""One broker of three stops answering for a while (SIGSTOP) without being declared dead: the others' partitions keep their rate,
keyless records go elsewhere, memory stays inside its bounds, and everything arrives afterwards, in order."""

import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import pytest

from tests.harness.checker import judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import OwnCluster
from tests.harness.kafka_node import VERSIONS
from tests.harness.ledger import Kind, Ledger
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.readers import read_topic
from tests.harness.records import Shape

from .conftest import count_from

FROZEN_S: Final = count_from("PENSTOCK_FROZEN_S", 10)
"""Twice as long as it takes to fill the buffer with what cannot be sent; the soak has a minute."""
WARM_S: Final = 5
AFTER_S: Final = 5
RATE: Final = 1_000
PARTITIONS: Final = 6
RATE_LEAST: Final = 0.5
"""Of the rate before, because other tests run beside this one. Clients that are held up come to nothing once the buffer is full."""
SETTLE_S: Final = 3.0
"""For adaptive choice to notice: reports come once a second, and the availability time-out is one."""
BUFFER_BYTES: Final = 16 << 20
STUCK_BYTES: Final = 4_000
"""A record's size where the broker stops: many times the buffer comes together."""
FULL_S: Final = 5.0
"""By then the stuck records have filled the buffer: 4,000 bytes a thousand times a second."""
GROWTH_MAX: Final = 3 * BUFFER_BYTES
"""The buffer, what allocators keep beside it, and what counts elsewhere: futures, references."""
SETTINGS: Final[dict[str, str | int]] = {
    "partitioner.adaptive.partitioning.enable": "true",
    "partitioner.availability.timeout.ms": 1_000,
    "buffer.memory": BUFFER_BYTES,
    "delivery.timeout.ms": 600_000,
}


@pytest.fixture(scope="module", params=list(VERSIONS))
def cluster(request: pytest.FixtureRequest) -> Iterator[OwnCluster]:
    """Three nodes that wait long before they give one of them up."""
    started = OwnCluster(request.param, node_count=3, settings={"broker.session.timeout.ms": "120000"})
    try:
        yield started
    finally:
        started.close()


class Way(NamedTuple):
    """The address that clients are given, and the daemon's processes that hold batches."""

    address: str
    pids: list[int]


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize()


@contextmanager
def way_of(through: str, cluster: OwnCluster) -> Iterator[Way]:
    """What the clients connect to."""
    if through == "direct":
        yield Way(cluster.bootstrap, [])
        return
    chosen = {
        "partitioner.adaptive.partitioning.enable": True,
        "partitioner.availability.timeout.ms": 1_000,
        "buffer.memory": BUFFER_BYTES,
    }
    with Daemon(cluster.bootstrap, kafka=chosen) as daemon:
        daemon.start()
        yield Way(str(daemon.socket_path), [pid for name, pid in daemon.pids().items() if name.startswith("shard")])
        assert daemon.stop() == 0


def answers(ledger: Ledger, begin: float, end: float) -> list[int]:
    """Partitions of the records acknowledged in that time."""
    return [
        outcome.partition
        for _, outcome in ledger.outcomes()
        if outcome.kind is Kind.OK and begin <= outcome.at < end
        for _ in range(outcome.count)
    ]


@pytest.mark.timeout(300 + 2 * FROZEN_S)
@pytest.mark.parametrize("through", [pytest.param("direct", marks=pytest.mark.newest_kafka), "penstock"])
def test_a_broker_that_stops_answering_holds_up_its_own_partitions_only(
    cluster: OwnCluster, tmp_path: Path, through: str
) -> None:
    topic = cluster.create_topic(f"stopped-{through}", PARTITIONS, replicas=1)
    leaders = cluster.leaders(topic)
    stopped = next(node for node in cluster.nodes if node != cluster.active_controller())
    stuck = [index for index, leader in leaders.items() if leader == stopped]
    steady = [index for index in leaders if index not in stuck]
    seconds = WARM_S + FROZEN_S + AFTER_S
    with way_of(through, cluster) as way:

        def job(name: str, partition: int, shape: Shape) -> Job:
            return Job(
                through=through,
                address=way.address,
                client=name,
                topic=topic,
                ledger=str(tmp_path / f"{name}.ledger"),
                records=RATE * seconds,
                rate=RATE,
                partition=partition,
                finish_s=FROZEN_S + 120,
                shape=shape,
                settings=SETTINGS,
            )

        jobs = [
            job("keyless", -1, Shape()),
            job("stuck", stuck[0], Shape(value_bytes=STUCK_BYTES)),
            *(job(f"steady-{index}", index, Shape()) for index in steady[:2]),
        ]
        with Load(jobs, tmp_path, together=through == "direct") as load:
            load.wait_sent(len(jobs) * RATE * WARM_S)
            held_by = way.pids or load.pids
            before = resident_bytes(held_by)
            cluster.nodes[stopped].freeze()
            try:
                frozen_at = monotonic()
                load.read_until(frozen_at + FROZEN_S)
                grown = resident_bytes(held_by) - before
            finally:
                thawed_at = monotonic()
                cluster.nodes[stopped].thaw()
            load.wait_done(seconds=FROZEN_S + 120)
        ledgers = {ledger.client: ledger for ledger in load.ledgers()}
        figures = judge(list(ledgers.values()), read_topic(cluster, topic))
    print(f"\n{through}, Kafka {cluster.version}, {FROZEN_S} s: {figures.summary()}")
    print(f"memory grew by {grown / BUFFER_BYTES:.2f} of buffer.memory")
    assert grown <= GROWTH_MAX
    for name in ("keyless", *(job.client for job in jobs if job.client.startswith("steady"))):
        before_s = len(answers(ledgers[name], frozen_at - WARM_S / 2, frozen_at)) / (WARM_S / 2)
        rate = len(answers(ledgers[name], frozen_at + FULL_S, thawed_at)) / (thawed_at - frozen_at - FULL_S)
        print(f"{name}: {rate:.0f} a second, {before_s:.0f} before")
        # What a client could not send in time it sends faster afterwards.
        assert rate >= RATE_LEAST * min(RATE, before_s) > 0
    assert not set(answers(ledgers["keyless"], frozen_at + SETTLE_S, thawed_at)) & set(stuck)
    figures.assert_clean()
