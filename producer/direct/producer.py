"""The producer without a daemon: `DirectProducer`, whole in an application's process."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self
from uuid import UUID

from ...api.errors import PenstockError, WaitTimeoutError
from ...api.metadata import PartitionMetadata
from ...api.metrics import MetricName
from ...api.partitioning import Partitioner
from ...api.plugins import PluginOptions, Plugins
from ...config.direct import DirectSettings, direct_settings
from ...runtime.clock import monotonic
from ..accumulator.partitioners import RoundRobinPartitioner
from ..kernel.append import SendMethods
from ..network.tls import require_good_files
from ..telemetry.sensors import MetricValue
from .callbacks import log_plugin_failure
from .environment import Environment, system_environment
from .futures_front import Front
from .metadata_wait import SenderPort
from .plugins import DirectPluginPipeline
from .sender_thread import SenderThread
from .transactions_api import TransactionsApi

ATEXIT_S: Final = 5.0
"""How long the end of the program waits for producers that were not closed."""

_producers: "weakref.WeakSet[DirectProducer]" = weakref.WeakSet()


class DirectProducer(TransactionsApi, SendMethods):
    """Sends records to Kafka from this process, without a daemon. Any thread may use it; callbacks run on its sender thread.

    Settings have Kafka's names and defaults, in a mapping or, with underscores, as keywords:
    `DirectProducer({"bootstrap.servers": "broker-1:9092"}, linger_ms=20)`.

    partitioner: chooses the partition of records that name none: a callable (`api.partitioning`), or "round_robin"; else records
        with a key go by its hash, others stay with one partition for a batch's worth.
    key_serializer, value_serializer: make bytes of keys and values (`api.serializers`); without one they are bytes.
    interceptors: objects that see every record before it is serialized, and its end (`api.interceptors`).

    `send(topic, value, key=None, *, headers, partition, timestamp_ms, on_ack)` takes one record and answers a future of its
    metadata; `send_many(topic, values, keys, …)` takes whole columns at a fraction of the cost. What can go wrong with a record
    (no metadata in time, no memory in time, too large, a topic of no such name or not for this user) comes in the future and to
    `on_ack`, never as an exception; `on_ack(metadata, None)` or `on_ack(None, error)` runs before `result()` returns, in the
    records' order in each partition. Both may wait, for metadata and memory together at most `max.block.ms`; from a callback
    they never wait. Raised are TypeError and ValueError for what is no record, SerializationError for what a serializer cannot take,
    ClosedError, and what a partitioner raises.

    With `transactional.id` records are sent in transactions, between `begin_transaction` and `commit_transaction` or
    `abort_transaction`; `init_transactions` comes first. Outside of one, `send` raises TransactionStateError.

    After a fork the child has a producer of its own, begun with its first record; what the parent had no answers for stays the
    parent's.

    Raises:
        ConfigError: with every problem of the settings.
        TypeError, ValueError: something is no serializer or interceptor; and what their constructors and `configure` raise.
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
        given = PluginOptions(key_serializer, value_serializer, interceptors, custom)
        self._plugins: Final = (
            Plugins(given, self._settings.model_dump(by_alias=True), log_plugin_failure) if given.has_any else None
        )
        try:
            self._init_process_state()
        except BaseException:
            if self._plugins is not None:
                _ = self._plugins.close()
            raise
        _producers.add(self)

    def _init_process_state(self) -> None:
        """Everything that belongs to this process."""
        self._accumulator, self._thread = self._make_front_and_sender(system_environment())
        self._appender = self._accumulator
        self._accumulator.connect_sender(self._thread)
        if self._plugins is not None:
            self._accumulator.plugins = self._plugins
            if self._plugins.handles_records:
                self.plugin_pipeline = DirectPluginPipeline(self._accumulator, self._plugins)
        self._prepare_transactions()
        # A producer nobody holds any more ends by itself once everything is settled.
        self._finalizer = weakref.finalize(self, self._thread.close, None)
        self._finalizer.atexit = False

    def _make_front_and_sender(self, seams: Environment) -> tuple[Front, SenderPort]:
        """The two halves, which do not know each other yet."""
        turns = self._partitioner == "round_robin"
        custom = None if isinstance(self._partitioner, str) else self._partitioner
        front = Front(self._settings, seams, custom, RoundRobinPartitioner if turns else None)
        front.ignore_keys = turns or self._settings.partitioner_ignore_keys
        return front, SenderThread(self._settings, front, front.arena, front.meters)

    def flush(self, timeout: float | None = None) -> None:
        """Have nothing wait for company any more, and return when everything sent before has ended, well or not.

        Records that expired and may be written count as ended.

        Raises:
            WaitTimeoutError: not within `timeout` seconds; the records keep going.
            RuntimeError: called by a callback, which would wait for itself.
        """
        self._forbid_callback("flush")
        self._accumulator.flush(timeout)

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """The topic's partitions; waits at most `timeout` seconds, `max.block.ms` by default.

        Raises:
            TypeError: the topic is not text.
            MetadataTimeoutError, InvalidTopicError, TopicForbiddenError: why nothing is known of it.
            ClosedError: the producer is closed or cannot go on.
        """
        return self._accumulator.partitions(topic, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what is held, wait for the answers (at most `timeout` seconds), and end.

        What has no answer by then fails: with ClosedError if it certainly was never sent, else with ExpiredMayBeWrittenError.
        Closing twice does nothing. Called by a callback it waits for nothing, as with a timeout of 0.

        Raises:
            ValueError: a negative timeout.
            PenstockError: everything is closed, but a serializer, an interceptor or the partitioner raised when it was.
        """
        if timeout is not None and timeout < 0:
            raise ValueError(f"a timeout of {timeout} s is negative")
        callback = self._thread.is_current
        if not self._accumulator.stop():
            return
        _producers.discard(self)
        if callback:
            self._thread.close(0)
            return
        if self._accumulator.started:
            self._join_sender(timeout)
        failure = None if self._plugins is None else self._plugins.close()
        if failure is not None:
            raise PenstockError(f"a plug-in could not be closed: {failure}") from failure

    def _join_sender(self, timeout: float | None) -> None:
        """Have the thread end, and wait for it."""
        self._thread.close(timeout)
        try:
            if not self._thread.join(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
                self._thread.close(0)
                _ = self._thread.join()
        except BaseException:
            # Interrupted: the rest is given up, and the thread does not stay behind.
            self._thread.close(0)
            _ = self._thread.join()
            raise

    def client_instance_id(self, timeout: float) -> UUID:
        """What the brokers call this producer in the metrics they collect (KIP-714); waits for it at most `timeout` seconds.

        Raises:
            ValueError: a negative timeout.
            RuntimeError: `enable.metrics.push` is false; or called by a callback, which would hold up the answer.
            WaitTimeoutError: no broker has given an id in time; those that collect no metrics give none.
            ClosedError: the producer is closed or cannot go on.
        """
        if timeout < 0:
            raise ValueError(f"a timeout of {timeout} s is negative")
        if not self._settings.enable_metrics_push:
            raise RuntimeError("the brokers know no id of this producer: enable.metrics.push is false")
        self._forbid_callback("client_instance_id")
        known = self._thread.instance_id(0)
        if known is None:
            self._accumulator.ensure_started()
            known = self._thread.instance_id(timeout)
        if known is None:
            raise WaitTimeoutError(f"no broker has given an id within {timeout} s")
        return known

    def metrics(self) -> dict[MetricName, float]:
        """Every metric as of now, under the names of Kafka's producer (docs/reference/producer-metrics.md). Where there is nothing
        to take a mean or a maximum of, it is NaN."""
        return {figure.name: figure.value for figure in self.metric_values()}

    def metric_values(self) -> list[MetricValue]:
        """The same with what each metric is, for who shows them elsewhere (`prometheus.Collector`)."""
        return self._accumulator.meters.sensors.metric_values(monotonic())

    @property
    def held_bytes(self) -> int:
        """Memory of records that wait or are on their way, of `buffer.memory`."""
        return self._accumulator.pool.reserved_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- fork --------------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In the child: leave the parent's connections alone and be ready to begin with some of its own."""
        rows, thread = self._accumulator, self._thread
        closed = rows.closed_error is not None
        _ = self._finalizer.detach()
        self._init_process_state()
        if closed:
            _ = self._accumulator.stop()
        rows.fail_after_fork()
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
