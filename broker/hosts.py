"""What a broker process serves: one node with single copies, or a whole cluster with replicas."""

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
    """Nodes behind the sockets of one process."""

    @property
    def nodes(self) -> Sequence[int]:
        """Their ids."""
        ...

    @property
    def changes(self) -> int:
        """Moves when a request that waits may be done."""
        ...

    def runs(self, node_id: int) -> bool:
        """Whether a node has an open port."""
        ...

    def serves(self, node_id: int) -> bool:
        """Whether a node looks at what comes in."""
        ...

    def node(self, node_id: int) -> BrokerNode:
        """A node that runs."""
        ...

    def apply(self, node_id: int, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
        """Serve a request on a node that runs and serves."""
        ...

    def execute_command(self, line: bytes, moment: BrokerTime) -> bytes:
        """Carry out a command and return the line that answers it."""
        ...

    def next_deadline(self) -> float:
        """When `upkeep` has something to do (seconds)."""
        ...

    def upkeep(self, moment: BrokerTime) -> None:
        """Let the time do its work."""
        ...


class SingleNodeHost:
    """A process that is one node; its end is the node's."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.nodes: Sequence[int] = (node.node_id,)

    @property
    def changes(self) -> int:
        """Moves with every append."""
        return self._node.changes

    def runs(self, node_id: int) -> bool:
        """Always: it ends with the process."""
        return node_id == self._node.node_id

    def serves(self, node_id: int) -> bool:
        """Always."""
        return node_id == self._node.node_id

    def node(self, node_id: int) -> BrokerNode:
        """The only node."""
        assert node_id == self._node.node_id
        return self._node

    def apply(self, node_id: int, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
        """Serve a request."""
        return apply(self.node(node_id), request, moment)

    def execute_command(self, line: bytes, moment: BrokerTime) -> bytes:
        """Carry out a command."""
        return control.execute_on_node(self._node, line, moment)

    def next_deadline(self) -> float:
        """When something is to be forgotten, ended or aborted (seconds)."""
        return next_deadline(self._node, time.monotonic())

    def upkeep(self, moment: BrokerTime) -> None:
        """Forget what is old, and go on with transactions."""
        upkeep(self._node, moment)


class ClusterHost:
    """A process that is a whole cluster; its nodes end and begin by command."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self._cluster = cluster
        self.nodes: Sequence[int] = tuple(cluster.slots)

    @property
    def changes(self) -> int:
        """Moves with every append, decision and copy."""
        return self._cluster.changes

    def runs(self, node_id: int) -> bool:
        """Whether a node was neither killed nor stopped."""
        return self._cluster.slots[node_id].node is not None

    def serves(self, node_id: int) -> bool:
        """Whether a node is not paused, either."""
        return self._cluster.serves(node_id)

    def node(self, node_id: int) -> BrokerNode:
        """A node that runs."""
        return self._cluster.node(node_id)

    def apply(self, node_id: int, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
        """Serve a request."""
        return self._cluster.apply(node_id, request, moment)

    def execute_command(self, line: bytes, moment: BrokerTime) -> bytes:
        """Carry out a command."""
        return control.execute_on_cluster(self._cluster, line, moment)

    def next_deadline(self) -> float:
        """When the cluster looks at the clock next (seconds)."""
        return self._cluster.next_deadline()

    def upkeep(self, moment: BrokerTime) -> None:
        """Copy, end sessions, spread news."""
        self._cluster.upkeep(moment)
