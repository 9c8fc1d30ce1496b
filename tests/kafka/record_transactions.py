"""Record what real brokers tell transactional clients: `python -m tests.kafka.record_transactions [VERSION…] [PART…]`, on demand.

The result lies in tests/fixtures/exchanges/transactions/VERSION.json and is replayed against the embedded broker without any Java.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata.metadata import MetadataRequest

from tests.harness.embedded import Caller, now_ms
from tests.harness.exchanges import let_pass
from tests.harness.kafka_cluster import OwnCluster, unique_topic
from tests.harness.kafka_node import VERSIONS
from tests.harness.processes import wait_until
from tests.harness.transaction_talk import STEPS, SUFFIXES, Step, Talk
from tests.kafka import transaction_cases as cases
from tests.kafka.transaction_cases import Case

FOLDER = Path(__file__).parents[1] / "fixtures" / "exchanges" / "transactions"
NOT_YET = frozenset({14, 15, 16, 19, 51})
"""Errors that say nothing but that the broker is busy: loading, no coordinator, too few replicas, still ending."""

TRIES = 40
LOOKS_AT_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class Recorder:
    """One cluster of one node."""

    def __init__(self, cluster: OwnCluster) -> None:
        self.cluster = cluster
        self.topic = ""

    def _ask(self, request: ApiMessage, version: int) -> ApiMessage:
        with Caller(("127.0.0.1", self.cluster.nodes[1].address.port)) as caller:
            return caller.ask(request, version)

    def record(self, case: Case) -> dict[str, Any]:
        self.topic = unique_topic(["transactions"])
        if any(step["do"] == "guard" for step in case.steps):
            self._forget_rules()
        new = NewTopic(self.topic, 1, replica_assignment=[[1]], config={"retention.ms": "-1"})
        for done in self.cluster.admin.create_topics([new], request_timeout=15).values():
            _ = done.result(60)
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)])
        talk = Talk(self._ask, self.topic, self._ask(asked, 12).topics[0].topic_id)
        self._wait_ready(talk)
        steps = [self._step(talk, dict(step)) for step in case.steps]
        return {"name": case.name, "steps": steps}

    def _wait_ready(self, talk: Talk) -> None:
        def ready() -> bool:
            found = [
                talk.tell({"do": "find"}),
                talk.tell({"do": "find", "txn": "b"}),
                talk.tell({"do": "find", "kind": 0}),
            ]
            found += [talk.tell({"do": "fetched"}), talk.tell({"do": "writers"}), talk.tell({"do": "end_of"})]
            known = [talk.tell({"do": "state", "txn": name})["error"] for name in "ab"]
            return all(one["error"] == 0 for one in found) and known == [105, 105]

        _ = wait_until(ready, seconds=60, what="coordinators and leaders are ready")

    def _step(self, talk: Talk, step: Step) -> Step:
        step["at_ms"] = talk.at_ms = now_ms()
        if step["do"] not in STEPS:
            self._do(talk, step)
            return step
        told = talk.tell(step)
        for _ in range(TRIES):
            errors = set(told.get("errors", [told.get("error")]))
            if step.get("race") or not errors & NOT_YET:
                break
            let_pass(0.1)
            told = talk.tell(step)
        return step | {"told": told}

    def _do(self, talk: Talk, step: Step) -> None:
        match step["do"]:
            case "settle":
                _ = wait_until(lambda: self._settled(talk, step), seconds=30, what="nothing is being ended")
            case "sleep":
                let_pass(step["ms"] / 1000)
            case "exhaust":
                told = talk.tell({"do": "init"})
                while told["epoch"] < step["until"]:
                    told = talk.tell({"do": "init"})
                assert told == {"error": 0, "id": 0, "epoch": step["until"]}, told
            case "guard":
                self._guard()
            case "acl":
                kind, literal = ResourceType[step["resource"]], ResourcePatternType.LITERAL
                name = self.topic + SUFFIXES[step["resource"]]
                me, operation = "User:ANONYMOUS", AclOperation[step["operation"]]
                self._rule([AclBinding(kind, name, literal, me, "*", operation, AclPermissionType.ALLOW)])
            case what:
                assert what == "restart"
                node = self.cluster.nodes[1]
                _ = node.stop() if step["clean"] else node.kill()
                self.cluster.restart(1)
                _ = wait_until(lambda: self._back(talk), seconds=60, what="the node is back")

    def _rule(self, rules: list[AclBinding]) -> None:
        for done in self.cluster.admin.create_acls(rules, request_timeout=15).values():
            _ = done.result(60)
        let_pass(0.3)  # nothing shows when the broker looks at it

    def _forget_rules(self) -> None:
        kind, pattern = AclPermissionType.ANY, ResourcePatternType.ANY
        every = AclBindingFilter(ResourceType.ANY, None, pattern, None, None, AclOperation.ANY, kind)
        for done in self.cluster.admin.delete_acls([every], request_timeout=15).values():
            _ = done.result(60)
        let_pass(0.3)

    def _guard(self) -> None:
        """Forbid everything that is not allowed from here on, but for what the recording itself needs."""
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        mine = ("ALTER", "CREATE", "DESCRIBE", "CLUSTER_ACTION", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")
        rules = [
            AclBinding(ResourceType.BROKER, "kafka-cluster", literal, "User:ANONYMOUS", "*", AclOperation[one], allow)
            for one in mine
        ]
        kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        rules += [AclBinding(kind, "*", literal, "User:other", "*", AclOperation.READ, allow) for kind in kinds]
        self._rule(rules)

    def _settled(self, talk: Talk, step: Step) -> bool:
        state = talk.tell({"do": "state", "txn": step.get("txn", "a")})
        return not state["state"].startswith("Prepare")

    def _back(self, talk: Talk) -> bool:
        try:
            found = [talk.tell({"do": what})["error"] for what in ("find", "state", "writers", "end_of", "fetched")]
        except (OSError, EOFError):
            return False
        return not any(found)


def play(version: str, found: Iterable[Case], settings: dict[str, str] | None = None) -> list[Any]:
    """Record cases on one cluster of their own."""
    cluster = OwnCluster(version, node_count=1, settings=settings)
    try:
        recorder = Recorder(cluster)
        return [recorder.record(case) | {"broker": settings or {}} for case in found]
    finally:
        cluster.close()


def parts_of(version: str) -> dict[str, Callable[[], list[Any]]]:
    """The parts that are recorded on clusters of their own, by name."""
    new = not version.startswith("3.")
    return {
        "plain": lambda: play(version, [*cases.version_1(), *cases.offsets_1(), *(cases.version_2() if new else [])]),
        "mixed": lambda: play(version, cases.mixed()) if new else [],
        "members": lambda: play(version, cases.members()),
        "exhausted": lambda: play(version, cases.exhausted_1()),
        "old": lambda: play(
            version, [*cases.timed_out(cases.V1), *(cases.timed_out(cases.V2) if new else [])], cases.OLD
        ),
        "rights": lambda: play(version, cases.rights(new=new), LOOKS_AT_RIGHTS),
        "forgotten": lambda: play(version, cases.forgotten(), cases.FORGETFUL),
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
