"""Records what a direct producer does in its sensors, and serves its gauges.

Components call a method of `ProducerMetrics` for each request, batch, answer or wait, never for each record. Everything
declared in `producer/telemetry/catalogue.py` except gauges is recorded here.
"""

import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from ...config.direct import DirectSettings
from ...runtime.clock import monotonic
from ..accumulator.batch import ProducerBatch
from ..accumulator.buffer_pool import BufferPool
from ..delivery.outcomes import DeliveryFailureKind, Failed
from ..records.batch_builder import HEADER_BYTES
from ..sender.idempotent import IdempotentPartition
from .catalogue import CLIENT, NODE, OWN, PARTITION, TOPIC, RecordingLevel
from .sensors import Sensors
from .windows import SampledSensor, SampleWindows

_MS: Final = 1000.0


class _Topic(NamedTuple):
    sent: SampledSensor
    nbytes: SampledSensor
    compression: SampledSensor
    retried: SampledSensor
    failed: SampledSensor


class _Partition(NamedTuple):
    sent: SampledSensor
    nbytes: SampledSensor


class ProducerMetrics:
    """One producer's metrics. The sender thread alone records its own sensors; callers record theirs under a lock."""

    def __init__(self, settings: DirectSettings, pool: BufferPool | None, *, now: float) -> None:
        """`pool`: the records' memory; None: no call waits for memory."""
        windows = SampleWindows(max(settings.metrics_sample_window_ms, 1) / _MS, settings.metrics_num_samples)
        level = RecordingLevel[settings.metrics_recording_level]
        self.sensors: Final = Sensors(settings.client_id, windows, level, now=now)
        client = self.sensors.of(CLIENT, now=now)
        own = self.sensors.of(OWN, now=now)
        made, ended = client["connection-creation"], client["connection-close"]
        self.sensors.gauge("connection-count", lambda _now: made.total - ended.total)
        self._client: Final = client
        self._topics: Final[dict[str, _Topic]] = {}
        self._partitions: Final[dict[tuple[str, int], _Partition]] = {}
        self._by_partition: Final = level >= RecordingLevel.DEBUG
        self._latencies: Final[dict[int, SampledSensor]] = {}
        self._pool: Final = pool
        self._waited_s = 0.0
        self._callers_lock: Final = threading.Lock()
        if pool is not None:
            self.sensors.gauge("waiting-threads", lambda _now: float(pool.queued))
            self.sensors.gauge("buffer-total-bytes", lambda _now: float(pool.total_bytes))
            self.sensors.gauge("buffer-available-bytes", lambda _now: float(pool.available_bytes))
        self._size: Final = client["batch-size"]
        self._compression: Final = client["compression"]
        self._queue_time: Final = client["record-queue-time"]
        self._latency: Final = client["request-latency"]
        self._records: Final = client["record-send"]
        self._record_size: Final = client["record-size"]
        self._retried: Final = client["record-retry"]
        self._failed: Final = client["record-error"]
        self._split: Final = client["batch-split"]
        self._rejected: Final = own["record-not-taken"]
        self._may_be_written: Final = own["record-unsure"]
        self._alarms: Final = own["partition-alarm"]
        self._probes: Final = own["probe"]
        self._memory_wait: Final = client["bufferpool-wait"]
        self._exhausted: Final = client["buffer-exhausted"]
        self._flush: Final = client["flush"]
        self._metadata_wait: Final = client["metadata-wait"]

    # --- the sender thread -------------------------------------------------------------------------------------------

    def request_sent(self, entries: Iterable[tuple[IdempotentPartition, ProducerBatch]], now: float) -> None:
        """Record a Produce request. Resent batches count again (MTR-1)."""
        records = 0
        for lease, batch in entries:
            count, size = batch.count, batch.size
            records += count
            topic = self._topics.get(lease.topic) or self._topic(lease.topic, now)
            ratio = (size - HEADER_BYTES) / batch.record_bytes
            topic.sent.add(count, now)
            topic.nbytes.add(size, now)
            topic.compression.add(ratio, now)
            self._compression.add(ratio, now)
            self._size.add(size, now)
            self._queue_time.add((now - batch.created) * _MS, now)
            self._record_size.add(batch.record_bytes_max, now)
            if self._by_partition:
                partition = self._partition(lease.topic, lease.index, now)
                partition.sent.add(count, now)
                partition.nbytes.add(size, now)
        self._records.add(records, now)

    def request_answered(self, node: int, latency_s: float, now: float) -> None:
        """Record the answer to a Produce request."""
        self._latency.add(latency_s * _MS, now)
        latency = self._latencies.get(node)
        if latency is None:
            latency = self._latencies[node] = self.sensors.of(NODE, f"node-{node}", now=now)["request-latency"]
        latency.add(latency_s * _MS, now)

    def batch_retried(self, topic: str, records: int, now: float) -> None:
        """Record that a batch of `records` records will be sent again."""
        self._retried.add(records, now)
        self._topic(topic, now).retried.add(records, now)

    def records_failed(self, topic: str, failed: Failed, now: float) -> None:
        """Record the failure of buffered records."""
        self._failed.add(failed.count, now)
        self._topic(topic, now).failed.add(failed.count, now)
        if failed.failure.kind is DeliveryFailureKind.MAY_BE_WRITTEN:
            self._may_be_written.add(failed.count, now)

    def partition_alarm_logged(self, now: float) -> None:
        """Record that a `partition_alarm` was logged."""
        self._alarms.add(1, now)

    def update_counters(self, counters: Mapping[str, int], now: float) -> None:
        """Record what the lease table's and the buffer pool's counters gained. Called in every round."""
        pool = self._pool
        if pool is not None and pool.waited_s != self._waited_s:
            self._memory_wait.add(pool.waited_s - self._waited_s, now)
            self._waited_s = pool.waited_s
        exhausted = 0 if pool is None else pool.exhausted_count
        counted = (counters["splits"], self._split), (counters["probes"], self._probes), (exhausted, self._exhausted)
        for count, sensor in counted:
            if count > sensor.total:
                sensor.add(count - sensor.total, now)

    def traffic(self, node: int, *, now: float) -> "NodeTraffic":
        """Return the counter of a node's connections. `node` -1: its id is unknown."""
        return NodeTraffic(self._client, self.sensors.of(NODE, f"node-{node}", now=now) if node >= 0 else None)

    def _topic(self, name: str, now: float) -> _Topic:
        found = self._topics.get(name)
        if found is None:
            sensors = self.sensors.of(TOPIC, name, now=now)
            wanted = ("record-send", "byte", "compression", "record-retry", "record-error")
            found = self._topics[name] = _Topic(*(sensors[sensor] for sensor in wanted))
        return found

    def _partition(self, topic: str, index: int, now: float) -> _Partition:
        found = self._partitions.get((topic, index))
        if found is None:
            sensors = self.sensors.of(PARTITION, topic, str(index), now=now)
            found = self._partitions[topic, index] = _Partition(sensors["record-send"], sensors["byte"])
        return found

    # --- callers -----------------------------------------------------------------------------------------------------

    def record_rejected(self, records: int, now: float) -> None:
        """Record that `send` did not buffer `records` records."""
        with self._callers_lock:
            self._rejected.add(records, now)

    def waited_for_metadata(self, seconds: float, now: float) -> None:
        """Record a caller's wait for metadata, successful or not."""
        with self._callers_lock:
            self._metadata_wait.add(seconds, now)

    def flushed(self, seconds: float, now: float) -> None:
        """Record a flush, successful or not."""
        with self._callers_lock:
            self._flush.add(seconds, now)

    @contextmanager
    def time_transaction_call(self, call: str) -> Generator[None]:
        """Record the time of a transaction call, successful or not."""
        began = monotonic()
        try:
            yield
        finally:
            now = monotonic()
            self.transaction_call_finished(call, now - began, now)

    def transaction_call_finished(self, call: str, seconds: float, now: float) -> None:
        """Record a finished transaction call: `init`, `begin`, `send-offsets`, `commit` or `abort`."""
        with self._callers_lock:
            self._client[f"txn-{call}"].add(seconds, now)


