"""Interface for the application's partitioner."""

from collections.abc import Sequence
from typing import Protocol

from .metadata import PartitionMetadata


class Partitioner(Protocol):
    """Chooses the partition of a record without one. Any callable of this signature. It gets key and value as bytes.

    `partitions`: the topic's partitions known at the time, ordered by number. Return one of these numbers, or None to
    let the producer choose (by key, else a sticky partition). It runs on the thread that calls `send`, which raises its
    exceptions.
    """

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: Sequence[PartitionMetadata], /
    ) -> int | None: ...


def choose_partition(
    partitioner: Partitioner,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    partitions: Sequence[PartitionMetadata],
) -> int | None:
    """Return the partitioner's choice for one record.

    Raises:
        TypeError: the result is neither an int nor None.
        ValueError: the result is negative, or the topic has no such partition (SND-15).
    """
    number = partitioner(topic, key, value, partitions)
    if number is None:
        return None
    if type(number) is not int:
        raise TypeError(f"the partitioner answered {number!r} for topic {topic}: neither a partition's number nor None")
    if not 0 <= number < len(partitions):
        raise ValueError(
            f"the partitioner chose partition {number} of topic {topic}, which has 0 to {len(partitions) - 1}"
        )
    return number
