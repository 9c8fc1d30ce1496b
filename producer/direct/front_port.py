"""The direct producer's front as its sender thread sees it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ...api.errors import PenstockError
from ..accumulator.chunk_store import SealedChunk
from ..delivery.outcomes import DeliveryFailure, DeliveryOutcome
from ..metadata.cluster import Cluster


class FrontPort(Protocol):
    """What the thread asks of the producer's front, and tells it. Called on the thread only."""

    @property
    def flushing(self) -> bool:
        """Somebody flushes, closes, or waits for memory of no node's own: nothing is to linger."""
        ...

    @property
    def nodes_under_pressure(self) -> frozenset[int]:
        """Nodes whose memory somebody waits for: nothing for them is to linger."""
        ...

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        """Chunks that are full or have lingered, sealed in the order of their records; or all there are."""
        ...

    def next_deadline(self, now: float) -> float | None:
        """When the next chunk has lingered; None: none is open."""
        ...

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        """What became of records."""
        ...

    def cluster_changed(self, cluster: Cluster) -> None:
        """A Metadata answer came, or a leader moved."""
        ...

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        """The connection on which metadata is asked for has ended. `refused`: and nobody is left who believes who we are."""
        ...

    def update_partition_load(self, waited_s: Callable[[int], float]) -> None:
        """Let what waits weigh the choice of partitions. `waited_s`: for how long something for a node could not be sent."""
        ...

    def set_append_error(self, reason: PenstockError | None) -> None:
        """Take no records for this reason, or (None) take them: transactions begin and end."""
        ...

    def sender_ended(self, failure: DeliveryFailure | None) -> None:
        """The thread is over, by a close (None) or because nothing can be sent any more. What is still open fails."""
        ...
