"""What the broker's rules need from the world: a time, somewhere to write, and the list of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .topics import BrokerTopic


class BrokerTime(NamedTuple):
    """When something happens: for deadlines and for timestamps."""

    now: float
    """Seconds of a clock that only goes forward."""

    wall_ms: int
    """Time of day, milliseconds since 1970."""


class ControllerUnreachableError(Exception):
    """A node cannot reach the controller, which alone may do what was asked."""


class LogStore(Protocol):
    """Where logs survive the process."""

    def load(self, topic: BrokerTopic, partition: int) -> Sequence[bytes]:
        """Return the stored batches of a partition, oldest first; a broken tail is cut off for good."""
        ...

    def append(self, topic: BrokerTopic, partition: int, data: bytes) -> None:
        """Write one batch behind the others; when this returns, it survives the end of this process."""
        ...

    def start_offset(self, topic: BrokerTopic, partition: int) -> int:
        """Where the log begins: what lies before was deleted."""
        ...

    def keep_start(self, topic: BrokerTopic, partition: int, offset: int) -> None:
        """Note that what lies before `offset` is deleted."""
        ...

    def discard(self, topic: BrokerTopic) -> None:
        """Drop everything of a deleted topic."""
        ...


class TopicStore(Protocol):
    """The topics of the cluster, which all nodes share."""

    def changed(self) -> bool:
        """Whether `all` may answer differently from the last time."""
        ...

    def all(self) -> Sequence[BrokerTopic]:
        """Return the topics that exist."""
        ...

    def create(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], replicas: int = 1
    ) -> BrokerTopic | None:
        """Add a topic, or return None when one of that name exists.

        Raises:
            CutOffError: nobody who decides can be reached; `alter` and `delete` raise it, too.
        """
        ...

    def alter(self, topic: BrokerTopic, settings: tuple[tuple[str, str], ...]) -> bool:
        """Give a topic other settings; False when it does not exist any more."""
        ...

    def delete(self, topic: BrokerTopic) -> bool:
        """Remove a topic; False when it does not exist any more."""
        ...
