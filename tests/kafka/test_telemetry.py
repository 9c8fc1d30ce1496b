"""Metrics that real brokers collect of the direct producer (KIP-714), received by a plug-in compiled here, against the producer's own."""

import base64
import logging
import subprocess
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from kafka.protocol.admin.configs import IncrementalAlterConfigsRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, MetricsData
from penstock.producer import DirectProducer
from penstock.producer.telemetry.catalogue import METRICS
from penstock.producer.telemetry.exported_names import is_counter, otlp_name

from tests.harness.embedded import Caller
from tests.harness.kafka_cluster import OwnCluster, existing_bootstrap
from tests.harness.kafka_node import VERSIONS, JavaOptions, kafka_libs
from tests.harness.processes import Deadline

SOURCE: Final = Path(__file__).parents[1] / "java/PushReceiver.java"
CLIENT_METRICS: Final = 16
INTERVAL_MS: Final = 300
WAIT_S: Final = 30.0
RECORDS: Final = 500
RECORD_BYTES: Final = 109
"""Of a record with a value of 100 bytes, alone in its batch."""
PREFIX: Final = "org.apache.kafka.producer."
REQUIRED: Final = {
    PREFIX + name
    for name in (
        *(
            "connection.creation.rate",
            "connection.creation.total",
            "node.request.latency.avg",
            "node.request.latency.max",
        ),
        *("produce.throttle.time.avg", "produce.throttle.time.max", "record.queue.time.avg", "record.queue.time.max"),
    )
}
"""What KIP-714 asks of every producer."""


class Pushed(NamedTuple):
    """One push as the plug-in kept it."""

    client_id: str
    instance_id: uuid.UUID
    terminating: bool
    data: MetricsData


class Brokers(NamedTuple):
    """A broker that collects, and the folder where it puts what it is pushed."""

    cluster: OwnCluster
    folder: Path

    def pushes(self, client_id: str) -> list[Pushed]:
        found: list[Pushed] = []
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(".") or path.name == "refuse":
                continue
            _, client, instance, last = path.name.split(",")
            if client == client_id:
                number = uuid.UUID(bytes=base64.urlsafe_b64decode(instance + "=="))
                found.append(Pushed(client, number, last == "true", MetricsData.FromString(path.read_bytes())))
        return found

    def wait_for(self, client_id: str, count: int) -> list[Pushed]:
        deadline = Deadline(WAIT_S, f"push {count} of {client_id}")
        while len(found := self.pushes(client_id)) < count:
            _ = deadline.left()
        return found

    def subscribe(self, **settings: str) -> None:
        """What brokers want of producers from now on."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        rows = [
            resource.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
            for name, value in settings.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=CLIENT_METRICS, resource_name="producers", configs=rows)],
            validate_only=False,
        )
        host, _, port = self.cluster.bootstrap.partition(":")
        with Caller((host, int(port))) as caller:
            answer = caller.ask(request, 1)
        assert [row.error_code for row in answer.responses] == [0], answer


@pytest.fixture(scope="module", params=VERSIONS)
def brokers(request: pytest.FixtureRequest) -> Iterator[Brokers]:
    if existing_bootstrap():
        pytest.skip("brokers of others collect what they please")
    version = request.param
    with tempfile.TemporaryDirectory(prefix="penstock-telemetry-") as folder:
        classes, kept = Path(folder) / "classes", Path(folder) / "pushes"
        kept.mkdir()
        # What newer versions call deprecated is what older ones have.
        _ = subprocess.run(
            ["javac", "-nowarn", "-cp", f"{kafka_libs(version)}/*", "-d", str(classes), str(SOURCE)],
            check=True,
            timeout=240,
        )
        settings = {"metric.reporters": "PushReceiver", "push.receiver.folder": str(kept)}
        cluster = OwnCluster(version, java=JavaOptions(classes=classes), settings=settings)
        try:
            yield Brokers(cluster, kept)
        finally:
            cluster.close()


def sums(pushes: list[Pushed]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Increments of all pushes, added up by name and attributes."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for push in pushes:
        for metric in metrics_of(push).values():
            if metric.HasField("sum"):
                assert metric.sum.is_monotonic
                assert metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
                for point in metric.sum.data_points:
                    tags = tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes))
                    found[metric.name, tags] += point.as_double
    return found


def metrics_of(push: Pushed) -> dict[str, object]:
    (resource,) = push.data.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def own_totals(producer: DirectProducer) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The producer's own totals, under the names and tags of telemetry."""
    return {
        (
            otlp_name(figure.metric),
            tuple(sorted((tag.replace("-", "_"), value) for tag, value in figure.name.tags if tag != "client-id")),
        ): figure.value
        for figure in producer.metric_values()
        if is_counter(figure.metric)
    }


