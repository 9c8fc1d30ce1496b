"""The harness is proved without Penstock: confluent-kafka produces, nodes die and leaders move, and the checker judges."""

from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from tests.harness.checker import Figures, judge
from tests.harness.kafka_cluster import Cluster
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.readers import read_topic, read_topic_by_java
from tests.harness.records import RecordId, Shape, record_of

from .conftest import own

RECORDS = 3_000


# Under idempotence librdkafka was seen to give up for good when leaders moved ("sequence desynchronization").
CALM: dict[str, str | int] = {"enable.idempotence": "false", "acks": "all", "message.timeout.ms": 120_000}


def confluent_jobs(
    cluster: Cluster, topic: str, folder: Path, *, rate: float = 0, settings: dict[str, str | int] | None = None
) -> list[Job]:
    """Two clients of different shapes."""
    shapes = [Shape(key_count=40, headers=True, null_every=5, timestamps=True), Shape(value_bytes=300)]
    return [
        Job(
            through="confluent",
            address=cluster.bootstrap,
            client=f"app-{number}",
            topic=topic,
            ledger=str(folder / f"app-{number}.ledger"),
            records=RECORDS,
            frame_records=10,
            rate=rate,
            shape=shape,
            settings=settings or {},
        )
        for number, shape in enumerate(shapes)
    ]


def test_what_confluent_kafka_wrote_is_judged_whole_and_java_sees_the_same(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic = kafka_one.create_topic(topic_name, 3)
    with Load(confluent_jobs(kafka_one, topic, tmp_path), tmp_path) as load:
        load.wait_done(seconds=60)
    assert kafka_one.record_count(topic) == 2 * RECORDS
    version = "4.3.1" if kafka_one.version == "existing" else kafka_one.version
    by_java = {(each.partition, each.offset): each for each in read_topic_by_java(kafka_one, topic, version=version)}
    found = list(read_topic(kafka_one, topic))
    figures = judge(load.ledgers(), found)
    assert figures.wrong() == []
    assert (figures.sent, figures.found, figures.unknown) == (2 * RECORDS, 2 * RECORDS, 0)
    assert len(by_java) == len(found)
    for record in found:
        printed = by_java[record.partition, record.offset]
        assert printed.value == (record.value.decode() if record.value is not None else "null")
        assert printed.key == (record.key.decode() if record.key is not None else "null")
        assert printed.timestamp_ms == record.timestamp_ms


def test_a_record_written_twice_and_one_left_out_are_seen_through_real_kafka(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic = kafka_one.create_topic(topic_name, 1)
    job = confluent_jobs(kafka_one, topic, tmp_path)[1]._replace(records=100)
    with Load([job], tmp_path) as load:
        load.wait_done(seconds=60)
    again = record_of(RecordId(job.client, 4, 2), job.shape)
    producer = Producer({"bootstrap.servers": kafka_one.bootstrap, "log_level": 2})
    producer.produce(topic, again.value)
    assert producer.flush(30) == 0
    ledgers = load.ledgers()
    figures = judge(ledgers, (record for record in read_topic(kafka_one, topic) if record.offset != 7))
    assert (figures.dup, max(figures.lost.values()), figures.reorder) == (1, 1, 0)


def assert_nothing_lost(figures: Figures) -> None:
    """What a peer can be held to while leaders move: librdkafka was seen to write 169 of these records twice."""
    assert figures.found >= 2 * RECORDS
    assert (figures.sent, figures.failed, figures.unknown) == (2 * RECORDS, 0, 0), figures.summary()
    assert (max(figures.lost.values()), figures.phantom, figures.corrupt) == (0, 0, 0), figures.summary()


def test_leaders_move_where_they_are_sent_while_records_flow(
    kafka_three: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic = kafka_three.create_topic(topic_name, 6)
    with Load(confluent_jobs(kafka_three, topic, tmp_path, rate=3_000, settings=CALM), tmp_path) as load:
        for step in range(1, 4):
            load.wait_sent(step * RECORDS // 2)
            before = kafka_three.leaders(topic)
            kafka_three.rotate_leaders(topic)
            after = kafka_three.leaders(topic)
            assert all(after[partition] != node for partition, node in before.items())
        load.wait_done(seconds=60)
    figures = judge(load.ledgers(), read_topic(kafka_three, topic))
    assert_nothing_lost(figures)


def test_a_node_that_is_killed_frozen_and_stopped_comes_back_in_sync(
    kafka_three: Cluster, topic_name: str, tmp_path: Path, cleanup: ExitStack
) -> None:
    cluster = own(kafka_three)
    topic = cluster.create_topic(topic_name, 6)
    with Load(confluent_jobs(cluster, topic, tmp_path, rate=2_000, settings=CALM), tmp_path) as load:
        load.wait_sent(RECORDS // 4)
        cluster.nodes[1].kill()
        assert not cluster.nodes[1].alive
        cluster.restart(1)
        cluster.nodes[2].stop()
        cluster.restart(2)
        cluster.nodes[3].freeze()
        _ = cleanup.callback(cluster.nodes[3].thaw)
        load.wait_sent(RECORDS)
        cluster.nodes[3].thaw()
        load.wait_done(seconds=90)
    figures = judge(load.ledgers(), read_topic(cluster, topic))
    assert_nothing_lost(figures)
