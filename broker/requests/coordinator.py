"""Coordinators: which node keeps what is known of a key, whether it is ready, and writing it down so that a successor knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kafka.protocol.api_message import ApiMessage

from ..cluster.node import Node, Partition, Peer
from ..cluster.responses import Answer, Call, Outcome, Wait
from ..log import internal_topics
from ..log.batch_writer import Pair, Writer, internal_batch
from ..log.batches import read_head
from ..log.error_codes import ErrorCode
from ..log.ports import CutOffError, Moment
from ..log.topics import TimestampType, Topic

WRITE_S: Final = 5.0
"""Longest wait for the replicas of what a coordinator wrote (Kafka's default for offsets)."""


@dataclass(frozen=True, slots=True)
class Home:
    """The partition of an internal topic that this node leads, and that tells of a key."""

    topic: Topic
    index: int
    partition: Partition
    epoch: int
    """The leader's."""


@dataclass(frozen=True, slots=True)
class Written:
    """An answer that waits for the replicas of what it tells."""

    answer: ApiMessage
    home: Home
    end_offset: int
    """What the high watermark must reach."""

    failed: Callable[[ErrorCode], ApiMessage]
    """The answer, if it does not."""


def ensure(node: Node, name: str, moment: Moment) -> Topic | None:
    """An internal topic, made when it is first needed; None when it cannot be made now."""
    topic = node.topic(name)
    if topic is not None:
        return topic
    try:
        _ = node.create_topic(name, internal_topics.PARTITIONS, (), moment)
    except CutOffError:
        return None
    return node.topic(name)


def coordinator(node: Node, name: str, key: str, moment: Moment) -> Peer | None:
    """Which node keeps what is known of a key, as far as this one knows."""
    topic = ensure(node, name, moment)
    if topic is None:
        return None
    peer = node.leader(topic, internal_topics.partition_of(key))
    return peer if peer is not None and peer.node_id in node.placements.live() else None


def home_of(node: Node, name: str, key: str, now: float) -> Home | ErrorCode:
    """Where a key's records are, if this node is its coordinator and knows them all."""
    topic = node.topic(name)
    index = internal_topics.partition_of(key)
    found = ErrorCode.NOT_COORDINATOR if topic is None else node.partition(topic, index)
    if isinstance(found, ErrorCode) or topic is None:
        return ErrorCode.NOT_COORDINATOR
    table = node.transactions if name == internal_topics.TRANSACTIONS else node.groups
    return (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if table.loading(index, now)
        else Home(topic, index, found, found.placement.epoch)
    )


def write(node: Node, home: Home, pairs: Sequence[Pair], wall_ms: int, writer: Writer | None = None) -> int | None:
    """Append records of an internal topic; return what its high watermark must reach, or None when too few replicas are there."""
    return append(node, home.partition, home.index, internal_batch(pairs, wall_ms, writer), wall_ms)


def append(node: Node, partition: Partition, index: int, data: bytes, wall_ms: int) -> int | None:
    """Append a batch of the broker's own; return what the high watermark must reach, or None when too few replicas are there."""
    if len(partition.placement.in_sync) < partition.in_sync_wanted:
        return None
    epoch = partition.placement.epoch
    head = read_head(data)
    placed = partition.log.placed(head, data, TimestampType.CREATE, wall_ms=wall_ms, epoch=epoch)
    node.write(partition, index, placed.data)
    return placed.last_offset + 1


def finish(node: Node, call: Call, written: Written) -> Outcome:
    """Answer when what was written is on all in-sync replicas, or never will be, or the time is up."""
    home = written.home
    found = node.partition(home.topic, home.index)
    if isinstance(found, ErrorCode) or found.placement.epoch != home.epoch:
        return Answer(written.failed(ErrorCode.NOT_COORDINATOR))
    if found.log.high_watermark >= written.end_offset:
        return Answer(written.answer)
    deadline = call.arrived + WRITE_S
    if call.moment.now >= deadline:
        return Answer(written.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return Wait(deadline, written)
