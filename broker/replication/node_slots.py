"""Where the nodes of a cluster stand: what stays of a node when it dies."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cluster.controller import Key, ReplicatedBrokerMetadata
from ..cluster.node import BrokerNode
from ..log.partition_log import PartitionLog


@dataclass(slots=True)
class NodeSlot:
    """One node's seat: it stays when the node dies."""

    metadata: ReplicatedBrokerMetadata
    node: BrokerNode | None
    start: int = 0
    paused: bool = False
    """Stopped like by SIGSTOP: it neither serves nor copies nor is heard of."""

    replication_paused: bool = False
    """Does not copy, though it is heard of."""

    metadata_delay_s: float = 0.0
    metadata_due: float | None = None
    last_heartbeat_at: float = 0.0
    clock_offset_ms: int = 0
    """How far its time of day is ahead of the others'."""

    saved_logs: dict[Key, PartitionLog] = field(default_factory=dict)
    """Logs of a node that is not running."""

    clean_shutdown: bool = False
    """It ended in order."""
