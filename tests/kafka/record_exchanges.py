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
from tests.harness.processes import wait_until
from tests.kafka.exchange_cases import EXPIRY, Case, Made, ages, ids, one_node, restarts, rights, three_nodes, unclean

LOOKS_AT_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
FOLDER = Path(__file__).parents[1] / "fixtures" / "exchanges"
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
        self.settings = {"retention.ms": "-1"} | case.settings
        if len(self.cluster.nodes) > 1:
            self.settings = {"min.insync.replicas": "2"} | self.settings
        self.replicas = list(case.replicas) or sorted(self.cluster.nodes)
        self._create()
        steps = [self._step(dict(step)) for step in case.steps]
        kept: dict[str, Any] = {"name": case.name, "nodes": len(self.cluster.nodes), "settings": self.settings}
        kept["replicas"] = self.replicas
        return kept | {"stricter": case.stricter, "steps": steps}

    def _create(self) -> None:
        new = NewTopic(self.topic, 1, replica_assignment=[self.replicas], config=self.settings)
        for done in self.cluster.admin.create_topics([new], request_timeout=15).values():
            _ = done.result(15)
        _ = wait_until(lambda: self._leads(1), seconds=20, what=f"{self.topic} can be used")
        with Caller(("127.0.0.1", self.cluster.nodes[1].address.port)) as caller:
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)])
            self.lives.append(caller.ask(asked, 12).topics[0].topic_id)

    def _leads(self, node: int) -> bool:
        step = {"do": "offset", "timestamp": -1}
        view = view_of("127.0.0.1", self.cluster.nodes[node].address.port)
        parts = {} if view is None else view.topics.get(self.topic, {})
        level = bool(parts) and parts[0].in_sync == parts[0].replicas
        return level and self._ask(step, node)["error"] == 0

    def _ask(self, step: dict[str, Any], node: int) -> dict[str, Any]:
        with Caller(("127.0.0.1", self.cluster.nodes[node].address.port)) as caller:
            request, version = request_of(step, self.topic, self.lives)
            return told_by(step, caller.ask(request, version))

    def _step(self, step: dict[str, Any]) -> dict[str, Any]:
        step["at_ms"] = now_ms()
        made = step.pop("made", None)
        if isinstance(made, Made):
            step["data"] = made.data(step["at_ms"]).hex()
        if step["do"] in REQUESTS:
            step["told"] = self._ask(step, int(step.get("node", 1)))
        else:
            self._do(step)
        return step

    def _do(self, step: dict[str, Any]) -> None:
        node = self.cluster.nodes.get(step.get("node", 0))
        match step["do"]:
            case "alter":
                entry = ConfigEntry(step["name"], step["value"], incremental_operation=AlterConfigOpType.SET)
                resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=[entry])
                for done in self.cluster.admin.incremental_alter_configs([resource]).values():
                    _ = done.result(15)
                let_pass(0.3)  # a broker hears of it a moment after the answer, and nothing shows when
            case "acl":
                user = "User:ANONYMOUS" if step["who"] == "me" else "User:other"
                kind = AclPermissionType.DENY if step["deny"] else AclPermissionType.ALLOW
                topic, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
                operation = AclOperation[step["operation"]]
                rule = AclBinding(topic, self.topic, pattern, user, "*", operation, kind)
                for done in self.cluster.admin.create_acls([rule], request_timeout=15).values():
                    _ = done.result(15)
                let_pass(0.3)
            case "recreate":
                for done in self.cluster.admin.delete_topics([self.topic], request_timeout=15).values():
                    _ = done.result(15)
                _ = wait_until(self._gone, seconds=20, what="the topic is gone")
                self._create()
            case "restart":
                assert node is not None
                _ = node.stop() if step["clean"] else node.kill()
                self.cluster.restart(step["node"])
                _ = wait_until(lambda: self._leads(1), seconds=60, what="the node leads or follows again")
            case "elect":
                self.cluster.move_leaders(self.topic, {0: step["node"]})
                _ = wait_until(lambda: self._leads(step["node"]), seconds=20, what="it leads")
            case "expelled":
                _ = wait_until(lambda: self._expelled(step["node"]), seconds=60, what="a node is out of sync")
            case "begin":
                assert node is not None
                node.start()
            case "led":
                _ = wait_until(lambda: self._led(step["node"]), seconds=60, what="a node leads")
            case "sleep":
                let_pass(step["ms"] / 1000)
            case what:
                assert node is not None
                ways: dict[str, Callable[[], None]] = {"freeze": node.freeze, "thaw": node.thaw, "kill": node.kill}
                ways.get(what, lambda: self.cluster.restart(step["node"]))()

    def _gone(self) -> bool:
        return self._ask({"do": "producers"}, 1)["error"] == 3

    def _led(self, node: int) -> bool:
        try:
            return self._ask({"do": "offset", "timestamp": -1}, node)["error"] == 0
        except (OSError, EOFError):
            return False

    def _expelled(self, node: int) -> bool:
        view = view_of("127.0.0.1", self.cluster.nodes[1].address.port)
        return view is not None and node not in view.topics[self.topic][0].in_sync


def play(version: str, cases: Iterable[Case], *, nodes: int = 1, settings: dict[str, str] | None = None) -> list[Any]:
    """Record cases on one cluster of their own."""
    cluster = OwnCluster(version, node_count=nodes, settings=settings)
    try:
        recorder = Recorder(cluster)
        return [recorder.record(case) for case in cases]
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
