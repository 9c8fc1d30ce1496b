"""Hosts of a broker process: one node with single replicas, or a whole cluster with replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from . import control
from .cluster.node import BrokerNode
from .cluster.responses import DelayedResponse
from .log.ports import BrokerTime
from .replication.replicated_cluster import ReplicatedCluster
from .requests.dispatch import ReceivedRequest, RequestReply, apply
from .requests.periodic_tasks import next_deadline, upkeep


class Host(Protocol):
    """The nodes that one process serves."""

    @property
    def nodes(self) -> Sequence[int]:
        """Ids of the nodes."""
        ...

    @property
    def changes(self) -> int:
        """Increases when a delayed request may be complete."""
        ...

    def runs(self, node_id: int) -> bool:
        """Return whether a node has an open port."""
        ...

    def serves(self, node_id: int) -> bool:
        """Return whether a node processes incoming requests."""
        ...

    def node(self, node_id: int) -> BrokerNode:
        """Return a running node."""
        ...

    def apply(self, node_id: int, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
        """Serve a request on a node that `serves`."""
        ...

    def execute_command(self, line: bytes, moment: BrokerTime) -> bytes:
        """Execute a command line and return the reply line."""
        ...

    def next_deadline(self) -> float:
        """Return when `upkeep` next has something to do (seconds)."""
        ...

    def upkeep(self, moment: BrokerTime) -> None:
        """Run the tasks that are due."""
        ...


class SingleNodeHost:
    """A process with a single node, which runs as long as the process."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.nodes: Sequence[int] = (node.node_id,)

    @property
    def changes(self) -> int:
        """Increases with every append."""
        return self._node.changes

    def runs(self, node_id: int) -> bool:
        """Return True for the only node: it runs as long as the process."""
        return node_id == self._node.node_id

    def serves(self, node_id: int) -> bool:
        """Return True for the only node."""
        return node_id == self._node.node_id

    def node(self, node_id: int) -> BrokerNode:
        """Return the only node."""
        assert node_id == self._node.node_id
        return self._node

    def apply(self, node_id: int, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
        """Serve a request."""
        return apply(self.node(node_id), request, moment)

    def execute_command(self, line: bytes, moment: BrokerTime) -> bytes:
        """Execute a command."""
        return control.execute_on_node(self._node, line, moment)

    def next_deadline(self) -> float:
        """Return when state next expires or a transaction must be continued or aborted (seconds)."""
        return next_deadline(self._node, time.monotonic())

    def upkeep(self, moment: BrokerTime) -> None:
        """Expire old state and continue transactions."""
        upkeep(self._node, moment)


class ClusterHost:
    """A process with a whole cluster; commands stop and start its nodes."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self._cluster = cluster
        self.nodes: Sequence[int] = tuple(cluster.slots)

    @property
    def changes(self) -> int:
        """Increases with every append, decision and replication."""
        return self._cluster.changes

    def runs(self, node_id: int) -> bool:
        """Return whether a node is running, that is neither killed nor stopped."""
        return self._cluster.slots[node_id].node is not None

    def serves(self, node_id: int) -> bool:
        """Return whether a node is running and not paused."""
        return self._cluster.serves(node_id)

    def node(self, node_id: int) -> BrokerNode:
        """Return a running node."""
        return self._cluster.node(node_id)

    def apply(self, node_id: int, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
        """Serve a request."""
        return self._cluster.apply(node_id, request, moment)

    def execute_command(self, line: bytes, moment: BrokerTime) -> bytes:
        """Execute a command."""
        return control.execute_on_cluster(self._cluster, line, moment)

    def next_deadline(self) -> float:
        """Return when the cluster must run its next round (seconds)."""
        return self._cluster.next_deadline()

    def upkeep(self, moment: BrokerTime) -> None:
        """Replicate, expire sessions and propagate metadata."""
        self._cluster.upkeep(moment)
