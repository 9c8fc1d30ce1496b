"""The direct producer's front, between callers and the sender thread.

Any thread may call it, but only the sender thread calls `settle`, `cluster_changed` and `sender_ended`. Its parts share
one lock, `condition`.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

from ...api.errors import ClosedError, ExpiredMayBeWrittenError, FatalError, PenstockError, WaitTimeoutError
from ...api.metadata import PartitionMetadata
from ...api.partitioning import Partitioner
from ...api.plugins import Plugins
from ...config.direct import DirectSettings
from ..accumulator.buffer_pool import BufferPool
from ..accumulator.chunk_store import ChunkStore, SealedChunk
from ..accumulator.partitioners import KeylessPartitioner
from ..delivery.outcomes import DeliveryFailure, DeliveryOutcome
from ..kernel.append import RecordAppender
from ..kernel.chunks import AccumulatorPartition, AccumulatorTopic
from ..metadata.cluster import Cluster
from ..telemetry.metrics import ProducerMetrics
from .accumulator_topics import AccumulatorTopics
from .completion import Completion
from .environment import Environment, SenderPort
from .errors import error_of
from .metadata_wait import MetadataWait
from .record_accumulator import RecordAccumulator

log: Final = logging.getLogger("penstock.producer")


class Front:
    """Holds the parts that records pass, and does what concerns several of them: flush, close and failure.

    `appender` (compiled) writes each record into a chunk of the `accumulator`. It waits in `metadata` for topics that
    are not in `topics` yet. `completion` resolves the futures.
    """

    def __init__(
        self,
        settings: DirectSettings,
        environment: Environment,
        partitioner: Partitioner | None = None,
        keyless: Callable[[], KeylessPartitioner] | None = None,
    ) -> None:
        """`keyless`: makes a partitioner that chooses the partition of all records without one, even with a key."""
        self.settings: Final = settings
        self.environment: Final = environment
        self.condition: Final = environment.condition
        self.pool: Final = BufferPool(max(settings.buffer_memory, settings.batch_size), settings.batch_size)
        self.arena: Final = ChunkStore(settings.batch_size, settings.buffer_memory)
        self.meters: Final = ProducerMetrics(settings, self.pool, now=environment.now())
        self.completion: Final = Completion(
            environment, self.pool, self.arena, self.meters, self._partition_of, single_replica=settings.acks != "-1"
        )
        self.topics: Final = AccumulatorTopics(settings, environment, self.pool, self.completion, partitioner, keyless)
        self.accumulator: Final = RecordAccumulator(
            settings, environment, self.pool, self.arena, self.topics, self.completion
        )
        self.metadata: Final = MetadataWait(settings, environment, self.topics, self.accumulator, self.meters)
        self.appender: Final = RecordAppender(
            self.condition,
            self.accumulator,
            self.topics,
            self.metadata,
            self.completion,
            environment.wall,
            keyless is not None or settings.partitioner_ignore_keys,
            min(settings.max_request_size, settings.buffer_memory),
        )
        self.accumulator.appender = self.appender
        self.sender_has_ended = False
        """Set by `sender_ended`, when all records have completed and the plug-ins are closed."""
        self.plugins: Plugins | None = None
        """Set by the producer; closed when the sender thread has ended."""

    sender: SenderPort
    """Set by `connect_sender`."""

    def connect_sender(self, thread: SenderPort) -> None:
        """Set the sender thread. It needs the front in its constructor, so it can only be set afterwards."""
        self.sender = thread
        self.accumulator.sender = self.metadata.sender = self.completion.sender = thread

    def _partition_of(self, number: int) -> AccumulatorPartition:
        return self.topics.part_at(*self.sender.topic_of(number))

    @contextmanager
    def running_flush(self) -> Generator[int, None, None]:
        """Send all records without lingering until the block ends. Gives the serial number of the last chunk that holds
        any of them: see `Completion.has_settled`."""
        with self.condition:
            self.accumulator.close_all()
            mark = self.completion.last_serial
            began = self.environment.now()
            self.completion.flushes += 1
            if self.completion.unsettled:
                self.accumulator.wake_sender()
        try:
            yield mark
        finally:
            with self.condition:
                self.completion.flushes -= 1
                now = self.environment.now()
                self.meters.flushed(now - began, now)

    def flush(self, timeout: float | None) -> None:
        """See `DirectProducer.flush`."""
        with self.running_flush() as mark:
            if not self.completion.wait_for_flush(mark, timeout):
                raise WaitTimeoutError(f"not everything was settled within {timeout} s")

    def partitions(self, topic: str, timeout: float | None) -> list[PartitionMetadata]:
        """See `DirectProducer.partitions_for`."""
        _, found = self.metadata.wait_for_metadata(topic, None, timeout)
        if not isinstance(found, AccumulatorTopic):
            found.topic = topic
            raise found
        return self.topics.partitions_of(topic)

    def stop(self) -> bool:
        """Reject new records and wake all waiters (CLS-5). False: it was already stopped."""
        with self.condition:
            if self.closed_error is not None:
                return False
            self._close(ClosedError("the producer is closed"))
            self.condition.notify_all()
        return True

    @property
    def closed_error(self) -> ClosedError | None:
        """The error of a producer that is closed or has failed."""
        return self.accumulator.closed_error

    def _close(self, error: ClosedError) -> None:
        """Reject all records from now on, and end all waits for memory and metadata; under the lock."""
        self.accumulator.reject_all(error)
        self.accumulator.close_all()
        self.pool.close()
        self.metadata.close()

    def fail_after_fork(self) -> None:
        """In a forked child: fail the parent's records; see `Completion.fail_after_fork`."""
        self.accumulator.reject_all(ClosedError("the producer is the parent process's"))
        self.completion.fail_after_fork()

    # --- the sender thread (`engine.FrontPort`) ----------------------------------------------------------------------

    @property
    def flushing(self) -> bool:
        return self.accumulator.flushing

    @property
    def nodes_under_pressure(self) -> frozenset[int]:
        return self.pool.waiting_nodes

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        return self.accumulator.drain(now, all_chunks=all_chunks)

    def next_deadline(self, now: float) -> float | None:
        return self.accumulator.next_deadline(now)

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        self.completion.settle(outcomes)

    def set_append_error(self, reason: PenstockError | None) -> None:
        self.accumulator.set_append_error(reason)

    def cluster_changed(self, cluster: Cluster) -> None:
        with self.condition:
            self.topics.cluster_changed(cluster)
            self.metadata.metadata_updated()
            self.condition.notify_all()

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        with self.condition:
            if self.metadata.brokers_lost(reason, refused=refused):
                self.condition.notify_all()

    def update_partition_load(self, waited_s: Callable[[int], float]) -> None:
        with self.condition:
            self.topics.update_load(self.completion.unsettled.values(), waited_s)

    def sender_ended(self, failure: DeliveryFailure | None) -> None:
        error = ClosedError("the producer was closed before this was sent") if failure is None else error_of(failure)
        unsure = ExpiredMayBeWrittenError(f"{error}; it may have been written")
        fatal = error if isinstance(error, FatalError) else None
        with self.condition:
            self._close(fatal or self.closed_error or ClosedError("the producer's thread has ended"))
            chunks = self.completion.fail_all(error, unsure)
        if fatal is not None:
            log.error("producer_failed error=%s", error)
        self.completion.complete(chunks)
        if self.plugins is not None:
            _ = self.plugins.close()
        with self.condition:
            self.sender_has_ended = True
            self.condition.notify_all()
