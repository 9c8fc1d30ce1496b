"""The same conversations of transactional clients with real Kafka and with our broker, and what both tell, side by side."""

from collections.abc import Iterator

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata.metadata import MetadataRequest

from tests.harness.embedded import Caller, EmbeddedCluster, now_ms
from tests.harness.kafka_cluster import Cluster, existing_bootstrap, unique_topic
from tests.harness.processes import wait_until
from tests.harness.transaction_talk import STEPS, Step, Talk
from tests.kafka.transaction_cases import Case, offsets_1, version_1, version_2

BUSY = frozenset({14, 15, 16, 19, 51})
WANTED = ("1: commit and abort, and both again", "1: late copies after an abort", "1: offsets in a transaction")
WANTED_2 = ("2: commit, again, late copies, the next epoch", "2: offsets in a transaction")


@pytest.fixture(scope="module")
def ours() -> Iterator[EmbeddedCluster]:
    if existing_bootstrap():
        pytest.skip("raw requests go to one node, and the cluster that KAFKA_BOOTSTRAP names may have more")
    with EmbeddedCluster() as cluster:
        yield cluster


def said(cluster: Cluster, case: Case) -> list[Step]:
    """What a broker tells, step by step; where it is busy, it is asked again."""
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    topic = cluster.create_topic(unique_topic(["conversation"]), 1, replicas=1)
    with Caller((host, int(port))) as caller:

        def ask(request: ApiMessage, version: int) -> ApiMessage:
            return caller.ask(request, version)

        named = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        talk = Talk(ask, topic, ask(named, 12).topics[0].topic_id)

        def free(step: Step) -> Step | None:
            talk.at_ms = now_ms()
            told = talk.tell(step)
            return None if BUSY & set(told.get("errors", [told.get("error")])) else told

        def ready(step: Step) -> bool:
            return (free(step) or {"error": -1})["error"] in {0, 105}

        for step in ({"do": "find"}, {"do": "find", "kind": 0}, {"do": "state"}, {"do": "fetched"}, {"do": "end_of"}):
            _ = wait_until(lambda step=step: ready(step), seconds=30, what=f"{step} can be asked")
        found: list[Step] = []
        for step in case.steps:
            if step["do"] in STEPS:
                found.append(wait_until(lambda step=step: free(step), seconds=20, what=f"an answer to {step}"))
            else:
                assert step["do"] == "settle"
                _ = wait_until(
                    lambda: not talk.tell({"do": "state"})["state"].startswith("Prepare"), seconds=20, what="it ended"
                )
        return found


@pytest.mark.parametrize("name", [*WANTED, *WANTED_2])
def test_transactional_clients_are_told_the_same(kafka_one: Cluster, ours: EmbeddedCluster, name: str) -> None:
    if name in WANTED_2 and kafka_one.version.startswith("3."):
        pytest.skip("brokers before 4.0 have no second version")
    (case,) = [one for one in (*version_1(), *offsets_1(), *version_2()) if one.name == name]
    assert said(ours, case) == said(kafka_one, case)
