"""The record batches in a broker's own log files: what was really written, which no consumer tells."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from .kafka_cluster import OwnCluster
from .readers import FENCE

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and largest timestamp, producer id,
# producer epoch, base sequence, record count: the fixed front of a version 2 batch.
FRONT: Final = struct.Struct(">qiibIhiqqqhii")
OVERHEAD: Final = 12
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Batch(NamedTuple):
    """The front of one batch."""

    partition: int
    base_offset: int
    codec: str
    producer_id: int
    """Below 0: not idempotent."""
    producer_epoch: int
    base_sequence: int
    records: int
    size: int


def batches_of(cluster: OwnCluster, topic: str) -> list[Batch]:
    """Every batch of a topic in the log of each partition's leader, but for the readers' own fences."""
    found: list[Batch] = []
    for partition, node in sorted(cluster.leaders(topic).items()):
        folder = cluster.nodes[node].data_folder / f"{topic}-{partition}"
        for path in sorted(folder.glob("*.log")):
            found += _batches(partition, path)
    return found


def _batches(partition: int, path: Path) -> Iterator[Batch]:
    data = path.read_bytes()
    at = 0
    while at + FRONT.size <= len(data):
        base, length, _, magic, _, attributes, _, _, _, producer, epoch, sequence, count = FRONT.unpack_from(data, at)
        size = length + OVERHEAD
        if length <= 0 or at + size > len(data):
            # An active segment is laid out ahead; behind its end are zeros.
            break
        assert magic == 2, f"{path}: magic {magic} at {at}"
        if FENCE not in data[at : at + size]:
            yield Batch(partition, base, CODECS[attributes & 7], producer, epoch, sequence, count, size)
        at += size
