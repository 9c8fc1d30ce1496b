"""State of a cluster node that outlives the node."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cluster.controller import Key, ReplicatedBrokerMetadata
from ..cluster.node import BrokerNode
from ..log.partition_log import PartitionLog


@dataclass(slots=True)
class NodeSlot:
    """Slot of one node; it stays when the node stops."""

    metadata: ReplicatedBrokerMetadata
    node: BrokerNode | None
    start: int = 0
    paused: bool = False
    """Paused as by SIGSTOP: it neither serves nor replicates nor sends heartbeats."""

    replication_paused: bool = False
    """It does not replicate, but still sends heartbeats."""

    metadata_delay_s: float = 0.0
    metadata_due: float | None = None
    last_heartbeat_at: float = 0.0
    clock_offset_ms: int = 0
    """Offset of its wall clock from the others' (milliseconds)."""

    saved_logs: dict[Key, PartitionLog] = field(default_factory=dict)
    """Logs of a node that is not running."""

    clean_shutdown: bool = False
    """Whether the node last shut down in order."""
