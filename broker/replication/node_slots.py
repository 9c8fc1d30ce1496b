"""Where the nodes of a cluster stand: what stays of a node when it dies."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cluster.controller import Key, News
from ..cluster.node import Node
from ..log.partition_log import PartitionLog


@dataclass(slots=True)
class Place:
    """One node's seat: it stays when the node dies."""

    news: News
    node: Node | None
    start: int = 0
    paused: bool = False
    """Stopped like by SIGSTOP: it neither serves nor copies nor is heard of."""

    held: bool = False
    """Does not copy, though it is heard of."""

    news_delay_s: float = 0.0
    news_due: float | None = None
    heard_at: float = 0.0
    clock_ms: int = 0
    """How far its time of day is ahead of the others'."""

    disk: dict[Key, PartitionLog] = field(default_factory=dict)
    """Logs of a node that is not running."""

    clean: bool = False
    """It ended in order."""
