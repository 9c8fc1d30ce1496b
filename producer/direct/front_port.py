"""The interface of the direct producer's front for its sender thread."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ...api.errors import PenstockError
from ..accumulator.chunk_store import SealedChunk
from ..delivery.outcomes import DeliveryFailure, DeliveryOutcome
from ..metadata.cluster import Cluster


class FrontPort(Protocol):
    """The methods of the producer's front that the sender thread calls. No other thread calls them."""

    @property
    def flushing(self) -> bool:
        """Whether no record may linger: a flush or close is running, or a caller waits for the shared reserve."""
        ...

    @property
    def nodes_under_pressure(self) -> frozenset[int]:
        """Nodes whose records must not linger because a caller waits for their memory."""
        ...

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        """Seal and return the chunks that are full or have lingered, or all, in the order of their records."""
        ...

    def next_deadline(self, now: float) -> float | None:
        """When to call `drain` next; None: not before the next wake-up."""
        ...

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        """Resolve the futures of records."""
        ...

    def cluster_changed(self, cluster: Cluster) -> None:
        """Apply a new metadata snapshot: a Metadata response arrived, or a leader moved."""
        ...

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        """The connection for metadata requests has ended. `refused`: every broker rejected the authentication."""
        ...

    def update_partition_load(self, waited_s: Callable[[int], float]) -> None:
        """Update the partitioner's load statistics. `waited_s`: for how many seconds a node could not be sent to."""
        ...

    def set_append_error(self, reason: PenstockError | None) -> None:
        """Reject records with this error, or accept them (None): a transaction ended or started."""
        ...

    def sender_ended(self, failure: DeliveryFailure | None) -> None:
        """The thread has ended, by a close (None) or by a permanent failure. All unresolved records fail."""
        ...
