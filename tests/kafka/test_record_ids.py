"""Every record in a real Kafka has one id, and no id is missing: what the proof of completeness stands on."""

from pathlib import Path
from random import Random

from tests.harness.checker import judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster
from tests.harness.load import Load
from tests.harness.readers import read_topic

from .conftest import count_from
from .test_kills import DONE_S, jobs, kill_a_shard, kill_the_router

PARTITIONS = 6


def test_every_id_is_found_once_though_a_shard_and_the_router_are_killed(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    records = count_from("PENSTOCK_ID_RECORDS", 8_000)
    with Daemon(kafka_one.bootstrap) as daemon:
        daemon.start()
        with Load(jobs(daemon, topic, tmp_path, records), tmp_path) as load:
            for share, strike in ((0.2, kill_a_shard), (0.5, kill_the_router), (0.7, kill_a_shard)):
                load.wait_sent(int(records * share))
                _ = strike(daemon, Random(1))
            load.wait_done(seconds=DONE_S)
        assert daemon.stop() == 0
        found = list(read_topic(kafka_one, topic))
    figures = judge(load.ledgers(), found)
    figures.assert_clean()
    incarnations: set[int] = set()
    ordinals: dict[int, list[int]] = {}
    for record in found:
        assert record.numbered is not None, f"no id at {record.partition}@{record.offset}"
        incarnation, origin, ordinal = record.numbered
        incarnations.add(incarnation)
        assert origin == record.partition
        ordinals.setdefault(origin, []).append(ordinal)
    assert len(incarnations) == 1, "restarts keep the incarnation"
    for origin, there in ordinals.items():
        assert there == list(range(len(there))), f"partition {origin}: gaps or another order"
    assert sum(map(len, ordinals.values())) == figures.found == records
