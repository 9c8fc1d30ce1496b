"""Before a gap is believed: a leader that was deposed and does not know it refuses everything too (GAP-1 to GAP-3).

Every other replica is asked who leads; then, when no stale copy of an unresolved batch can arrive any more, all unresolved batches
are tried once more. Only what is refused twice under the newest leader epoch is not in the log.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from ..metadata.cluster import MetadataAnswer

PAUSE_S: Final = 15.0
"""A broker that was stopped and goes on learns within its session that it leads no more (GAP-2)."""
PAUSE_AFTER_LOSS_S: Final = 45.0
"""Counted from the end of a connection with something unanswered: a broker finishes the request it is at (at most the time-out
of Produce, 30 s) and takes one more."""


class GapCheck:
    """One partition between the two passes."""

    def __init__(self, topic: str, index: int, leader_epoch: int, others: Collection[int], *, now: float) -> None:
        self.topic: Final = topic
        self.index: Final = index
        self.leader_epoch: Final = leader_epoch
        self.unanswered_replicas: Final = set(others)
        """Replicas that have not told who leads."""
        self.in_second_pass = False
        """The second pass goes on."""
        self._since: Final = now

    def ready_at(self, lost_at: float | None) -> float:
        """When the second pass may begin, as far as time goes. `lost_at`: when a connection with something of the partition
        unanswered last ended; None: none did."""
        return self._since + PAUSE_S if lost_at is None else max(self._since + PAUSE_S, lost_at + PAUSE_AFTER_LOSS_S)

    def receive_metadata(self, node: int, answer: MetadataAnswer) -> "NewerLeader | None":
        """A replica's Metadata. A newer leader ends the check: all begins again with that one."""
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
    """Somebody knows of one."""

    leader: int
    leader_epoch: int


class ReplicaMetadataRequest(NamedTuple):
    """A request for Metadata on its way to a replica."""

    topics: list[str]


class ReplicaMetadataQueries:
    """Who is to be asked for Metadata of which topics, and what came back. The connections of a process look here."""

    def __init__(self) -> None:
        self._wanted: dict[int, set[str]] = {}
        self._answers: list[tuple[int, MetadataAnswer]] = []

    def request(self, nodes: Iterable[int], topic: str) -> None:
        """These nodes shall tell of the topic."""
        for node in nodes:
            self._wanted.setdefault(node, set()).add(topic)

    def has_request(self, node: int) -> bool:
        """It is to be asked."""
        return node in self._wanted

    def take_request(self, node: int) -> ReplicaMetadataRequest:
        """What to ask a node now."""
        return ReplicaMetadataRequest(sorted(self._wanted.pop(node, ())))

    def complete(self, node: int, asked: ReplicaMetadataRequest, answer: MetadataAnswer | None) -> None:
        """A node answered; None: it did not, and is asked again."""
        if answer is not None:
            self._answers.append((node, answer))
            return
        for topic in asked.topics:
            self.request([node], topic)

    @property
    def has_answers(self) -> bool:
        """Somebody told something."""
        return bool(self._answers)

    def answers(self) -> list[tuple[int, MetadataAnswer]]:
        """What was told since the last call."""
        told, self._answers = self._answers, []
        return told
