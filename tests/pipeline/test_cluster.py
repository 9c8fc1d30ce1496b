"""The jobs on a standalone Spark cluster: by the spark-submit line that the command prints, and by the command itself."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from penstock.producer import DirectProducer
from penstock.wire.audit_records import CLOSED, AuditHeartbeat, AuditIntake, AuditOutcome, AuditRange
from penstock.wire.record_ids import HEADER, RecordId

from tests.harness.counts import count_from
from tests.harness.kafka_cluster import OwnCluster
from tests.harness.spark_cluster import ENVIRONMENT, SparkCluster, pack_environment, shell
from tests.harness.spark_driver import FEW_ROWS, JAVA, WRITER, Pipeline, class_archive

RECORDS = count_from("PENSTOCK_CLUSTER_RECORDS", 1_000)
# Each job starts three JVMs, and sealing on a cluster has no way of its own: the soak, which has more records, seals as well.
SEALS = RECORDS > 1_000
PARTITIONS = 2
EACH = RECORDS // PARTITIONS
INCARNATION = 0x0123456789AB
HOUR_MS = 3_600_000
ACCEPTED_MS = (time.time_ns() // 1_000_000 // HOUR_MS - 3) * HOUR_MS
COMMON = {"incarnation": f"{INCARNATION:012x}", "host": "alpha", "sent_at": ACCEPTED_MS + 2 * HOUR_MS, "era": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as started:
        yield started


def on_cluster(folder: Path) -> dict[str, str | int]:
    return {
        **FEW_ROWS,
        "spark.archives": f"{pack_environment(folder)}#{ENVIRONMENT}",
        "spark.pyspark.python": f"./{ENVIRONMENT}/bin/python",
        "spark.executor.memory": "512m",
        "spark.executor.cores": 1,
        "spark.cores.max": 2,
        # With one core each, waiting for the executor that has the data is all that would be waited for.
        "spark.locality.wait": "0s",
        "spark.executor.extraJavaOptions": class_archive()[JAVA],
    }


def fill(broker: OwnCluster, topic: str, audit_topic: str) -> None:
    """What a daemon writes that took `RECORDS` records in one minute and ended in order."""
    broker.create_topic(topic, partitions=PARTITIONS)
    broker.create_topic(audit_topic, partitions=1)
    intake = AuditIntake(
        **COMMON,
        version=1,
        topic=topic,
        minute=ACCEPTED_MS // 60_000,
        ids=True,
        accepted=RECORDS,
        bytes=RECORDS,
        refused={},
        ranges=tuple(AuditRange(origin, 0, EACH, EACH, EACH) for origin in range(PARTITIONS)),
        holes=(),
    )
    outcome = AuditOutcome(
        **COMMON,
        version=2,
        shard=0,
        topic=topic,
        minute=ACCEPTED_MS // 60_000,
        delivered=RECORDS,
        bytes=RECORDS,
        batches=1,
        resent=0,
    )
    end_ms = ACCEPTED_MS + HOUR_MS
    heartbeat = AuditHeartbeat(
        **COMMON, version=3, closed_before=end_ms, settled_before=end_ms, state=CLOSED, interval_s=10.0
    )
    producer = DirectProducer({"bootstrap.servers": broker.bootstrap})
    sent = [
        producer.send(
            topic,
            b"value",
            partition=origin,
            headers=[(HEADER, RecordId(INCARNATION, origin, ordinal, ACCEPTED_MS).pack())],
        )
        for origin in range(PARTITIONS)
        for ordinal in range(EACH)
    ]
    sent += [producer.send(audit_topic, record.encode(), record.key()) for record in (intake, outcome, heartbeat)]
    for future in sent:
        _ = future.result(60)
    producer.close(30)


def sorted_ids(bronze: pa.Table) -> list[tuple[int, int]]:
    """Origins and ordinals of all rows."""
    return sorted((row["origin"], row["ordinal"]) for row in bronze.select(["origin", "ordinal"]).to_pylist())


@pytest.mark.timeout(1500)
def test_an_hour_is_landed_and_audited_by_executors_that_have_only_what_was_packed(
    cluster: SparkCluster, broker: OwnCluster, topic_name: str, tmp_path: Path
) -> None:
    audit_topic = f"{topic_name}.audit"
    fill(broker, topic_name, audit_topic)
    sections = {"spark": on_cluster(tmp_path), "audit": {"topic": audit_topic}}
    with Pipeline(broker.bootstrap, {topic_name: {}}, sections=sections, master=cluster.url) as pipeline:
        printed = pipeline.run("land", "--once", "--print-submit")
        assert printed.status == 0, printed.log
        landed = shell(printed.output, folder=tmp_path, mark=uuid.uuid4().hex)
        assert landed.returncode == 0, landed.stdout + landed.stderr

        audited = pipeline.run("audit")
        assert audited.status == 0, audited.output + audited.log
        assert str(pipeline.report) in audited.output

        table = DeltaTable(str(next(pipeline.tables.glob("bronze_*"))))
        assert ("Delta-Lake" in table.history(1)[0]["engineInfo"]) == (WRITER == "delta-jvm"), "another writer wrote"
        bronze = table.to_pyarrow_table()
        assert sorted_ids(bronze) == [(origin, ordinal) for origin in range(PARTITIONS) for ordinal in range(EACH)]
        if SEALS:
            sealed = pipeline.run("seal")
            assert sealed.status == 0, sealed.log
            [seal] = DeltaTable(str(pipeline.tables / "seals")).to_pyarrow_table().to_pylist()
            assert (seal["topic"], seal["status"], seal["landed"], seal["lost"]) == (topic_name, "sealed", RECORDS, 0)
            again = DeltaTable(str(next(pipeline.tables.glob("bronze_*")))).to_pyarrow_table()
            assert sorted_ids(again) == sorted_ids(bronze)
    assert len(cluster.unpacked()) >= 2 + SEALS, "not every job's executors were given the packed environment"
