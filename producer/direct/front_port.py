"""The direct producer's front as its sender thread sees it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ...api.errors import PenstockError
from ..accumulator.chunk_store import Sealed
from ..delivery.outcomes import Failure, Outcome
from ..metadata.cluster import Cluster


class FrontPort(Protocol):
    """What the thread asks of the producer's front, and tells it. Called on the thread only."""

    @property
    def flushing(self) -> bool:
        """Somebody flushes, closes, or waits for memory of no node's own: nothing is to linger."""
        ...

    @property
    def pressed(self) -> frozenset[int]:
        """Nodes whose memory somebody waits for: nothing for them is to linger."""
        ...

    def take_due(self, now: float, *, all_chunks: bool) -> list[Sealed]:
        """Chunks that are full or have lingered, sealed in the order of their records; or all there are."""
        ...

    def next_due(self, now: float) -> float | None:
        """When the next chunk has lingered; None: none is open."""
        ...

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """What became of records."""
        ...

    def cluster_changed(self, cluster: Cluster) -> None:
        """A Metadata answer came, or a leader moved."""
        ...

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        """The connection on which metadata is asked for has ended. `refused`: and nobody is left who believes who we are."""
        ...

    def weigh(self, waited_s: Callable[[int], float]) -> None:
        """Let what waits weigh the choice of partitions. `waited_s`: for how long something for a node could not be sent."""
        ...

    def gate(self, reason: PenstockError | None) -> None:
        """Take no records for this reason, or (None) take them: transactions begin and end."""
        ...

    def ended(self, failure: Failure | None) -> None:
        """The thread is over, by a close (None) or because nothing can be sent any more. What is still open fails."""
        ...
