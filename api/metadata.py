"""Where records went."""

from collections.abc import Sequence
from typing import Final, NamedTuple

UNKNOWN: Final = -1


class RecordMetadata(NamedTuple):
    """What became of one record. `level`: how far it got, as the application asked: "accepted", "spooled" or "delivered".

    `partition` and `offset` are told at "delivered" only, -1 otherwise, or where the daemon knows that the record is in the
    log but not where. `timestamp_ms` is the time the broker gave it, -1 where it kept the application's. `single_replica`: fewer than
    two brokers are known to have it.
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
    """What became of the records of one `send_many`. `runs` and `partitions` (of each record) as far as they were asked for."""

    topic: str
    count: int  # type: ignore[assignment]
    level: str
    runs: Sequence[OffsetRun]
    partitions: Sequence[int] | None
    single_replica: bool


class PartitionMetadata(NamedTuple):
    """A partition of a topic: brokers by id, -1 for no leader."""

    partition: int
    leader: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
