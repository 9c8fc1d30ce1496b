"""Metadata of sent records and of partitions."""

from collections.abc import Sequence
from typing import Final, NamedTuple

UNKNOWN: Final = -1


class RecordMetadata(NamedTuple):
    """Result of one record. `level`: what it reached, as requested: "accepted", "spooled" or "delivered".

    `partition` and `offset` are known only at "delivered". They are -1 otherwise, or if the daemon knows that the
    record is in the log but not where. `timestamp_ms` is the broker's timestamp, or -1 if the broker kept the
    application's. `single_replica`: fewer than two brokers are known to have the record.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    level: str
    single_replica: bool


class OffsetRun(NamedTuple):
    """Consecutive records of one partition at consecutive offsets from `offset` on (-1: not known)."""

    partition: int
    offset: int
    count: int  # type: ignore[assignment]
    timestamp_ms: int


class FrameMetadata(NamedTuple):
    """Result of one `send_many`. `runs` and `partitions` (of each record) are present only at the requested detail."""

    topic: str
    count: int  # type: ignore[assignment]
    level: str
    runs: Sequence[OffsetRun]
    partitions: Sequence[int] | None
    single_replica: bool


class PartitionMetadata(NamedTuple):
    """A partition of a topic. Brokers are ids; a leader of -1 means none."""

    partition: int
    leader: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
