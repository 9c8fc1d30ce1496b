"""Interfaces of the broker's log and cluster code: time, log store and topic store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .topics import BrokerTopic


class BrokerTime(NamedTuple):
    """A point in time, for deadlines and for timestamps."""

    now: float
    """Seconds of a monotonic clock."""

    wall_ms: int
    """Time of day, milliseconds since 1970."""


class ControllerUnreachableError(Exception):
    """A node cannot reach the controller, which the request needs."""


class LogStore(Protocol):
    """Storage for logs that may outlive the process."""

    def load(self, topic: BrokerTopic, partition: int) -> Sequence[bytes]:
        """Return the stored batches of a partition, oldest first; a torn tail is cut off permanently."""
        ...

    def append(self, topic: BrokerTopic, partition: int, data: bytes) -> None:
        """Append one batch; once this returns, the batch survives the end of this process."""
        ...

    def start_offset(self, topic: BrokerTopic, partition: int) -> int:
        """Return the start offset of the log; everything before it was deleted."""
        ...

    def keep_start(self, topic: BrokerTopic, partition: int, offset: int) -> None:
        """Store `offset` as the start of the log; everything before it is deleted."""
        ...

    def discard(self, topic: BrokerTopic) -> None:
        """Delete all logs of a deleted topic."""
        ...


class TopicStore(Protocol):
    """The topics of the cluster, which all nodes share."""

    def changed(self) -> bool:
        """Return whether `all` may have changed since the last call."""
        ...

    def all(self) -> Sequence[BrokerTopic]:
        """Return the topics that exist."""
        ...

    def create(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], replicas: int = 1
    ) -> BrokerTopic | None:
        """Add a topic, or return None when one of that name exists.

        Raises:
            ControllerUnreachableError: the controller is unreachable; so do `alter` and `delete`.
        """
        ...

    def alter(self, topic: BrokerTopic, settings: tuple[tuple[str, str], ...]) -> bool:
        """Change the settings of a topic; False when it no longer exists."""
        ...

    def delete(self, topic: BrokerTopic) -> bool:
        """Remove a topic; False when it no longer exists."""
        ...
