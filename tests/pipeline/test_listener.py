"""What is told about running queries: nothing that is told to may hold up the stream."""

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition
from penstock.config.pipeline import validate_pipeline
from penstock.pipeline.kafka_admin import KafkaUnreachableError, connect
from penstock.pipeline.land.lag_group import LagGroup
from penstock.pipeline.listener import EventQueue, PipelineQueryListener
from penstock.pipeline.query_metrics import METRICS, LagGroupSink, PrometheusSink, QueryMetrics, StatsdSink
from penstock.pipeline.query_progress import (
    QueryEvent,
    QueryIdle,
    QueryProgressed,
    QueryStarted,
    QueryTerminated,
    parse_progress,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.harness.ports import free_ports
from tests.harness.processes import wait_until

BATCHES = 5


class Stuck:
    """A follower that does not come back before it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.taken: list[QueryEvent] = []
        self.lost = 0

    def on_event(self, event: QueryEvent) -> None:
        self.entered.set()
        _ = self.let_go.wait(120)
        self.taken.append(event)

    def on_dropped(self, events: int) -> None:
        self.lost = events

    def close(self) -> None:
        pass


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A port at which connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def progress(**more: object) -> QueryProgressed:
    whole: dict[str, Any] = {
        "id": "5dd8be3b-67c4-49c8-a558-7873071f4205",
        "name": "land/clicks",
        "batchId": 7,
        "numInputRows": 10,
        "inputRowsPerSecond": 2.5,
        "processedRowsPerSecond": "NaN",
        "durationMs": {"addBatch": 120, "triggerExecution": 150},
        "sources": [
            {
                "endOffset": {"clicks": {"0": 5, "1": 9}},
                "metrics": {
                    "avgOffsetsBehindLatest": "1.5",
                    "maxOffsetsBehindLatest": "3",
                    "minOffsetsBehindLatest": "0",
                },
            }
        ],
        "observedMetrics": {"land": {"rows": 10, "bad": 1, "foreign": 2}},
    }
    return parse_progress(json.dumps(whole | more))


def start(spark: SparkSession, folder: Path) -> tuple[StreamingQuery, threading.Event]:
    """A stream that sets the event when it has written `BATCHES` batches."""
    done = threading.Event()

    def write(frame: DataFrame, batch: int) -> None:
        assert frame.count() == 4
        if batch == BATCHES - 1:
            done.set()

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).option("numPartitions", 1).load()
    writer = source.writeStream.queryName("watched").option("checkpointLocation", str(folder)).foreachBatch(write)
    return writer.start(), done


def test_a_follower_that_hangs_holds_up_no_batch_and_the_oldest_events_make_room(
    spark: SparkSession, tmp_path: Path
) -> None:
    stuck = Stuck()
    listener = PipelineQueryListener([stuck], queue_max=2)
    spark.streams.addListener(listener)
    try:
        query, done = start(spark, tmp_path)
        assert stuck.entered.wait(60)
        assert done.wait(60), "the stream waited for its listener"
        _ = wait_until(lambda: listener._queue.dropped > 0, seconds=60, what="Spark has told of more events than fit")
        query.stop()
        stuck.let_go.set()
        listener.close(seconds=60)
    finally:
        stuck.let_go.set()
        spark.streams.removeListener(listener)
    assert stuck.taken[0] == QueryStarted("watched")
    assert stuck.taken[-1] == QueryTerminated("watched", "")
    assert stuck.lost >= 1


def test_a_broker_that_says_nothing_holds_up_no_batch(spark: SparkSession, tmp_path: Path, silent_server: int) -> None:
    settings = validate_pipeline(
        {
            "tables": "/t",
            "checkpoints": "/c",
            "topics": {"a": {}},
            "kafka": {"bootstrap.servers": f"127.0.0.1:{silent_server}"},
            "listener": {"lag_timeout": 0.5},
        },
        "test",
    )
    book, tried = QueryMetrics(), threading.Event()
    follower = LagGroupSink(LagGroup.of(settings), book)

    class Kafkaesque(Stuck):
        """Has the lag group commit, although this source has no offsets of Kafka."""

        def on_event(self, event: QueryEvent) -> None:
            follower.on_event(progress())
            tried.set()

    listener = PipelineQueryListener([Kafkaesque()], queue_max=1_000)
    spark.streams.addListener(listener)
    try:
        query, done = start(spark, tmp_path)
        assert done.wait(60), "the stream waited for a broker"
        query.stop()
        assert tried.wait(30)
    finally:
        listener.close(seconds=1)
        spark.streams.removeListener(listener)
    commits = book.registry.get_sample_value("penstock_pipeline_lag_commits_total", {"outcome": "unreachable"})
    assert commits is not None
    assert commits >= 1


def test_the_queue_keeps_the_newest_and_counts_what_it_drops() -> None:
    queue = EventQueue(2)
    for number in range(5):
        queue.put(QueryIdle(str(number)))
    queue.close(seconds=0)
    assert queue.dropped == 5
    queue = EventQueue(2)
    for number in range(5):
        queue.put(QueryIdle(str(number)))
    events = queue.events()
    assert [next(events), next(events)] == [QueryIdle("3"), QueryIdle("4")]
    assert queue.dropped == 3


def test_a_follower_that_fails_does_not_end_the_others() -> None:
    class Failing(Stuck):
        def on_event(self, event: QueryEvent) -> None:
            raise ZeroDivisionError

    other = Stuck()
    other.let_go.set()
    listener = PipelineQueryListener([Failing(), other], queue_max=10)
    listener._queue.put(QueryIdle("a"))
    listener._queue.put(QueryIdle("b"))
    listener.close(seconds=30)
    assert other.taken == [QueryIdle("a"), QueryIdle("b")]


def test_every_metric_is_at_the_address_that_is_set(cleanup: ExitStack) -> None:
    clock = [100.0]
    book = QueryMetrics()
    follower = PrometheusSink(book, now=lambda: clock[0], listen=f"127.0.0.1:{free_ports(1)[0]}")
    _ = cleanup.callback(follower.close)
    follower.on_event(QueryStarted("land/clicks"))
    follower.on_event(progress())
    clock[0] = 130.0
    follower.on_event(QueryIdle("land/clicks"))
    follower.on_event(QueryTerminated("land/clicks", "SOME_CLASS"))
    follower.on_dropped(3)
    book.add("penstock_pipeline_lag_commits", 1, outcome="refused")
    with urllib.request.urlopen(f"http://127.0.0.1:{follower.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert {metric.name for metric in METRICS} == {
        line.split("{")[0].split(" ")[0].removesuffix("_total")
        for line in text.splitlines()
        if not line.startswith("#")
    }
    for line in (
        'penstock_pipeline_batch_id{query="land/clicks"} 7.0',
        'penstock_pipeline_idle_seconds{query="land/clicks"} 30.0',
        'penstock_pipeline_input_rows_total{query="land/clicks"} 10.0',
        'penstock_pipeline_observed_total{query="land/clicks",what="land.bad"} 1.0',
        'penstock_pipeline_offsets_behind_latest{of="max",query="land/clicks"} 3.0',
        'penstock_pipeline_query_failures_total{error="SOME_CLASS",query="land/clicks"} 1.0',
        'penstock_pipeline_query_up{query="land/clicks"} 0.0',
        'penstock_pipeline_step_seconds{query="land/clicks",step="addBatch"} 0.12',
        "penstock_pipeline_events_dropped_total 3.0",
    ):
        assert line in text, line


def test_statsd_is_sent_a_datagram_for_each_batch_and_need_not_be_there() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        follower = StatsdSink(f"127.0.0.1:{server.getsockname()[1]}")
        follower.on_event(progress())
        lines = server.recv(65_536).decode().splitlines()
    assert "penstock.pipeline.land_clicks.batch:7|g" in lines
    assert "penstock.pipeline.land_clicks.step.addBatch:120|ms" in lines
    assert "penstock.pipeline.land_clicks.observed.land_rows:10|c" in lines
    for _ in range(10):
        follower.on_event(progress())
    follower.close()


def test_a_batch_that_only_looked_commits_nothing() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def list_topics(self) -> list[str]:
            return []

        def alter_group_offsets(
            self, group_id: str, offsets: dict[TopicPartition, OffsetAndMetadata]
        ) -> dict[TopicPartition, type[Exception]]:
            self.calls += 1
            return {}

        def list_group_offsets(self, group_specs: str) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
            return {}

        def close(self) -> None:
            pass

    admin = Counting()
    follower = LagGroupSink(LagGroup("group", lambda: admin), QueryMetrics())
    follower.on_event(progress(durationMs={"latestOffset": 3}))
    assert admin.calls == 0
    follower.on_event(progress())
    assert admin.calls == 1


def test_what_spark_tells_of_a_query_without_a_name_or_with_another_source_is_read_too() -> None:
    found = parse_progress(json.dumps({"id": "x", "batchId": 0, "sources": [{"endOffset": 3}], "durationMs": {}}))
    assert found == QueryProgressed("x", 0, False, 0, 0.0, 0.0, {}, {}, {}, {})
    for text in ("[]", "{", "3"):
        with pytest.raises(ValueError, match=r"JSON|Expecting"):
            _ = parse_progress(text)


def test_a_server_that_says_nothing_is_given_up_in_time_and_named(silent_server: int) -> None:
    settings = validate_pipeline(
        {
            "tables": "/t",
            "checkpoints": "/c",
            "topics": {"a": {}},
            "kafka": {"bootstrap.servers": f"127.0.0.1:{silent_server}"},
        },
        "test",
    )
    with pytest.raises(KafkaUnreachableError, match=f"127.0.0.1:{silent_server}"):
        _ = connect(settings.kafka, timeout_s=0.5)