class NodeTraffic:
    """Implements `Traffic` of `producer/network/traffic.py`: counts for one node and for all nodes."""

    def __init__(self, client: dict[str, SampledSensor], node: dict[str, SampledSensor] | None) -> None:
        self._client: Final = client
        sides = (client,) if node is None else (client, node)
        self._requests: Final = [side["request"] for side in sides]
        self._answers: Final = [side["response"] for side in sides]
        self._out: Final = [client["network-io"], *(side["outgoing-byte"] for side in sides)]
        self._in: Final = [client["network-io"], *(side["incoming-byte"] for side in sides)]
        self._throttle: Final = client["produce-throttle-time"]
        self._open = False

    def opened(self, now: float) -> None:
        self._open = True
        self._client["connection-creation"].add(1, now)

    def closed(self, now: float) -> None:
        if self._open:
            self._open = False
            self._client["connection-close"].add(1, now)

    def sent(self, size: int, now: float) -> None:
        for sensor in self._requests:
            sensor.add(size, now)

    def wrote(self, nbytes: int, now: float) -> None:
        for sensor in self._out:
            sensor.add(nbytes, now)

    def read(self, nbytes: int, now: float) -> None:
        for sensor in self._in:
            sensor.add(nbytes, now)

    def answered(self, throttle_ms: int, now: float) -> None:
        for sensor in self._answers:
            sensor.add(1, now)
        self._throttle.add(throttle_ms, now)

    def authenticated(self, now: float) -> None:
        self._client["successful-authentication"].add(1, now)

    def reauthenticated(self, took_s: float, now: float) -> None:
        self._client["successful-reauthentication"].add(1, now)
        self._client["reauthentication-latency"].add(took_s * _MS, now)

    def authentication_failed(self, now: float, *, again: bool) -> None:
        self._client["failed-reauthentication" if again else "failed-authentication"].add(1, now)
