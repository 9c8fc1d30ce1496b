"""Conversations of a transactional client with a cluster of three nodes in memory: it asks whom it must, and is never told to wait unawares."""

from typing import Any

from kafka.protocol.api_message import ApiMessage
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.internal_topics import OFFSETS, TRANSACTIONS, internal_partition_of
from penstock.broker.replication.replicated_cluster import ClusterTiming

from .cluster_calls import ClusterBench, Waiting
from .transaction_talk import Step, Talk

OF_TRANSACTIONS = frozenset({"init", "add", "end", "join", "state"})
OF_GROUPS = frozenset({"commit", "plain_commit", "fetched"})


class ClusterTalk:
    """With the leader of topic `t`, and with the coordinators."""

    def __init__(self, limits: BrokerNodeLimits | None = None) -> None:
        timing = ClusterTiming(session_s=4.0, lag_s=4.0)
        self.bench = ClusterBench(limits=limits or BrokerNodeLimits(default_replicas=3), timing=timing)
        self.cluster = self.bench.cluster
        self.talk = Talk(self._ask, "t", self.cluster.controller.topic("t").id)
        self._node = 1
        self._what = ""
        self.waiting: Waiting | None = None
        """A request that was not answered at once."""

        for kind in (0, 1):
            assert self.do("find", kind=kind) == {"error": 0}

    def _ask(self, request: ApiMessage, version: int) -> ApiMessage:
        answer = self.bench.start(self._node, request, version)
        if isinstance(answer, Waiting):
            self.waiting = answer
            raise WaitsError
        return answer

    def coordinator(self, name: str = "t-a", topic: str = TRANSACTIONS) -> int:
        """Who coordinates a transactional id, or the group, by the controller's word."""
        return self.cluster.controller.placements[self.cluster.key(topic, internal_partition_of(name))].leader

    def do(self, what: str, *, node: int | None = None, **step: Any) -> Step:
        """One step, asked of a node or of the one that must know."""
        self.talk.at_ms = self.bench.clock.wall_ms
        full = {"do": what} | step
        if node is None:
            node = self.bench.leader
            if what in OF_TRANSACTIONS:
                node = self.coordinator(self.talk.name(full))
            elif what in OF_GROUPS:
                node = self.coordinator(self.talk.group(), OFFSETS)
        self._node = node
        return self.talk.tell(full)

    def put(self, version: int, epoch: int, first: int, **step: Any) -> tuple[int, int]:
        """Error and base offset of a batch."""
        told = self.do("put", version=version, epoch=epoch, first=first, **step)
        return told["error"], told["base_offset"]


class WaitsError(AssertionError):
    """A request is not answered at once."""
