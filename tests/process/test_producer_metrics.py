"""The direct producer's metrics against what was sent, with its real thread and sockets and the embedded broker."""

import asyncio
import math
import os
from collections.abc import Iterator
from typing import Final

import pytest
from penstock.api.errors import BrokerError, BufferExhaustedError, MetadataTimeoutError, RecordTooLargeError
from penstock.producer import AsyncDirectProducer, DirectProducer
from penstock.producer.telemetry.catalogue import METRICS
from penstock.producer.telemetry.exported_names import prometheus_name
from penstock.producer.telemetry.prometheus import Collector
from penstock.runtime.clock import monotonic
from prometheus_client import CollectorRegistry, generate_latest

from tests.fakes.holding_proxy import HoldingProxy
from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until

pytestmark = pytest.mark.process
WAIT_S: Final = 60.0
PRODUCE: Final = 0
HEADER_BYTES: Final = 61
RECORD_BYTES: Final = 9
"""Of a record with a value of 64 to 8,191 bytes and nothing else, alone in its batch: two of length, attributes, two deltas, no key, two
of the value's length, no headers."""
WINDOW_S: Final = 30.0
QUICK: Final = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
CLIENT: Final = "producer-metrics"
TOPIC: Final = "producer-topic-metrics"
NODE: Final = "producer-node-metrics"
OWN: Final = "penstock-producer-metrics"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as running:
        yield running


def direct(cluster: EmbeddedCluster, **settings: object) -> DirectProducer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return DirectProducer({"bootstrap.servers": cluster.bootstrap, "client.id": "counted", **QUICK, **given})


class Figures:
    """One look at a producer's metrics."""

    def __init__(self, producer: DirectProducer) -> None:
        self.all = producer.metrics()

    def __call__(self, group: str, name: str, **tags: str) -> float:
        wanted = {"client-id": "counted", **{tag.replace("_", "-"): value for tag, value in tags.items()}}
        (found,) = [
            value
            for key, value in self.all.items()
            if (key.group, key.name) == (group, name) and dict(key.tags) == wanted
        ]
        return found


def settled(producer: DirectProducer, group: str, name: str, least: float) -> Figures:
    """Figures in which this one is at least so high: the sender thread may be some steps behind an answer's callback."""
    assert least > 0, "every figure is at least 0, so there is nothing to wait for"
    _ = wait_until(
        lambda: Figures(producer)(group, name) >= least, seconds=WAIT_S, what=f"{name} of {least}", every=0.01
    )
    # Figures are read one after the other: those before this one may be from before it came.
    return Figures(producer)


def at_rest(producer: DirectProducer) -> Figures:
    """Figures while no request is under way.

    A call may return before the last answer is counted: flush() and the end of a transaction promise nothing about the
    sender's other requests. Figures are read one after the other, so only a look that changed no count of requests since the look
    before it is of one moment.
    """

    def requests() -> tuple[Figures, tuple[float, float, float]]:
        figures = Figures(producer)
        names = ("requests-in-flight", "request-total", "response-total")
        in_flight, sent, answered = (figures(CLIENT, name) for name in names)
        return figures, (in_flight, sent, answered)

    def look() -> Figures | None:
        (_, before), (figures, after) = requests(), requests()
        return figures if before == after and after[0] == 0 else None

    return wait_until(look, seconds=WAIT_S, what="no request is under way", every=0.01)


