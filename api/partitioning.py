"""A partitioner of the application's own."""

from collections.abc import Sequence
from typing import Protocol

from .metadata import PartitionMetadata


class Partitioner(Protocol):
    """Chooses the partition of a record that names none: any callable of this shape. It sees key and value as bytes.

    `partitions`: the topic's, in order of their numbers, as far as they are known at the time. The answer is the number of one
    of them, or None to leave the choice to the producer (by key, else a sticky partition). It is called on the thread that
    sends, and what it raises `send` raises.
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
    """The partitioner's answer for one record.

    Raises:
        TypeError: the answer is no number.
        ValueError: the answer is negative, or the topic has no such partition (SND-15).
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
