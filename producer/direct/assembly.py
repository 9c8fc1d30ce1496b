"""Builds the parts of the direct producer's sender thread from its settings."""

from collections.abc import Callable
from typing import Final

from ...config.direct import DirectSettings
from ..accumulator.buffer_pool import BufferPool
from ..accumulator.chunk_store import ChunkStore
from ..accumulator.partition_queue import BatchRules
from ..accumulator.slice_accumulator import SliceAccumulator
from ..delivery.in_process import InProcessDelivery, InProcessDeliveryLimits
from ..protocol.backoff import Backoff
from ..records.batch_builder import HEADER_BYTES
from ..records.compression import Levels, make_compressor
from ..sender.broker_link import LinkRules
from ..sender.modes import SendLimits
from ..telemetry.metrics import ProducerMetrics
from ..transactions.delivery import TransactionalDelivery
from .transactions_thread import manager_of

_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`, used until the brokers' value is known."""


def make_delivery(
    settings: DirectSettings, arena: ChunkStore, trouble_with: Callable[[int], str | None]
) -> InProcessDelivery:
    """Build the delivery, in its transactional form if there is a transactional id."""
    levels = Levels(settings.compression_gzip_level, settings.compression_lz4_level, settings.compression_zstd_level)
    batch_bytes = max(settings.batch_size, HEADER_BYTES + 1)
    rules = BatchRules(
        batch_bytes,
        settings.linger_ms / 1000,
        make_compressor(settings.compression_type, levels),
        transactional=settings.transactional_id is not None,
    )
    # A batch with a single record of the largest size must fit into the pool.
    total = max(settings.buffer_memory, batch_bytes, 2 * settings.max_request_size)
    backoff = Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000)
    limits = InProcessDeliveryLimits(
        SendLimits(backoff, _EXPIRATION_MS, retries=settings.retries, confirms_gaps=True),
        settings.delivery_timeout_ms / 1000,
        total,
        idempotent=settings.enable_idempotence,
    )

    def rules_of(_topic: str) -> BatchRules:
        return rules

    accumulator = SliceAccumulator(BufferPool(total, batch_bytes), arena)
    if settings.transactional_id is not None:
        manager = manager_of(settings)
        return TransactionalDelivery(limits, accumulator, rules_of, manager, trouble_with=trouble_with)
    return InProcessDelivery(limits, accumulator, rules_of, trouble_with=trouble_with)


def make_link_rules(settings: DirectSettings, meters: ProducerMetrics, rng: Callable[[], float]) -> LinkRules:
    """The settings of Produce requests."""
    return LinkRules(
        client_id=settings.client_id,
        request_bytes_max=settings.max_request_size,
        request_timeout_ms=settings.request_timeout_ms,
        in_flight_max=settings.max_in_flight_requests_per_connection,
        zstd=settings.compression_type == "zstd",
        rng=rng,
        watch=meters,
        acks=int(settings.acks),
        transactional_id=settings.transactional_id,
    )
