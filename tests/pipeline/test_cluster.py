"""The jobs on a standalone Spark cluster, by the spark-submit line that the command prints."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from penstock.producer import DirectProducer

from tests.harness.kafka_cluster import OwnCluster
from tests.harness.spark_cluster import ENVIRONMENT, SparkCluster, pack_environment, shell
from tests.harness.spark_driver import Pipeline

RECORDS = 1_000
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as started:
        yield started


def on_cluster(cluster: SparkCluster, folder: Path) -> dict[str, str | int]:
    return {
        "spark.archives": f"{pack_environment(folder)}#{ENVIRONMENT}",
        "spark.pyspark.python": f"./{ENVIRONMENT}/bin/python",
        "spark.executor.memory": "512m",
        "spark.executor.cores": 1,
        "spark.cores.max": 2,
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def test_the_printed_line_lands_on_executors_that_have_only_what_was_packed(
    cluster: SparkCluster, broker: OwnCluster, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name, partitions=PARTITIONS)
    producer = DirectProducer({"bootstrap.servers": broker.bootstrap})
    sent = [producer.send(topic_name, b"%d" % number, partition=number % PARTITIONS) for number in range(RECORDS)]
    for future in sent:
        _ = future.result(30)
    producer.close(30)
    sections = {"spark": on_cluster(cluster, tmp_path)}
    with Pipeline(broker.bootstrap, {topic_name: {"format": "raw"}}, sections=sections, master=cluster.url) as pipeline:
        printed = pipeline.run("land", "--once", "--print-submit")
        assert printed.status == 0, printed.log

        ended = shell(printed.output, folder=tmp_path, mark=uuid.uuid4().hex)

        assert ended.returncode == 0, ended.stderr
        bronze = DeltaTable(str(next(pipeline.tables.glob("bronze_*")))).to_pyarrow_table()
        values = sorted(int(value.as_py()) for value in bronze["value"])
        assert values == list(range(RECORDS))
    assert cluster.unpacked(), "no executor was given the packed environment"
