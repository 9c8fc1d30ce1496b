"""Conversations of a transactional client with the embedded broker in memory."""

from typing import Any

from kafka.protocol.api_message import ApiMessage
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.ports import LogStore
from penstock.broker.requests.periodic_tasks import upkeep
from penstock.broker.storage import MemoryLogStore

from .broker_calls import Bench
from .transaction_talk import Step, Talk


class OneTalk:
    """With one node."""

    def __init__(self, limits: BrokerNodeLimits | None = None, logs: LogStore | None = None) -> None:
        self.limits = limits or BrokerNodeLimits()
        self.bench = Bench(limits=self.limits, logs=logs or MemoryLogStore())
        topic = self.bench.node.topic("t")
        assert topic is not None
        self.talk = Talk(self._ask, "t", topic.id)

    def _ask(self, request: ApiMessage, version: int) -> ApiMessage:
        self.talk.at_ms = self.bench.clock.wall_ms
        return self.bench.ask(request, version)

    def do(self, what: str, **step: Any) -> Step:
        """One step."""
        self.talk.at_ms = self.bench.clock.wall_ms
        return self.talk.tell({"do": what} | step)

    def put(self, version: int, epoch: int, first: int, **step: Any) -> tuple[int, int]:
        """Error and base offset of a batch."""
        told = self.do("put", version=version, epoch=epoch, first=first, **step)
        return told["error"], told["base_offset"]

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass."""
        self.bench.clock.pass_ms(milliseconds)
        upkeep(self.bench.node, self.bench.clock.moment)
