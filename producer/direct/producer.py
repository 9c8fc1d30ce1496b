"""`DirectProducer`: a complete Kafka producer in the application's process, without a daemon."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self
from uuid import UUID

from ...api.errors import WaitTimeoutError
from ...api.metadata import PartitionMetadata
from ...api.metrics import MetricName
from ...api.partitioning import Partitioner
from ...api.plugins import Plugins
from ...config.direct import DirectSettings, direct_settings
from ...runtime.clock import monotonic
from ..accumulator.partitioners import RoundRobinPartitioner
from ..kernel.append import SendMethods
from ..network.tls import require_good_files
from ..telemetry.sensors import MetricValue
from .callbacks import log
from .environment import Environment, SenderPort, system_environment
from .front import Front
from .plugins import DirectPluginPipeline
from .sender_thread import SenderThread
from .transactions_api import TransactionsApi

ATEXIT_S: Final = 5.0
"""How long the exit of the program waits for producers that were not closed."""

_producers: "weakref.WeakSet[DirectProducer]" = weakref.WeakSet()


class DirectProducer(TransactionsApi, SendMethods):
    """Sends records to Kafka without a daemon. Any thread may use it; callbacks run on its sender thread.

    Settings have Kafka's names and defaults, in a mapping or, with underscores, as keywords:
    `DirectProducer({"bootstrap.servers": "broker-1:9092"}, linger_ms=20)`.

    partitioner: chooses the partition of records without one: a callable (`api.partitioning`), or "round_robin". By
        default a key's hash decides; records without a key stay with one partition for about a batch.
    key_serializer, value_serializer: turn keys and values into bytes (`api.serializers`). Without one, pass bytes.
    interceptors: objects that see every record before it is serialized, and its outcome (`api.interceptors`).

    `send(topic, value, key=None, *, headers, partition, timestamp_ms, on_ack)` appends one record and returns a future
    of its metadata. `send_many(topic, values, keys, …)` appends whole columns at a fraction of the cost. Both may wait
    for metadata and memory, together at most `max.block.ms`; in a callback they never wait. Errors of a record (no
    metadata or memory in time, too large, invalid topic, no permission for the topic) are never raised: the future and
    `on_ack` get them. `on_ack(metadata, None)` or `on_ack(None, error)` runs before `result()` returns, in the order of
    the records of each partition. `send` and `send_many` raise TypeError and ValueError for invalid arguments,
    SerializationError if a serializer fails, ClosedError, and the exceptions of a partitioner.

    With `transactional.id`, records are sent in transactions: after `init_transactions`, between `begin_transaction`
    and `commit_transaction` or `abort_transaction`. Outside of a transaction, `send` raises TransactionStateError.

    After a fork the child has its own producer, which starts with its first record. Outstanding records stay with the
    parent.

    Raises:
        ConfigError: with every problem of the settings.
        TypeError, ValueError: an argument is not a serializer or interceptor. Plug-in constructors and `configure` may
            raise other errors.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        /,
        *,
        partitioner: Partitioner | Literal["round_robin"] | None = None,
        key_serializer: object = None,
        value_serializer: object = None,
        interceptors: Sequence[object] = (),
        **settings: object,
    ) -> None:
        self._settings: Final[DirectSettings] = direct_settings({**(config or {}), **settings})
        require_good_files(self._settings)
        self._partitioner: Final = partitioner
        custom = None if isinstance(partitioner, str) else partitioner
        self._plugins: Final = Plugins(
            self._settings.model_dump(by_alias=True),
            lambda plugin, call: log.exception("plugin_failed plugin=%s call=%s", plugin, call),
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            interceptors=interceptors,
            partitioner=custom,
        )
        try:
            self._init_process_state()
        except BaseException:
            _ = self._plugins.close()
            raise
        _producers.add(self)

    def _init_process_state(self) -> None:
        """Create all objects that belong to this process; called again after a fork."""
        self._front, self._thread = self._make_front_and_sender(system_environment())
        self._appender = self._front.appender
        self._front.connect_sender(self._thread)
        self._front.plugins = self._plugins
        if self._plugins.handles_records:
            self.plugin_pipeline = DirectPluginPipeline(self._front, self._plugins)
        self._prepare_transactions()
        # When garbage-collected, the producer shuts down after its outstanding records have completed.
        self._finalizer = weakref.finalize(self, self._thread.close, None)
        self._finalizer.atexit = False

    def _make_front_and_sender(self, seams: Environment) -> tuple[Front, SenderPort]:
        """The front and the sender thread, not connected yet."""
        turns = self._partitioner == "round_robin"
        custom = None if isinstance(self._partitioner, str) else self._partitioner
        front = Front(self._settings, seams, custom, RoundRobinPartitioner if turns else None)
        return front, SenderThread(self._settings, front, front.arena, front.meters)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything buffered and block until each record sent before has succeeded or failed.

        Records that expired and may have been written count as failed.

        Raises:
            WaitTimeoutError: `timeout` seconds have passed; the records are still being sent.
            RuntimeError: called by a callback, which would deadlock.
        """
        self._forbid_callback("flush")
        self._front.flush(timeout)

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """The topic's partitions; waits at most `timeout` seconds, `max.block.ms` by default.

        Raises:
            TypeError: the topic is not a str.
            MetadataTimeoutError, InvalidTopicError, TopicForbiddenError: why there is no metadata.
            ClosedError: the producer is closed or has failed.
        """
        return self._front.partitions(topic, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send the buffered records, wait for their responses (at most `timeout` seconds), and shut down.

        Records without a response by then fail: with ClosedError if they certainly were never sent, else with
        ExpiredMayBeWrittenError. A second call does nothing. In a callback it does not wait, as with a timeout of 0.

        Raises:
            ValueError: the timeout is negative.
            PenstockError: everything is closed, but closing a serializer, an interceptor or the partitioner raised.
        """
        if timeout is not None and timeout < 0:
            raise ValueError(f"a timeout of {timeout} s is negative")
        callback = self._thread.is_current
        if not self._front.stop():
            return
        _producers.discard(self)
        if callback:
            self._thread.close(0)
            return
        if self._front.metadata.started:
            self._join_sender(timeout)
        self._plugins.close_or_raise()

    def _join_sender(self, timeout: float | None) -> None:
        """End the sender thread, and wait for it."""
        self._thread.close(timeout)
        try:
            if not self._thread.join(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
                self._thread.close(0)
                _ = self._thread.join()
        except BaseException:
            # Interrupted: abandon the outstanding records, so that the thread ends.
            self._thread.close(0)
            _ = self._thread.join()
            raise

    def client_instance_id(self, timeout: float) -> UUID:
        """The id under which brokers collect this producer's metrics (KIP-714); waits at most `timeout` seconds for it.

        Raises:
            ValueError: the timeout is negative.
            RuntimeError: `enable.metrics.push` is false, or it is called by a callback, which would block the response.
            WaitTimeoutError: no broker assigned an id in time. Brokers that do not collect metrics never do.
            ClosedError: the producer is closed or has failed.
        """
        if timeout < 0:
            raise ValueError(f"a timeout of {timeout} s is negative")
        if not self._settings.enable_metrics_push:
            raise RuntimeError("the brokers know no id of this producer: enable.metrics.push is false")
        self._forbid_callback("client_instance_id")
        known = self._thread.instance_id(0)
        if known is None:
            self._front.metadata.ensure_started()
            known = self._thread.instance_id(timeout)
        if known is None:
            raise WaitTimeoutError(f"no broker has given an id within {timeout} s")
        return known

    def metrics(self) -> dict[MetricName, float]:
        """The current value of every metric, under the names of Kafka's producer (docs/reference/producer-metrics.md).
        A mean or maximum without samples is NaN."""
        return {figure.name: figure.value for figure in self.metric_values()}

    def metric_values(self) -> list[MetricValue]:
        """The same with the template of each metric, for exporters (`prometheus.Collector`)."""
        return self._front.meters.sensors.metric_values(monotonic())

    @property
    def held_bytes(self) -> int:
        """Bytes of `buffer.memory` that buffered and in-flight records occupy."""
        return self._front.pool.reserved_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- fork --------------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In the child: prepare for new connections, without using the parent's."""
        front, thread = self._front, self._thread
        closed = front.closed_error is not None
        _ = self._finalizer.detach()
        self._init_process_state()
        if closed:
            _ = self._front.stop()
        front.fail_after_fork()
        thread.after_fork()


def _after_fork_in_child() -> None:
    for producer in list(_producers):
        producer.after_fork()


def _at_exit() -> None:
    deadline = time.monotonic() + ATEXIT_S
    for producer in list(_producers):
        producer.close(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_after_fork_in_child)
_ = atexit.register(_at_exit)
