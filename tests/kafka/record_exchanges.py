"""Record what real brokers answer: `python -m tests.kafka.record_exchanges [VERSION…] [PART…]`, on demand; it starts real clusters.

The result lies in tests/fixtures/exchanges/VERSION.json and is replayed against the embedded broker without any Java.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.metadata.metadata import MetadataRequest

from tests.harness.embedded import Caller, now_ms
from tests.harness.exchanges import REQUESTS, let_pass, request_of, told_by
from tests.harness.kafka_cluster import OwnCluster, unique_topic
from tests.harness.kafka_node import VERSIONS
from tests.harness.one_node import view_of
from tests.harness.processes import TooLateError, wait_until
from tests.kafka.exchange_cases import EXPIRY, Case, Made, ages, ids, one_node, restarts, rights, three_nodes, unclean
from tests.kafka.exchange_cases_moves import deposed, more_unclean, recognition, retained_by_three
from tests.kafka.exchange_cases_single import gone_by_id, granted, more_of_one_node, retained
from tests.kafka.record_exchanges_split import SplitCluster

LOOKS_AT_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
FOLDER = Path(__file__).parents[1] / "fixtures" / "exchanges"
LOOKS_SOON = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "500"}
NOTED_SOON = {"log.flush.start.offset.checkpoint.interval.ms": "500", "log.initial.task.delay.ms": "500"}


class Recorder:
    """One cluster."""

    def __init__(self, cluster: OwnCluster) -> None:
        self.cluster = cluster
        self.topic = ""
        self.settings: dict[str, str] = {}
        self.lives: list[UUID] = []
        self.replicas: list[int] = []

    def record(self, case: Case) -> dict[str, Any]:
        """Play a case on a topic of its own."""
        self.topic = unique_topic(["exchange"])
        self.lives = []
        if isinstance(self.cluster, SplitCluster):
            self.cluster.heal()
        if any(step["do"] == "guard" for step in case.steps):
            self._forget_rules()
        self.settings = {"retention.ms": "-1"} | case.settings
        if len(self.cluster.nodes) > 1:
            self.settings = {"min.insync.replicas": "2"} | self.settings
        self.replicas = list(case.replicas) or sorted(self.cluster.nodes)
        self._create()
        steps = [self._step(dict(step)) for step in case.steps]
        kept: dict[str, Any] = {"name": case.name, "nodes": len(self.cluster.nodes), "settings": self.settings}
        kept["replicas"] = self.replicas
        return kept | {"stricter": case.stricter, "steps": steps}

    def _at(self, node: int) -> tuple[str, int]:
        host = self.cluster.host(node) if isinstance(self.cluster, SplitCluster) else "127.0.0.1"
        return host, self.cluster.nodes[node].address.port

    def _create(self) -> None:
        new = NewTopic(self.topic, 1, replica_assignment=[self.replicas], config=self.settings)
        for done in self.cluster.admin.create_topics([new], request_timeout=15).values():
            _ = done.result(60)
        _ = wait_until(lambda: self._leads(1), seconds=20, what=f"{self.topic} can be used")
        with Caller(self._at(1)) as caller:
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)])
            self.lives.append(caller.ask(asked, 12).topics[0].topic_id)

    def _leads(self, node: int) -> bool:
        step = {"do": "offset", "timestamp": -1}
        view = view_of(*self._at(node))
        parts = {} if view is None else view.topics.get(self.topic, {})
        level = bool(parts) and parts[0].in_sync == parts[0].replicas
        return level and self._ask(step, node)["error"] == 0

    def _ask(self, step: dict[str, Any], node: int) -> dict[str, Any]:
        with Caller(self._at(node)) as caller:
            request, version = request_of(step, self.topic, self.lives)
            return told_by(step, caller.ask(request, version))

    def _step(self, step: dict[str, Any]) -> dict[str, Any]:
        step["at_ms"] = now_ms()
        self._fill(step)
        if step["do"] in REQUESTS:
            step["told"] = self._ask(step, int(step.get("node", 1)))
        elif "waiting" in step:
            self._do_before_answers(step)
        else:
            self._do(step)
        return step

    def _fill(self, step: dict[str, Any]) -> None:
        made = step.pop("made", None)
        if isinstance(made, Made):
            step["data"] = made.data(step["at_ms"]).hex()

    def _do_before_answers(self, step: dict[str, Any]) -> None:
        """Send requests one behind the other, do what the step says, and only then read the answers."""
        waiting = step["waiting"] = [dict(one) | {"at_ms": step["at_ms"]} for one in step["waiting"]]
        with Caller(self._at(waiting[0]["node"])) as caller:
            caller.sock.settimeout(60)
            for one in waiting:
                self._fill(one)
                _ = caller.send(*request_of(one, self.topic, self.lives))
            let_pass(0.3)
            self._do(step)
            for one in waiting:
                one["told"] = told_by(one, caller.receive()[1])

    def _do(self, step: dict[str, Any]) -> None:
        match step["do"]:
            case "alter":
                entry = ConfigEntry(step["name"], step["value"], incremental_operation=AlterConfigOpType.SET)
                resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=[entry])
                for done in self.cluster.admin.incremental_alter_configs([resource]).values():
                    _ = done.result(60)
                let_pass(0.3)  # a broker hears of it a moment after the answer, and nothing shows when
            case "acl":
                self._rule([self._binding(step)])
            case "guard":
                mine = ("ALTER", "CREATE", "DESCRIBE", "CLUSTER_ACTION", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")
                rule: dict[str, Any] = {"who": "me", "deny": False, "resource": "CLUSTER"}
                rules = [self._binding(rule | {"operation": one}) for one in mine]
                elsewhere = {"who": "other", "deny": False, "operation": "READ", "name": "*"}
                self._rule([*rules, self._binding(elsewhere)])
            case "gone":
                self._delete()
            case "back":
                self._create()
            case "recreate":
                self._delete()
                self._create()
            case "sleep":
                let_pass(step["ms"] / 1000)
            case _:
                self._do_to_nodes(step)

    def _do_to_nodes(self, step: dict[str, Any]) -> None:
        node = self.cluster.nodes.get(step.get("node", 0))
        match step["do"]:
            case "retained":
                _ = wait_until(lambda: self._begins(step["offset"]), seconds=60, what="old records are gone")
            case "moved":
                _ = wait_until(lambda: self._led(step["node"]), seconds=60, what="a node leads")
            case "level":
                _ = wait_until(lambda: self._level(step["node"]), seconds=60, what="all are in sync")
            case "stop":
                assert node is not None
                node.stop()
            case "cut" | "heal":
                assert isinstance(self.cluster, SplitCluster)
                _ = self.cluster.cut(step["ways"]) if step["do"] == "cut" else self.cluster.heal()
            case "restart":
                assert node is not None
                _ = node.stop() if step["clean"] else node.kill()
                self.cluster.restart(step["node"])
                _ = wait_until(lambda: self._leads(1), seconds=60, what="the node leads or follows again")
            case "elect":
                self.cluster.move_leaders(self.topic, {0: step["node"]})
                if "waiting" not in step:
                    _ = wait_until(lambda: self._leads(step["node"]), seconds=20, what="it leads")
            case "expelled":
                _ = wait_until(lambda: self._expelled(step["node"]), seconds=60, what="a node is out of sync")
            case "begin":
                assert node is not None
                node.start()
            case "led":
                _ = wait_until(lambda: self._led(step["node"]), seconds=60, what="a node leads")
            case what:
                assert node is not None
                ways: dict[str, Callable[[], None]] = {"freeze": node.freeze, "thaw": node.thaw, "kill": node.kill}
                ways.get(what, lambda: self.cluster.restart(step["node"]))()

    def _binding(self, step: dict[str, Any]) -> AclBinding:
        user = "User:ANONYMOUS" if step["who"] == "me" else "User:other"
        kind = AclPermissionType.DENY if step["deny"] else AclPermissionType.ALLOW
        resource = ResourceType.BROKER if step.get("resource") == "CLUSTER" else ResourceType.TOPIC
        name = step.get("name", self.topic) if resource == ResourceType.TOPIC else "kafka-cluster"
        pattern = ResourcePatternType.PREFIXED if step.get("prefix") else ResourcePatternType.LITERAL
        return AclBinding(resource, name, pattern, user, "*", AclOperation[step["operation"]], kind)

    def _rule(self, rules: list[AclBinding]) -> None:
        for done in self.cluster.admin.create_acls(rules, request_timeout=15).values():
            _ = done.result(60)
        let_pass(0.3)

    def _forget_rules(self) -> None:
        kind, pattern = AclPermissionType.ANY, ResourcePatternType.ANY
        every = AclBindingFilter(ResourceType.ANY, None, pattern, None, None, AclOperation.ANY, kind)
        for done in self.cluster.admin.delete_acls([every], request_timeout=15).values():
            _ = done.result(60)
        let_pass(0.3)

    def _delete(self) -> None:
        for done in self.cluster.admin.delete_topics([self.topic], request_timeout=15).values():
            _ = done.result(60)
        _ = wait_until(self._gone, seconds=20, what="the topic is gone")

    def _begins(self, offset: int) -> bool:
        found: int = self._ask({"do": "offset", "timestamp": -2}, 1)["offset"]
        return found == offset

    def _level(self, node: int) -> bool:
        view = view_of(*self._at(node))
        parts = {} if view is None else view.topics.get(self.topic, {})
        return bool(parts) and parts[0].in_sync == parts[0].replicas and self._led(parts[0].leader)

    def _gone(self) -> bool:
        return self._ask({"do": "producers"}, 1)["error"] == 3

    def _led(self, node: int) -> bool:
        try:
            return self._ask({"do": "offset", "timestamp": -1}, node)["error"] == 0
        except (OSError, EOFError):
            return False

    def _expelled(self, node: int) -> bool:
        view = view_of(*self._at(1))
        return view is not None and node not in view.topics[self.topic][0].in_sync


def play(version: str, cases: Iterable[Case], *, nodes: int = 1, settings: dict[str, str] | None = None) -> list[Any]:
    """Record cases on one cluster of their own."""
    return play_on(OwnCluster(version, node_count=nodes, settings=settings), cases)


def play_on(cluster: OwnCluster, cases: Iterable[Case]) -> list[Any]:
    """Record cases on a cluster, and end it; what does not come to pass on it is left out."""
    found: list[Any] = []
    try:
        recorder = Recorder(cluster)
        for case in cases:
            try:
                found.append(recorder.record(case))
            except TooLateError as failure:
                _ = sys.stderr.write(f"{case.name} is not recorded: {failure}\n")
        return found
    finally:
        cluster.close()


def parts_of(version: str) -> dict[str, Callable[[], list[Any]]]:
    """The parts that are recorded on clusters of their own, by name."""
    return {
        "one": lambda: play(version, one_node()),
        "restarts": lambda: play(version, restarts(), settings=NOTED_SOON),
        "ages": lambda: [one | {"expiry": EXPIRY} for one in play(version, ages(), settings=EXPIRY)],
        "rights": lambda: play(version, rights(), settings=LOOKS_AT_RIGHTS),
        # Older brokers have no Produce 13.
        "ids": lambda: [] if version.startswith("3.") else play(version, ids()),
        "three": lambda: play(version, three_nodes(), nodes=3),
        "unclean": lambda: play(version, unclean(), nodes=3),
        "granted": lambda: play(version, granted(), settings=LOOKS_AT_RIGHTS),
        "retained": lambda: play(version, retained(), settings=NOTED_SOON | LOOKS_SOON),
        "more": lambda: play(version, more_of_one_node(), settings=NOTED_SOON),
        "gone": lambda: [] if version.startswith("3.") else play(version, gone_by_id()),
        "recognition": lambda: play(version, recognition(), nodes=3, settings=NOTED_SOON),
        "retained3": lambda: play(version, retained_by_three(), nodes=3, settings=NOTED_SOON | LOOKS_SOON),
        "lost": lambda: play(version, more_unclean(), nodes=3),
        "deposed": lambda: play_on(SplitCluster(version), deposed()),
    }


def main(arguments: list[str]) -> None:
    """Record these parts of these versions, or all; what was recorded before of the same cases is replaced."""
    versions = [one for one in arguments if one in VERSIONS] or list(VERSIONS)
    wanted = [one for one in arguments if one not in VERSIONS]
    for version in versions:
        for name, record in parts_of(version).items():
            if name in wanted or not wanted:
                _keep(version, record())


def _keep(version: str, found: list[Any]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{version}.json"
    before = json.loads(path.read_text()) if path.exists() else []
    names = {one["name"] for one in found}
    kept = [one for one in before if one["name"] not in names] + found
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in kept)
    _ = path.write_text(f"[\n{lines}\n]\n")
    _ = sys.stdout.write(f"{version}: {len(found)} cases of {len(kept)}\n")
    _ = sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
