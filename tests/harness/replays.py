"""Recorded exchanges played to the embedded broker's core: what it answers where a real broker answered something else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage
from penstock.broker.cluster.acls import CLUSTER_NAME, AclBinding, AclOperation, AclResourceType
from penstock.broker.cluster.controller import CONTROLLER
from penstock.broker.cluster.node import BrokerNodeLimits, PeerNode
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.log.ports import BrokerTime
from penstock.broker.log.topics import SETTINGS, check_settings
from penstock.broker.replication.replicated_cluster import ClusterTiming, ReplicatedCluster
from penstock.broker.requests.dispatch import ReceivedRequest, RequestReply, decode, with_pending
from penstock.broker.storage import MemoryLogStore

from .exchanges import REQUESTS, request_of, told_by

FOLDER = Path(__file__).parents[1] / "fixtures" / "exchanges"
TOPIC = "recorded"
CLIENT = "replay"
STEP_MS = 250
PATIENCE_MS = 120_000


def load() -> dict[str, dict[str, Any]]:
    """All recorded cases, by version and name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        for case in json.loads(path.read_text()):
            found[f"{path.stem}: {case['name']}"] = case
    return found


class Replay:
    """One case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.wall_ms = int(case["steps"][0]["at_ms"])
        peers = tuple(PeerNode(1 + number, "127.0.0.1", 19090 + number) for number in range(case["nodes"]))
        expiry = case.get("expiry", {})
        limits = BrokerNodeLimits(
            default_replicas=len(peers),
            producer_id_expiration_ms=int(expiry.get("producer.id.expiration.ms", 86_400_000)),
            producer_id_check_interval_s=int(expiry.get("producer.id.expiration.check.interval.ms", 600_000)) / 1000,
        )
        timing = ClusterTiming(session_s=4.0)
        self.cluster = ReplicatedCluster(
            peers, log_store=MemoryLogStore(), moment=self.moment, limits=limits, timing=timing
        )
        self.settings = {name: value for name, value in case["settings"].items() if name in SETTINGS}
        self.lives: list[UUID] = []
        self._create()

    @property
    def moment(self) -> BrokerTime:
        return BrokerTime(self.wall_ms / 1000, self.wall_ms)

    def _create(self) -> None:
        nodes = tuple(self.case.get("replicas") or (peer.node_id for peer in self.cluster.peers))
        _ = self.cluster.controller.create(TOPIC, 1, check_settings(self.settings), len(nodes))
        key = self.cluster.key(TOPIC, 0)
        self.lives.append(key[0])
        placement = self.cluster.controller.placements[key]
        # Its first leader is the first node, in the first epoch, whatever the name.
        self.cluster.controller.placements[key] = placement._replace(leader=nodes[0], replicas=nodes, in_sync=nodes)
        self.cluster.run_until_stable(self.moment)

    def differences(self) -> list[str]:
        """Play the case; each step that was answered otherwise, in words."""
        found: list[str] = []
        for number, step in enumerate(self.case["steps"]):
            self._pass_until(step["at_ms"])
            if step["do"] in REQUESTS:
                found += self._differs(f"step {number}", step, self._ask(step))
                continue
            waiting = [(one, self._begin(one)) for one in step.get("waiting", ())]
            self._do(step)
            for one, begun in waiting:
                found += self._differs(f"step {number}", one, self._finish(one, *begun))
        return found

    def _differs(self, where: str, step: dict[str, Any], told: dict[str, Any]) -> list[str]:
        wanted = step["told"]
        if self.settings.get("message.timestamp.type") == "LogAppendTime" and step["do"] in {"produce", "producers"}:
            told, wanted = _without_times(told), _without_times(wanted)
        return [] if told == wanted else [f"{where} {step['do']}: {told}, Kafka {wanted}"]

    def _pass_until(self, wall_ms: int) -> None:
        while self.wall_ms < wall_ms:
            self.wall_ms = min(wall_ms, self.wall_ms + STEP_MS)
            self.cluster.upkeep(self.moment)

    def _ask(self, step: dict[str, Any]) -> dict[str, Any]:
        return self._finish(step, *self._begin(step))

    def _begin(self, step: dict[str, Any]) -> tuple[ApiMessage, ReceivedRequest, RequestReply | DelayedResponse]:
        """Send a request; it is answered, or it waits."""
        request, version = request_of(step, TOPIC, self.lives)
        request.API_VERSION = version
        request.with_header(1, CLIENT)
        asked = decode(request.encode(header=True), arrived=self.moment.now)
        return request, asked, self.cluster.apply(step.get("node", 1), asked, self.moment)

    def _finish(
        self, step: dict[str, Any], request: ApiMessage, asked: ReceivedRequest, outcome: RequestReply | DelayedResponse
    ) -> dict[str, Any]:
        while isinstance(outcome, DelayedResponse):
            asked = with_pending(asked, outcome)
            outcome = self.cluster.apply(step.get("node", 1), asked, self.moment)
            if isinstance(outcome, DelayedResponse):
                self._pass_until(self.wall_ms + STEP_MS)
        kind = ResponseClassRegistry.get_response_class(request.header)
        return told_by(step, kind.decode(outcome.data, version=request.API_VERSION, header=True, framed=True))

    def _do(self, step: dict[str, Any]) -> None:
        cluster, moment = self.cluster, self.moment
        match step["do"]:
            case "alter":
                if step["name"] in SETTINGS:
                    self.settings[step["name"]] = step["value"]
                _ = cluster.controller.alter(cluster.controller.topic(TOPIC), check_settings(self.settings))
                cluster.run_until_stable(moment)
            case "recreate":
                self._delete()
                self._create()
            case "gone":
                self._delete()
            case "back":
                self._create()
            case "acl":
                cluster.node(1).authorizer.add(_grant(step))
            case "guard":
                cluster.node(1).authorizer.add(AclBinding("other", AclOperation.READ, AclResourceType.TOPIC))
            case "retained":
                cluster.expire_records(TOPIC, 0, step["offset"], moment)
            case _:
                self._do_to_nodes(step)

    def _do_to_nodes(self, step: dict[str, Any]) -> None:
        cluster, node, moment = self.cluster, int(step.get("node", 1)), self.moment
        match step["do"]:
            case "restart":
                (cluster.stop if step["clean"] else cluster.kill)(node, moment)
                cluster.start(node, moment)
            case "cut":
                others = [peer.node_id for peer in cluster.peers if peer.node_id != node]
                ends = {"controller": [CONTROLLER], "followers": others, "everybody": [CONTROLLER, *others]}
                for other in ends[step["ways"]]:
                    cluster.cut_link(node, other, moment)
            case "heal":
                cluster.heal(moment)
            case "moved":
                self._wait_for(lambda: cluster.controller.placements[cluster.key(TOPIC, 0)].leader == node)
            case "level":
                self._wait_for(self._level)
            case "stop":
                cluster.stop(node, moment)
            case "elect":
                cluster.elect(TOPIC, 0, node, moment)
            case "expelled":
                self._wait_for(lambda: node not in cluster.controller.placements[cluster.key(TOPIC, 0)].in_sync)
            case "freeze":
                cluster.pause(node, moment)
            case "thaw":
                cluster.pause(node, moment, paused=False)
            case "kill":
                cluster.kill(node, moment)
            case "start" | "begin":
                cluster.start(node, moment)
            case "led":
                cluster.elect(TOPIC, 0, node, moment, unclean=True)
            case what:
                assert what == "sleep"

    def _delete(self) -> None:
        _ = self.cluster.controller.delete(self.cluster.controller.topic(TOPIC))
        self.cluster.run_until_stable(self.moment)

    def _level(self) -> bool:
        placement = self.cluster.controller.placements[self.cluster.key(TOPIC, 0)]
        return set(placement.in_sync) == set(placement.replicas)

    def _wait_for(self, done: Callable[[], bool]) -> None:
        until = self.wall_ms + PATIENCE_MS
        while not done():
            assert self.wall_ms < until, "it does not come to pass"
            self._pass_until(self.wall_ms + STEP_MS)


def _grant(step: dict[str, Any]) -> AclBinding:
    who = CLIENT if step["who"] == "me" else "other"
    resource = AclResourceType[step.get("resource", "TOPIC")]
    name = CLUSTER_NAME if resource is AclResourceType.CLUSTER else step.get("name", TOPIC)
    return AclBinding(who, AclOperation[step["operation"]], resource, name, step.get("prefix", False), step["deny"])


def _without_times(told: dict[str, Any]) -> dict[str, Any]:
    """Times of the broker's own clock say no more than that there is one."""
    plain = told | {"log_append_ms": told.get("log_append_ms", -1) >= 0}
    if "producers" in plain:
        plain["producers"] = [one[:3] for one in plain["producers"]]
    return plain
