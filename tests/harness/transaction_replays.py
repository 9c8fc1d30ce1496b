"""Recorded conversations of transactional clients, played to the embedded broker's core."""

import json
from pathlib import Path
from typing import Any

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage
from penstock.broker.cluster.acls import AclBinding, AclOperation, AclResourceType
from penstock.broker.cluster.node import BrokerNodeLimits, PeerNode
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.log.internal_topics import TRANSACTIONS
from penstock.broker.log.ports import BrokerTime
from penstock.broker.replication.replicated_cluster import ReplicatedCluster
from penstock.broker.requests.coordinator import coordinator_partition_of
from penstock.broker.requests.dispatch import decode, with_pending
from penstock.broker.requests.transaction_coordinator import store
from penstock.broker.storage import MemoryLogStore

from .transaction_talk import STEPS, SUFFIXES, Step, Talk

FOLDER = Path(__file__).parents[1] / "fixtures" / "exchanges" / "transactions"
TOPIC = "recorded"
STEP_MS = 250


def load() -> dict[str, dict[str, Any]]:
    """All recorded conversations, by version and name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        for case in json.loads(path.read_text()):
            found[f"{path.stem}: {case['name']}"] = case | {"new": not path.stem.startswith("3.")}
    return found


def limits_of(broker: dict[str, str], *, new: bool) -> BrokerNodeLimits:
    """The limits that a broker of these settings has, from 4.0 on if it is `new`."""
    every_ms = int(broker.get("transaction.abort.timed.out.transaction.cleanup.interval.ms", "10000"))
    every_ms = min(every_ms, int(broker.get("transaction.remove.expired.transaction.cleanup.interval.ms", "10000")))
    return BrokerNodeLimits(
        transaction_version=2 if new else 0,
        transaction_check_interval_s=every_ms / 1000,
        transactional_id_expiration_ms=int(broker.get("transactional.id.expiration.ms", "604800000")),
    )


class TransactionReplay:
    """One conversation with a cluster of one node."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.wall_ms = int(case["steps"][0]["at_ms"])
        peers = (PeerNode(1, "127.0.0.1", 19091),)
        limits = limits_of(case["broker"], new=case["new"])
        self.cluster = ReplicatedCluster(peers, log_store=MemoryLogStore(), moment=self.moment, limits=limits)
        topic = self.cluster.controller.create(TOPIC, 1, ())
        assert topic is not None
        self.cluster.run_until_stable(self.moment)
        self.talk = Talk(self._ask, TOPIC, topic.id)
        for step in ({"do": "find"}, {"do": "find", "kind": 0}):
            assert self.talk.tell(step) == {"error": 0}

    @property
    def moment(self) -> BrokerTime:
        return BrokerTime(self.wall_ms / 1000, self.wall_ms)

    def _ask(self, request: ApiMessage, version: int) -> ApiMessage:
        request.API_VERSION = version
        request.with_header(1, "replay")
        asked = decode(request.encode(header=True), arrived=self.moment.now)
        outcome = self.cluster.apply(1, asked, self.moment)
        while isinstance(outcome, DelayedResponse):
            asked = with_pending(asked, outcome)
            self._pass_until(self.wall_ms + STEP_MS)
            outcome = self.cluster.apply(1, asked, self.moment)
        kind = ResponseClassRegistry.get_response_class(request.header)
        return kind.decode(outcome.data, version=version, header=True, framed=True)

    def _pass_until(self, wall_ms: int) -> None:
        while self.wall_ms < wall_ms:
            self.wall_ms = min(wall_ms, self.wall_ms + STEP_MS)
            self.cluster.upkeep(self.moment)

    def differences(self) -> list[str]:
        """Play it; each step that was answered otherwise, in words."""
        found: list[str] = []
        for number, step in enumerate(self.case["steps"]):
            self._pass_until(step["at_ms"])
            self.talk.at_ms = self.wall_ms
            if step["do"] not in STEPS:
                self._do(step)
                continue
            told = self.talk.tell(step)
            wanted = step["told"]
            if "started" in wanted:
                wanted = wanted | {"started": wanted["started"] and wanted["state"] == "Ongoing"}
            if told != wanted:
                asked = {name: value for name, value in step.items() if name not in {"told", "at_ms"}}
                found.append(f"step {number} {asked}: {told}, Kafka {wanted}")
        return found

    def _do(self, step: Step) -> None:
        match step["do"]:
            case "restart":
                (self.cluster.stop if step["clean"] else self.cluster.kill)(1, self.moment)
                self.cluster.start(1, self.moment)
            case "exhaust":
                node = self.cluster.node(1)
                home = coordinator_partition_of(node, TRANSACTIONS, self.talk.name(step), self.moment.now)
                assert not isinstance(home, int)
                known = node.transactions.get(home.index, self.talk.name(step))
                assert known is not None
                _ = store(node, home, known._replace(epoch=step["until"]), self.wall_ms)
            case "guard":
                self.cluster.node(1).authorizer.add(AclBinding("other", AclOperation.READ, AclResourceType.TOPIC))
            case "acl":
                resource = AclResourceType[step["resource"]]
                name = TOPIC + SUFFIXES[step["resource"]]
                self.cluster.node(1).authorizer.add(
                    AclBinding("replay", AclOperation[step["operation"]], resource, name)
                )
            case what:
                assert what in {"settle", "sleep"}
