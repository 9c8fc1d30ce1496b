"""`land` on real Kafka: poison, transactions, logs that were cut, drivers that are killed."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from penstock.config.pipeline import PipelineSettings, load_pipeline, validate_pipeline
from penstock.pipeline.land.batches import LandError
from penstock.pipeline.land.land_job import LandJob
from penstock.pipeline.tables import open_tables
from penstock.wire.record_ids import HEADER, RecordId
from pyspark.sql import SparkSession

from tests.harness import bronze
from tests.harness.counts import count_from
from tests.harness.kafka_cluster import OwnCluster
from tests.harness.land_driver import land_available
from tests.harness.processes import wait_until
from tests.harness.spark_driver import WRITER, Pipeline
from tests.pipeline.land_rig import landed

WAIT_S: Final = 180.0
NOON_MS: Final = 1_795_345_200_000
INCARNATION: Final = 0x5EED


def settings_of(broker: OwnCluster, folder: Path, topics: dict[str, dict[str, Any]], **land: Any) -> PipelineSettings:
    table = {
        "tables": f"{folder}/tables",
        "checkpoints": f"{folder}/checkpoints",
        "writer": WRITER,
        "kafka": {"bootstrap.servers": broker.bootstrap},
        "land": {"trigger": "100ms", "minOffsetsPerTrigger": 0, **land},
        "topics": topics,
    }
    return validate_pipeline(table, "tests")


def job(spark: SparkSession, settings: PipelineSettings) -> LandJob:
    return LandJob(spark, settings, open_tables(settings, spark))


def wait_landed(land: LandJob, topic: int | str, offsets: dict[int, int]) -> None:
    """Until batches that end at these offsets, or later, are behind the query."""

    def look() -> bool:
        assert not land.wait(seconds=0.05)
        for query in land.queries:
            progress = query.lastProgress
            for source in progress["sources"] if progress else ():
                read = json.loads(source["endOffset"]).get(topic, {})
                if all(int(read.get(str(partition), 0)) >= end for partition, end in offsets.items()):
                    return True
        return False

    _ = wait_until(look, seconds=WAIT_S, what=f"{topic} has landed up to {offsets}")


def identity(ordinal: int, partition: int = 0) -> tuple[str, bytes]:
    return HEADER, RecordId(INCARNATION, partition, ordinal, NOON_MS + ordinal).pack()


@pytest.fixture
def producer(broker: OwnCluster) -> Iterator[Producer]:
    made = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    yield made
    assert made.flush(WAIT_S) == 0


def ends(broker: OwnCluster, topic: str) -> dict[int, int]:
    return {partition: end for partition, (_, end) in broker.offsets(topic).items()}


def test_poison_goes_into_quarantine_and_the_stream_goes_on(
    spark: SparkSession, broker: OwnCluster, producer: Producer, topic_name: str, tmp_path: Path
) -> None:
    topic = broker.create_topic(topic_name, 1, config={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    settings = settings_of(
        broker, tmp_path, {topic: {"format": "msgpack", "schema": "id long"}}, record_bytes_max=1_000
    )
    good = msgpack.packb({"id": 1})
    poison: list[tuple[bytes | None, list[tuple[str, bytes | None]], str]] = [
        (b"\xc1", [identity(0)], "decode"),
        (b"", [identity(1)], "decode"),
        (msgpack.packb({"id": "x"}), [identity(2)], "schema"),
        (b"\x91" * 900, [identity(3)], "decode"),
        (b"x" * 1_001, [identity(4)], "too_large"),
        (good, [(HEADER, b"")], "header"),
        (good, [(HEADER, None)], "header"),
        (good, [(HEADER, b"\xff" * 23)], "header"),
        (good, [identity(5), identity(5)], "header"),
        (None, [(HEADER, b"\x00" * 23)], "header"),
    ]
    land = job(spark, settings)
    query = land.start()[0]
    producer.produce(topic, good, partition=0, headers=[identity(100)])
    for value, headers, _ in poison:
        producer.produce(topic, value, partition=0, headers=headers)
    # No calendar has these times.
    for timestamp in (253_402_300_800_000, 9_223_372_036_854_775):
        producer.produce(topic, good, partition=0, headers=[identity(timestamp % 1_000)], timestamp=timestamp)
    assert producer.flush(WAIT_S) == 0
    wait_landed(land, topic, ends(broker, topic))
    producer.produce(topic, None, partition=0, headers=[identity(200)])
    producer.produce(topic, good, partition=0)
    assert producer.flush(WAIT_S) == 0
    wait_landed(land, topic, ends(broker, topic))
    assert query.isActive
    land.stop()
    rows = landed(tmp_path, topic)
    assert [row["error_class"] for row in sorted(rows.quarantine, key=lambda row: row["offset"])] == [
        each for *_, each in poison
    ]
    assert [row["raw"] for row in sorted(rows.quarantine, key=lambda row: row["offset"])] == [
        value for value, *_ in poison
    ]
    assert len(rows.bronze) == 5
    offsets = sorted(row["offset"] for row in [*rows.bronze, *rows.quarantine])
    assert offsets == list(range(ends(broker, topic)[0]))


def test_an_id_header_of_a_newer_version_stops_the_stream_and_an_upgrade_lands_it(
    spark: SparkSession, broker: OwnCluster, producer: Producer, topic_name: str, tmp_path: Path
) -> None:
    topic = broker.create_topic(topic_name, 1)
    producer.produce(topic, b"1", partition=0, headers=[identity(0)])
    producer.produce(topic, b"2", partition=0, headers=[(HEADER, b"\x02 and what else there is then")])
    assert producer.flush(WAIT_S) == 0
    settings = settings_of(broker, tmp_path, {topic: {"format": "raw"}})
    with pytest.raises(LandError, match="version 2 is newer than version 1, which this program reads"):
        land_available(job(spark, settings))
    rows = landed(tmp_path, topic)
    assert (rows.bronze, rows.quarantine) == ([], [])
    told = settings_of(broker, tmp_path, {topic: {"format": "raw"}}, newer_ids="quarantine")
    land_available(job(spark, told))
    rows = landed(tmp_path, topic)
    assert [len(rows.bronze), *(row["error_class"] for row in rows.quarantine)] == [1, "header"]


def test_a_log_that_was_cut_before_land_came_stops_it_with_a_sentence(
    spark: SparkSession, broker: OwnCluster, producer: Producer, topic_name: str, tmp_path: Path
) -> None:
    topic = broker.create_topic(topic_name, 1)
    settings = settings_of(broker, tmp_path, {topic: {"format": "raw"}})
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=0)
        if number == 9:
            assert producer.flush(WAIT_S) == 0
            land_available(job(spark, settings))
    assert producer.flush(WAIT_S) == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        assert done.result(WAIT_S).low_watermark == 15
    with pytest.raises(LandError, match="retention ran ahead of the job"):
        land_available(job(spark, settings))
    rows = landed(tmp_path, topic).bronze
    assert sorted(row["offset"] for row in rows) == list(range(10))


TRANSACTIONS: Final = 120


def test_of_transactions_only_the_committed_land_and_nothing_behind_an_open_one_before_its_time(
    spark: SparkSession, broker: OwnCluster, topic_name: str, tmp_path: Path
) -> None:
    topic = broker.create_topic(topic_name, 3)
    # So small that batches end in the middle of aborted transactions, and on their markers.
    settings = settings_of(broker, tmp_path, {topic: {"format": "raw"}}, maxOffsetsPerTrigger=97)
    writer = transactional(broker, f"{topic}-a")
    committed: list[bytes] = []
    for number in range(TRANSACTIONS):
        kept = number % 2 == 0
        values = [b"%d-%d" % (number, each) for each in range(1 + number % 7)]
        with_end(
            writer,
            topic,
            values,
            lambda each, number=number, kept=kept: (number + each) % 2 if kept else (number + each) % 3,
            kept,
        )
        committed += values if kept else []
    # Partition 2 has nothing but aborted records.
    open_one = transactional(broker, f"{topic}-b")
    open_one.begin_transaction()
    open_one.produce(topic, b"open", partition=0)
    assert open_one.flush(WAIT_S) == 0
    behind = [b"behind-%d" % each for each in range(5)]
    with_end(writer, topic, behind, lambda _: 0, True)
    land = job(spark, settings)
    _ = land.start()
    wait_landed(land, topic, {1: ends(broker, topic)[1], 2: ends(broker, topic)[2]})
    before = sorted(row["value"] for row in landed(tmp_path, topic).bronze)
    assert set(before) <= set(committed)
    open_one.commit_transaction(WAIT_S)
    wait_landed(land, topic, ends(broker, topic))
    land.stop()
    rows = landed(tmp_path, topic)
    assert sorted(row["value"] for row in rows.bronze) == sorted([*committed, b"open", *behind])
    assert {row["partition"] for row in rows.bronze} == {0, 1}
    assert not rows.quarantine


def test_what_the_broker_left_of_a_compacted_topic_lands_once_and_its_holes_hold_nothing_up(
    spark: SparkSession, broker: OwnCluster, producer: Producer, topic_name: str, tmp_path: Path
) -> None:
    quick = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "100"}
    topic = broker.create_topic(topic_name, 2, config={"cleanup.policy": "compact", **quick})
    # A broker takes no time that is to come.
    moment = time.time_ns() // 1_000_000 - 3_600_000

    def send(partition: int, key: bytes) -> None:
        producer.produce(topic, b"value", key=key, partition=partition, timestamp=moment)

    for number in range(30):
        send(0, b"%d" % (number % 3))
        # Whole batches are a hole.
        send(1, b"%d" % number if number < 5 else b"again")
    kept = 3 + 5 + 1
    assert producer.flush(WAIT_S) == 0
    writer = transactional(broker, topic)
    writer.begin_transaction()
    for partition in (0, 1):
        writer.produce(topic, b"aborted", key=b"0", partition=partition, timestamp=moment)
    assert writer.flush(WAIT_S) == 0
    writer.abort_transaction(WAIT_S)
    rolls = 0

    def compacted() -> bool:
        # The newest segment is never cleaned, and rolls with a record that is younger by its timestamp.
        nonlocal moment, rolls
        moment += 1_000
        for partition in (0, 1):
            send(partition, b"roll %d" % rolls)
        rolls += 1
        assert producer.flush(WAIT_S) == 0
        return sum(1 for _ in bronze.Topic(broker, topic).records()) == kept + 2 * rolls

    _ = wait_until(compacted, seconds=WAIT_S, what="the broker has compacted the topic", every=0.2)
    land = job(spark, settings_of(broker, tmp_path, {topic: {"format": "raw"}}, maxOffsetsPerTrigger=20))
    [query] = land.start()
    wait_landed(land, topic, ends(broker, topic))
    send(0, b"later")
    assert producer.flush(WAIT_S) == 0
    wait_landed(land, topic, ends(broker, topic))
    assert query.isActive
    land.stop()
    judgement = bronze.judge_topic(broker, tmp_path / "tables", topic)
    judgement.assert_exact()
    offsets = sum(end for _, end in broker.offsets(topic).values())
    assert (judgement.records, judgement.quarantined) == (kept + 2 * rolls + 1, 0)
    assert offsets - judgement.records > 50
    assert query.lastProgress["batchId"] > 2


def transactional(broker: OwnCluster, name: str) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "linger.ms": 0})
    made.init_transactions(WAIT_S)
    return made


def with_end(writer: Producer, topic: str, values: list[bytes], partition: Callable[[int], int], kept: bool) -> None:
    """One transaction."""
    writer.begin_transaction()
    for each, value in enumerate(values):
        writer.produce(topic, value, partition=partition(each))
    assert writer.flush(WAIT_S) == 0
    if kept:
        writer.commit_transaction(WAIT_S)
    else:
        writer.abort_transaction(WAIT_S)


def test_each_record_is_in_one_row_though_the_driver_is_killed(
    spark: SparkSession, broker: OwnCluster, producer: Producer, topic_name: str
) -> None:
    records, kills, partitions = count_from("PENSTOCK_LAND_RECORDS", 20_000), count_from("PENSTOCK_LAND_KILLS", 1), 4
    topic = broker.create_topic(topic_name, partitions)
    for number in range(records):
        ordinal, partition = divmod(number, partitions)
        value = b'{"n": %d}' % number if number % 101 else b"{"
        producer.produce(topic, value, partition=partition, headers=[identity(ordinal, partition)])
        if number % 1_000 == 0:
            _ = producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    with Pipeline(
        broker.bootstrap,
        {topic: {"format": "json", "schema": "n long"}},
        sections={"land": {"trigger": "0s", "maxOffsetsPerTrigger": records // (4 * kills), "minOffsetsPerTrigger": 1}},
    ) as pipeline:
        for batch in range(1, 2 * kills, 2):
            driver = pipeline.start("land")
            # Begun, and so at any place of it.
            driver.wait_batch(topic, batch, begun=True)
            assert driver.kill() > 1
        land_available(job(spark, load_pipeline(pipeline.config_path)))
        judgement = bronze.judge_topic(broker, pipeline.tables, topic)
        judgement.assert_exact()
        assert judgement.records == records
        assert judgement.quarantined == -(-records // 101)
        rows = landed(pipeline.folder, topic)
        ids = {(row["origin"], row["ordinal"]) for row in [*rows.bronze, *rows.quarantine]}
        assert ids == {divmod(number, partitions)[::-1] for number in range(records)}