@pytest.mark.timeout(300)
def test_what_brokers_collect_adds_up_to_the_producers_own_figures_with_a_last_push_at_the_end(
    brokers: Brokers,
) -> None:
    brokers.subscribe(interval_ms=str(INTERVAL_MS), metrics=PREFIX, match="client_software_name=penstock")
    topic = brokers.cluster.create_topic("told", 2)
    producer = DirectProducer(
        {"bootstrap.servers": brokers.cluster.bootstrap, "client.id": "teller", "client.rack": "here"}
    )
    with producer:
        identity = producer.client_instance_id(WAIT_S)
        for number in range(RECORDS):
            producer.send(topic, bytes(100), partition=number % 2)
        producer.flush()
        _ = brokers.wait_for("teller", 3)
    pushes = brokers.pushes("teller")
    assert [push.terminating for push in pushes] == [False] * (len(pushes) - 1) + [True]
    assert {push.instance_id for push in pushes} == {identity}
    told = sums(pushes)
    assert told[PREFIX + "record.send.total", ()] == RECORDS
    assert told[PREFIX + "topic.record.send.total", (("topic", topic),)] == RECORDS
    own = own_totals(producer)
    # The last push is a request itself, whose answer and bytes come after it; the rest is as it was then.
    moved = {"request.total", "response.total", "network.io.total", "outgoing.byte.total", "incoming.byte.total"}
    still = {key: value for key, value in own.items() if key[0].startswith(PREFIX)}
    assert {key[0] for key in told} <= {key[0] for key in still}
    for key, value in still.items():
        if not any(key[0].endswith(name) for name in (*moved, "connection.close.total")):
            assert told[key] == pytest.approx(value), key
        else:
            assert 0 <= told[key] <= value, key
    last = metrics_of(pushes[-1])
    assert set(last) >= REQUIRED
    assert set(last) <= {otlp_name(metric) for metric in METRICS}
    assert all(name.startswith(PREFIX) for push in pushes for name in metrics_of(push))
    largest = last[PREFIX + "record.size.max"].gauge.data_points[0].as_double  # type: ignore[attr-defined]
    assert RECORD_BYTES <= largest <= RECORD_BYTES + 2
    (resource,) = pushes[-1].data.resource_metrics
    assert {pair.key: pair.value.string_value for pair in resource.resource.attributes} == {"client_rack": "here"}


@pytest.mark.timeout(300)
def test_a_broker_that_refuses_what_it_is_pushed_is_told_nothing_more_and_records_go_on(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.subscribe(interval_ms=str(INTERVAL_MS), metrics=PREFIX, match="client_software_name=penstock")
    topic = brokers.cluster.create_topic("refused", 1)
    (brokers.folder / "refuse").touch()
    try:
        with (
            caplog.at_level(logging.WARNING, "penstock"),
            DirectProducer({"bootstrap.servers": brokers.cluster.bootstrap, "client.id": "refused"}) as producer,
        ):
            deadline = Deadline(WAIT_S, "a refusal")
            while "telemetry_disabled" not in caplog.text:
                _ = producer.send(topic, b"goes on").result(WAIT_S)
                _ = deadline.left()
            _ = producer.send(topic, b"goes on").result(WAIT_S)
            assert producer.client_instance_id(0).int
    finally:
        (brokers.folder / "refuse").unlink()
    assert brokers.pushes("refused") == []