def test_every_figure_of_single_records_is_exact(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("singles", 1)
    sizes = [100, 200, 400, 1000]
    began = monotonic()
    with direct(cluster, metrics_recording_level="DEBUG") as producer:
        for size in sizes:
            _ = producer.send(topic, os.urandom(size)).result(WAIT_S)
            producer.flush()
        told = at_rest(producer)
        took = monotonic() - began
    batches = [HEADER_BYTES + RECORD_BYTES + size for size in sizes]
    assert told(CLIENT, "record-send-total") == told(TOPIC, "record-send-total", topic=topic) == 4
    assert told(CLIENT, "records-per-request-avg") == 1
    assert told(CLIENT, "batch-size-avg") == sum(batches) / 4
    assert told(CLIENT, "batch-size-max") == batches[-1]
    assert told(CLIENT, "record-size-avg") == sum(sizes) / 4 + RECORD_BYTES
    assert told(CLIENT, "record-size-max") == 1000 + RECORD_BYTES
    assert told(CLIENT, "compression-rate-avg") == told(TOPIC, "compression-rate", topic=topic) == 1
    assert told(TOPIC, "byte-total", topic=topic) == sum(batches)
    own = "penstock-producer-partition-metrics"
    assert told(own, "record-send-total", topic=topic, partition="0") == 4
    assert told(own, "byte-total", topic=topic, partition="0") == sum(batches)
    for group, tags, name, total in (
        (CLIENT, {}, "record-send", 4),
        (TOPIC, {"topic": topic}, "record-send", 4),
        (TOPIC, {"topic": topic}, "byte", sum(batches)),
        (own, {"topic": topic, "partition": "0"}, "record-send", 4),
        (own, {"topic": topic, "partition": "0"}, "byte", sum(batches)),
    ):
        assert total / (WINDOW_S + took) <= told(group, f"{name}-rate", **tags) <= total / WINDOW_S, name
    for name in ("record-queue-time", "request-latency"):
        assert 0 < told(CLIENT, f"{name}-avg") <= told(CLIENT, f"{name}-max") < took * 1000, name
    assert 0 < told(CLIENT, "flush-time-ns-total") < took * 1e9
    assert 0 < told(CLIENT, "metadata-wait-time-ns-total") < took * 1e9
    assert 0 < told(CLIENT, "metadata-age") < took
    assert told("kafka-metrics-count", "count") == len(told.all)
    for name in ("record-retry", "record-error", "batch-split", "buffer-exhausted"):
        assert (told(CLIENT, f"{name}-rate"), told(CLIENT, f"{name}-total")) == (0, 0), name


def test_what_connections_carry_adds_up_over_the_nodes(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("carried", 4)
    began = monotonic()
    with direct(cluster) as producer:
        for index in range(4):
            _ = producer.send(topic, b"warm", partition=index).result(WAIT_S)
        futures = [producer.send(topic, b"%d" % n, partition=n % 4) for n in range(5000)]
        producer.flush()
        assert [future.exception(WAIT_S) for future in futures] == [None] * 5000
        told = at_rest(producer)
        took = monotonic() - began
    assert told(CLIENT, "record-send-total") == told(TOPIC, "record-send-total", topic=topic) == 5004
    assert told(CLIENT, "requests-in-flight") == 0
    assert told(CLIENT, "request-total") == told(CLIENT, "response-total")
    nodes = [f"node-{number}" for number in (0, 1)]
    for name in ("request-total", "response-total", "outgoing-byte-total", "incoming-byte-total"):
        parts = [told(NODE, name, node_id=node) for node in nodes]
        assert min(parts) > 0, name
        # The first connection of all went to an address whose node was not known yet.
        assert sum(parts) <= told(CLIENT, name), name
    for name in ("request", "response", "outgoing-byte", "incoming-byte", "network-io", "connection-creation"):
        total = told(CLIENT, f"{name}-total")
        assert total / (WINDOW_S + took) <= told(CLIENT, f"{name}-rate") <= total / WINDOW_S, name
    produced = told(CLIENT, "record-send-total") / told(CLIENT, "records-per-request-avg")
    assert produced == pytest.approx(round(produced))
    assert produced < told(CLIENT, "request-total")
    sizes = told(CLIENT, "request-size-avg") * told(CLIENT, "request-total")
    assert sizes == pytest.approx(told(CLIENT, "outgoing-byte-total"))
    assert told(CLIENT, "request-size-max") >= max(told(NODE, "request-size-max", node_id=node) for node in nodes)
    assert told(CLIENT, "outgoing-byte-total") > told(TOPIC, "byte-total", topic=topic)
    assert told(CLIENT, "connection-count") == told(CLIENT, "connection-creation-total") == 3
    assert told(CLIENT, "connection-close-total") == 0
    assert told(CLIENT, "produce-throttle-time-max") == 0


def test_the_compression_rate_is_that_of_the_bytes(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("packed", 1)
    with direct(cluster, compression_type="lz4", linger_ms=1000) as producer:
        producer.send(topic, bytes(1000))
        producer.flush()
        first = at_rest(producer)(TOPIC, "byte-total", topic=topic) - HEADER_BYTES
        for _ in range(10):
            producer.send(topic, bytes(1000))
        producer.flush()
        told = at_rest(producer)
    assert told(CLIENT, "record-send-total") == 11
    second = told(TOPIC, "byte-total", topic=topic) - first - 2 * HEADER_BYTES
    expected = (first / (1000 + RECORD_BYTES) + second / (10 * (1000 + RECORD_BYTES))) / 2
    assert told(CLIENT, "compression-rate-avg") == pytest.approx(expected)
    assert told(TOPIC, "compression-rate", topic=topic) == pytest.approx(expected)
    assert 0 < expected < 0.2
    # Of a single record, not of all in the batch; its place and time in the batch may take some bytes more.
    assert 1000 + RECORD_BYTES <= told(CLIENT, "record-size-max") < 1000 + 2 * RECORD_BYTES


@pytest.mark.row("F4")
def test_retries_refusals_splits_waits_and_lost_connections_are_counted_and_then_no_metric_is_idle(
    cluster: EmbeddedCluster,
) -> None:
    topic = cluster.create_topic("troubled", 1)
    with direct(cluster, linger_ms=200, metrics_recording_level="TRACE") as producer:
        _ = producer.send(topic, b"warm").result(WAIT_S)
        node = cluster.leader(topic, 0)
        # Twice refused for the moment.
        assert node.command(op="fail_next", api=PRODUCE, error="NOT_ENOUGH_REPLICAS", times=2, topic=topic)["ok"]
        several = [producer.send(topic, b"again") for _ in range(3)]
        producer.flush()
        assert [future.exception(WAIT_S) for future in several] == [None] * 3
        told = at_rest(producer)
        assert told(CLIENT, "record-retry-total") == told(TOPIC, "record-retry-total", topic=topic) == 6
        assert told(CLIENT, "record-send-total") == 1 + 3 * 3
        # Too large together, so in two parts.
        assert node.command(op="fail_next", api=PRODUCE, error="MESSAGE_TOO_LARGE", times=1, topic=topic)["ok"]
        several = [producer.send(topic, b"large") for _ in range(4)]
        producer.flush()
        assert [future.exception(WAIT_S) for future in several] == [None] * 4
        told = settled(producer, CLIENT, "batch-split-total", 1)
        assert told(CLIENT, "batch-split-total") == 1
        assert told(CLIENT, "record-send-total") == 10 + 8
        assert told(CLIENT, "record-retry-total") == 6
        # An answer that is lost with its connection.
        assert node.command(op="cut_answer", api=PRODUCE, keep=0, times=1)["ok"]
        _ = producer.send(topic, b"unanswered").result(WAIT_S)
        told = at_rest(producer)
        assert told(CLIENT, "record-retry-total") == 7
        assert told(CLIENT, "connection-close-total") == 1
        # Refused for good.
        assert node.command(op="fail_next", api=PRODUCE, error="INVALID_RECORD", times=1, topic=topic)["ok"]
        assert isinstance(producer.send(topic, b"refused").exception(WAIT_S), BrokerError)
        told = at_rest(producer)
        assert told(CLIENT, "record-error-total") == told(TOPIC, "record-error-total", topic=topic) == 1
        # Never taken.
        assert isinstance(producer.send(topic, bytes(2 << 20)).exception(WAIT_S), RecordTooLargeError)
        assert Figures(producer)(OWN, "record-rejected-total") == 1
        told = at_rest(producer)
    seen = {(key.group, key.name) for key, value in told.all.items() if value and not math.isnan(value)}
    idle = {(metric.group.name, metric.name) for metric in METRICS} - seen
    # Shown apart: waits for memory and throttles below, what may be written and alarms with brokers that fail, transactions and
    # authentication with theirs. At rest nothing is in flight or waits.
    elsewhere = ("txn-", "bufferpool-", "buffer-exhausted-", "authentication", "reauthentication", "produce-throttle")
    assert {name for _, name in idle if not any(word in name for word in elsewhere)} <= {
        "requests-in-flight",
        "waiting-threads",
        "record-may-be-written-total",
        "partition-alarm-total",
        "log-end-probe-total",
    }


def test_waits_for_memory_and_calls_that_got_none_are_counted() -> None:
    with HoldingProxy() as wire, EmbeddedCluster(1, arguments=["--nodes", f"0@127.0.0.1:{wire.port}"]) as alone:
        wire.address = alone.nodes[0].address
        topic = alone.create_topic("narrow", 1)
        given = {"bootstrap.servers": f"127.0.0.1:{wire.port}", "client.id": "counted", "buffer.memory": 20_000}
        with DirectProducer({**given, "max.block.ms": 500, "linger.ms": 0, "batch.size": 10_000}) as producer:
            _ = producer.partitions_for(topic, WAIT_S)
            _ = producer.send(topic, b"warm").result(WAIT_S)
            wire.hold(on=True)
            held = [producer.send(topic, bytes(9000)) for _ in range(2)]
            told = Figures(producer)
            assert told(CLIENT, "buffer-total-bytes") == 20_000
            assert 18_000 < 20_000 - told(CLIENT, "buffer-available-bytes") == producer.held_bytes
            began = monotonic()
            assert isinstance(producer.send(topic, bytes(9000)).exception(WAIT_S), BufferExhaustedError)
            waited = monotonic() - began
            told = settled(producer, CLIENT, "buffer-exhausted-total", 1)
            assert told(CLIENT, "buffer-exhausted-total") == told(OWN, "record-rejected-total") == 1
            assert 0.5e9 <= told(CLIENT, "bufferpool-wait-time-ns-total") <= waited * 1e9
            ratio = told(CLIENT, "bufferpool-wait-ratio")
            assert 0.5 / (WINDOW_S + monotonic() - began) <= ratio <= waited / WINDOW_S
            assert settled(producer, CLIENT, "requests-in-flight", 2)(CLIENT, "requests-in-flight") == 2
            wire.hold(on=False)
            assert [future.exception(WAIT_S) for future in held] == [None] * 2


def test_figures_can_be_had_before_the_first_record_and_after_the_end(cluster: EmbeddedCluster) -> None:
    producer = direct(cluster, max_block_ms=200)
    told = Figures(producer)
    assert told(CLIENT, "record-send-total") == 0
    assert math.isnan(told(CLIENT, "batch-size-avg"))
    assert isinstance(producer.send("missing", b"x").exception(WAIT_S), MetadataTimeoutError)
    assert 0 < Figures(producer)(CLIENT, "metadata-wait-time-ns-total") < WAIT_S * 1e9
    producer.close()
    told = Figures(producer)
    assert told(OWN, "record-rejected-total") == 1
    assert told(CLIENT, "connection-count") == 0


def test_prometheus_is_shown_the_same_figures_in_base_units(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("scraped", 1)
    with direct(cluster) as producer:
        registry = CollectorRegistry()
        registry.register(Collector(producer))
        for _ in range(3):
            _ = producer.send(topic, bytes(100)).result(WAIT_S)
        told = at_rest(producer)
        labels = {"client_id": "counted"}
        assert registry.get_sample_value("penstock_producer_record_send_total", labels) == 3
        of_topic = registry.get_sample_value("penstock_producer_topic_bytes_total", {**labels, "topic": topic})
        assert of_topic == told(TOPIC, "byte-total", topic=topic)
        assert registry.get_sample_value("penstock_producer_batch_size_bytes_max", labels) == 170
        latency = registry.get_sample_value("penstock_producer_request_latency_seconds_max", labels)
        assert latency == pytest.approx(told(CLIENT, "request-latency-max") / 1000)
        waited = registry.get_sample_value("penstock_producer_metadata_wait_seconds_total", labels)
        assert waited == pytest.approx(told(CLIENT, "metadata-wait-time-ns-total") / 1e9)
        text = generate_latest(registry).decode()
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert shown <= {prometheus_name(metric) for metric in METRICS}
    assert not any(line.endswith(" NaN") for line in text.splitlines())


def test_the_asynchronous_form_is_shown_to_prometheus_as_well(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("scraped-asynchronously", 1)

    async def main() -> float | None:
        async with AsyncDirectProducer({"bootstrap.servers": cluster.bootstrap, "client.id": "counted"}) as producer:
            registry = CollectorRegistry()
            registry.register(Collector(producer))
            _ = await (await producer.send(topic, b"v"))
            return registry.get_sample_value("penstock_producer_record_send_total", {"client_id": "counted"})

    assert asyncio.run(main()) == 1


@pytest.mark.row("H27")
def test_calls_about_transactions_are_timed_and_their_requests_counted() -> None:
    began = monotonic()
    with EmbeddedCluster(1) as alone, direct(alone, transactional_id="timed", max_block_ms=20_000) as producer:
        topic = alone.create_topic("in-transactions", 1)
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send(topic, bytes(100), partition=0)
            producer.send_offsets_to_transaction({(topic, 0): 1}, "readers")
            end()
        told = at_rest(producer)
        took = monotonic() - began
    for call in ("init", "begin", "send-offsets", "commit", "abort"):
        assert 0 < told(CLIENT, f"txn-{call}-time-ns-total") < took * 1e9, call
    assert 1 <= told(CLIENT, "record-send-total") <= 2
    assert told(CLIENT, "requests-in-flight") == 0
    assert told(CLIENT, "request-total") == told(CLIENT, "response-total") > 10
