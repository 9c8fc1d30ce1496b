"""Coordinators: finding the coordinator of a key, and writing its state to the log for a successor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kafka.protocol.api_message import ApiMessage

from ..cluster.node import BrokerNode, BrokerPartition, PeerNode
from ..cluster.responses import DelayedResponse, ImmediateResponse, RequestContext, RequestOutcome
from ..log import internal_topics
from ..log.batch_writer import BatchProducer, InternalRecord, internal_batch
from ..log.batches import read_header
from ..log.error_codes import ErrorCode
from ..log.ports import BrokerTime, ControllerUnreachableError
from ..log.topics import BrokerTopic, TimestampType

WRITE_S: Final = 5.0
"""Longest wait for the replication of a coordinator's write (Kafka's default for offsets)."""


@dataclass(frozen=True, slots=True)
class CoordinatorPartition:
    """The partition, led by this node, of an internal topic that holds the state of a key."""

    topic: BrokerTopic
    index: int
    partition: BrokerPartition
    epoch: int
    """Leader epoch."""


@dataclass(frozen=True, slots=True)
class DelayedWrite:
    """A response that waits for the replication of its write."""

    answer: ApiMessage
    coordinator_partition: CoordinatorPartition
    end_offset: int
    """Offset that the high watermark must reach."""

    on_failure: Callable[[ErrorCode], ApiMessage]
    """Builds the response if the write fails."""


def ensure_internal_topic(node: BrokerNode, name: str, moment: BrokerTime) -> BrokerTopic | None:
    """Return an internal topic, created on first use; None when it cannot be created now."""
    topic = node.topic(name)
    if topic is not None:
        return topic
    try:
        _ = node.create_topic(name, internal_topics.PARTITIONS, (), moment)
    except ControllerUnreachableError:
        return None
    return node.topic(name)


def find_coordinator_node(node: BrokerNode, name: str, key: str, moment: BrokerTime) -> PeerNode | None:
    """Return the node that this one knows as the coordinator of a key, or None."""
    topic = ensure_internal_topic(node, name, moment)
    if topic is None:
        return None
    peer = node.leader(topic, internal_topics.internal_partition_of(key))
    return peer if peer is not None and peer.node_id in node.metadata_cache.live() else None


def coordinator_partition_of(node: BrokerNode, name: str, key: str, now: float) -> CoordinatorPartition | ErrorCode:
    """Return the partition that holds a key, if this node is its coordinator and has loaded it."""
    topic = node.topic(name)
    index = internal_topics.internal_partition_of(key)
    found = ErrorCode.NOT_COORDINATOR if topic is None else node.partition(topic, index)
    if isinstance(found, ErrorCode) or topic is None:
        return ErrorCode.NOT_COORDINATOR
    table = node.transactions if name == internal_topics.TRANSACTIONS else node.groups
    return (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if table.loading(index, now)
        else CoordinatorPartition(topic, index, found, found.placement.epoch)
    )


def write(
    node: BrokerNode,
    home: CoordinatorPartition,
    pairs: Sequence[InternalRecord],
    wall_ms: int,
    writer: BatchProducer | None = None,
) -> int | None:
    """Append records to an internal topic; return the end offset to replicate, or None if too few are in sync."""
    return append(node, home.partition, home.index, internal_batch(pairs, wall_ms, writer), wall_ms)


def append(node: BrokerNode, partition: BrokerPartition, index: int, data: bytes, wall_ms: int) -> int | None:
    """Append the broker's own batch; return the end offset to replicate, or None if too few are in sync."""
    if len(partition.placement.in_sync) < partition.min_in_sync:
        return None
    epoch = partition.placement.epoch
    head = read_header(data)
    placed = partition.log.assign_offsets(head, data, TimestampType.CREATE, wall_ms=wall_ms, epoch=epoch)
    node.write(partition, index, placed.data)
    return placed.last_offset + 1


def try_complete_write(node: BrokerNode, call: RequestContext, written: DelayedWrite) -> RequestOutcome:
    """Respond when the write is on all in-sync replicas, when this leader epoch is over, or on timeout."""
    home = written.coordinator_partition
    found = node.partition(home.topic, home.index)
    if isinstance(found, ErrorCode) or found.placement.epoch != home.epoch:
        return ImmediateResponse(written.on_failure(ErrorCode.NOT_COORDINATOR))
    if found.log.high_watermark >= written.end_offset:
        return ImmediateResponse(written.answer)
    deadline = call.arrived + WRITE_S
    if call.moment.now >= deadline:
        return ImmediateResponse(written.on_failure(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return DelayedResponse(deadline, written)
