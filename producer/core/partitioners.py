"""Which partition records go to that name none and have no key (keys are hashed by the kernel).

One object per topic; random numbers are drawn from the function given. `Choices` is what the cluster looks like at the time.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

BATCH_HEADER_BYTES: Final = 61


class Queue(NamedTuple):
    """How much waits for a partition that has a leader. `excluded`: its node has been unavailable for too long."""

    partition: int
    batches: int
    excluded: bool = False


class LoadTable(NamedTuple):
    """Partitions, and running sums of how often each is to be chosen: a longer queue is chosen less often."""

    partitions: Sequence[int]
    sums: Sequence[int]


class Choices(NamedTuple):
    """A topic's partitions: all of them, those that have a leader, and the loads of these where they are known."""

    partition_count: int
    available: Sequence[int]
    loads: LoadTable | None = None


def load_table(queues: Iterable[Queue]) -> LoadTable | None:
    """The table for a topic all of whose partitions with a leader are in `queues`; None: choose evenly.

    Exclusion is judged for every partition, an empty queue or not, and never leaves a trace in its neighbour.
    """
    every = list(queues)
    kept = [queue for queue in every if not queue.excluded]
    if len(every) < 2 or not kept:
        return None
    longest = max(queue.batches for queue in kept)
    if len(kept) == len(every) and all(queue.batches == longest for queue in kept):
        return None
    sums = list(accumulate(longest + 1 - queue.batches for queue in kept))
    return LoadTable([queue.partition for queue in kept], sums)


def choose(choices: Choices, random31: int) -> int:
    """A partition, by load where loads are known, evenly otherwise; one without a leader only if none has one."""
    if choices.loads is not None:
        return choices.loads.partitions[bisect_right(choices.loads.sums, random31 % choices.loads.sums[-1])]
    if choices.available:
        return choices.available[random31 % len(choices.available)]
    return random31 % choices.partition_count


class Sticky:
    """Stays with one partition until a batch's worth has gone there, so that batches fill up.

    `random31` gives numbers from 0 to 2^31 - 1.
    """

    __slots__ = ("_choices", "_partition", "_produced", "_random31", "_sticky_bytes")

    def __init__(self, sticky_bytes: int, random31: Callable[[], int]) -> None:
        """`sticky_bytes`: size of a batch.

        Raises:
            ValueError: below 1.
        """
        if sticky_bytes < 1:
            raise ValueError(f"a batch of {sticky_bytes} bytes is none to stay for")
        self._sticky_bytes: Final = sticky_bytes
        self._random31: Final = random31
        self._choices: Choices | None = None
        self._partition = -1
        self._produced = 0

    @property
    def partition(self) -> int:
        """Where the next keyless frame goes; `learn` comes first."""
        assert self._partition >= 0, "nothing is known of the topic"
        return self._partition

    def learn(self, partition_count: int, available: Sequence[int], loads: LoadTable | None = None) -> None:
        """What the cluster looks like now. A partition that has lost its leader is left at once if others have one."""
        self._choices = Choices(partition_count, available, loads)
        if not 0 <= self._partition < partition_count or (available and self._partition not in available):
            self._switch(self._choices)

    def appended(self, size: int, *, all_batches_full: bool = False) -> None:
        """Count the record bytes of a keyless frame that went there, and move on when it was enough.

        Without a fresh report that no open batch has room (`all_batches_full` false) it stays for up to twice as much: that
        spares a fraction of a batch where the linger is long.
        """
        assert self._choices is not None, "nothing is known of the topic"
        if self._produced == 0:
            size += BATCH_HEADER_BYTES
        self._produced += size
        enough = self._sticky_bytes if all_batches_full else 2 * self._sticky_bytes
        if self._produced >= enough:
            self._switch(self._choices)

    def _switch(self, choices: Choices) -> None:
        self._partition = choose(choices, self._random31())
        self._produced = 0
