"""Confirms a gap. A deposed leader that does not know of its successor refuses everything too (GAP-1 to GAP-3).

Every other replica is asked for the leader. When no stale copy of an unresolved batch can arrive any more, all
unresolved batches are tried once more. Only batches refused twice under the newest leader epoch are not in the log.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from ..metadata.cluster import MetadataAnswer

PAUSE_S: Final = 15.0
"""A broker that was suspended and resumes learns within its session timeout that it no longer leads (GAP-2)."""
PAUSE_AFTER_LOSS_S: Final = 45.0
"""Counted from the end of a connection with unanswered requests: the broker finishes the current one (at most the
Produce timeout, 30 s) and processes one more."""


class GapCheck:
    """The state of one partition between the two passes."""

    def __init__(self, topic: str, index: int, leader_epoch: int, others: Collection[int], *, now: float) -> None:
        self.topic: Final = topic
        self.index: Final = index
        self.leader_epoch: Final = leader_epoch
        self.unanswered_replicas: Final = set(others)
        """Replicas that have not yet answered which leader they know."""
        self.in_second_pass = False
        """Set by `GapConfirmation` when the second pass starts."""
        self._since: Final = now

    def ready_at(self, lost_at: float | None) -> float:
        """Earliest time of the second pass. `lost_at`: when a connection last ended with a batch of the partition
        unanswered; None: never."""
        return self._since + PAUSE_S if lost_at is None else max(self._since + PAUSE_S, lost_at + PAUSE_AFTER_LOSS_S)

    def receive_metadata(self, node: int, answer: MetadataAnswer) -> "NewerLeader | None":
        """Apply a replica's Metadata. Returns a newer leader if the replica knows one; it makes this check obsolete."""
        for topic in answer.topics:
            if topic.name != self.topic:
                continue
            for partition in topic.partitions:
                if partition.index == self.index:
                    if partition.leader_epoch > self.leader_epoch:
                        return NewerLeader(partition.leader, partition.leader_epoch)
                    self.unanswered_replicas.discard(node)
        return None


class NewerLeader(NamedTuple):
    """A leader with a newer epoch, as a replica reported it."""

    leader: int
    leader_epoch: int


class ReplicaMetadataRequest(NamedTuple):
    """A Metadata request to a replica."""

    topics: list[str]


class ReplicaMetadataQueries:
    """Pending Metadata requests to replicas, and their answers. The links of a process send the requests."""

    def __init__(self) -> None:
        self._wanted: dict[int, set[str]] = {}
        self._answers: list[tuple[int, MetadataAnswer]] = []

    def request(self, nodes: Iterable[int], topic: str) -> None:
        """Ask these nodes for the topic's Metadata."""
        for node in nodes:
            self._wanted.setdefault(node, set()).add(topic)

    def has_request(self, node: int) -> bool:
        """Whether there is a request to send to the node."""
        return node in self._wanted

    def take_request(self, node: int) -> ReplicaMetadataRequest:
        """Take the request to send to a node now."""
        return ReplicaMetadataRequest(sorted(self._wanted.pop(node, ())))

    def complete(self, node: int, asked: ReplicaMetadataRequest, answer: MetadataAnswer | None) -> None:
        """Store a node's answer; None: it did not answer, so ask again."""
        if answer is not None:
            self._answers.append((node, answer))
            return
        for topic in asked.topics:
            self.request([node], topic)

    @property
    def has_answers(self) -> bool:
        """Whether `answers` would return any."""
        return bool(self._answers)

    def answers(self) -> list[tuple[int, MetadataAnswer]]:
        """Answers since the last call, with their nodes."""
        told, self._answers = self._answers, []
        return told
