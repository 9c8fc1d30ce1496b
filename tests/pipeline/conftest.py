"""One Spark session and one real broker for the whole folder; topics, daemons and tables of their own for every test."""

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from penstock.config.pipeline import validate_pipeline
from penstock.pipeline import session
from pyspark.sql import SparkSession

from tests.harness import daemon, spark_driver
from tests.harness.kafka_cluster import OwnCluster, existing_bootstrap, unique_topic
from tests.harness.kafka_node import VERSIONS, JavaOptions
from tests.harness.spark_driver import FEW_ROWS, small_spark

FOLDER = Path(__file__).parent
MASTER = "local[2,4]"
# `delta-jvm` where these tests run under the Spark that Delta's connector is made for (tools/soak.sh).
WRITER = os.environ.get("PENSTOCK_WRITER", "delta-rs")
LONGEST_FIRST = (
    "test_everything_lands_once",
    "test_failures_of_spools",
    "test_land_kafka",
    # Given to the worker that has one long test, before it has ended.
    "test_processes_end",
    "test_cluster",
    "test_land_chaos",
    "test_failures_of_brokers",
    "test_seal",
    "test_failures_of_books",
    "test_audit_model",
    "test_land_guards",
    "test_secure_kafka",
    "test_land",
    "test_audit_cases",
    "test_command_line",
    "test_tables",
)
BROKER_SETTINGS = {
    # The test of a compacted audit topic waits for the cleaner.
    "log.cleaner.backoff.ms": "500",
    "offsets.topic.num.partitions": "1",
    # Topics are closed to writers for a while, to have records wait in spools.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test of this folder; for workers side by side, begin with the files that take long."""
    own = [item for item in items if FOLDER in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.spark)
    if hasattr(config, "workerinput"):
        ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
        own.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
        items[:] = [*own, *(item for item in items if FOLDER not in item.path.parents)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the daemons and drivers that are there when a test fails."""
    report = yield
    if report.failed:
        report.sections += [(f"daemon {each.folder}", each.describe()) for each in daemon.LIVING]
        report.sections += [(f"pipeline {each.folder}", each.describe()) for each in spark_driver.LIVING]
    return report


def small_delta() -> dict[str, str]:
    """Settings of Delta's connector: it reads its log in 50 tasks otherwise."""
    return {"spark.databricks.delta.snapshotPartitions": "2"} if WRITER == "delta-jvm" else {}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this test process: two cores, each task tried four times, 1 GB."""
    settings = validate_pipeline(
        {
            "tables": "/nowhere/tables",
            "checkpoints": "/nowhere/checkpoints",
            "writer": WRITER,
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "topics": {"any": {"format": "raw"}},
            "spark": small_spark() | FEW_ROWS | small_delta(),
        },
        "tests",
    )
    started = session.start(settings, "penstock-tests", master=MASTER)
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[OwnCluster]:
    """One node of the newest version, which tests may kill as long as they start it again."""
    if existing_bootstrap() is not None:
        pytest.skip("KAFKA_BOOTSTRAP names the cluster, and these tests kill brokers and cut their logs")
    cluster = OwnCluster(VERSIONS[0], java=JavaOptions(heap_mb=320), settings=BROKER_SETTINGS)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name of this test alone."""
    return unique_topic([request.node.name])


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    """Closed after the test."""
    with ExitStack() as stack:
        yield stack
