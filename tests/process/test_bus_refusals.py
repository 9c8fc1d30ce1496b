"""What Kafka refuses, seen from a client: parked with its words, held with an alarm, or settled by the next attempt; the rest
goes on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from penstock.daemon.processes.control_client import ControlError

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.stack import Stack

pytestmark = pytest.mark.process
PRODUCE = 0
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as found:
        yield found


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    records = sorted(read_topic(cluster, topic), key=lambda record: (record.partition, record.offset))
    return [record.value for record in records]


def until(stack: Stack, true: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    stats: dict[str, Any] = {}

    def look() -> bool:
        stats.clear()
        stats.update(stack.ask("stats"))
        return true(stats)

    _ = wait_until(look, seconds=WAIT_S, what=what)
    return stats


def test_records_without_a_key_on_a_compacted_topic_are_parked_and_their_neighbours_arrive(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("compacted", partitions=1, config={"cleanup.policy": "compact"})
    with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
        assert session.acked(session.send("compacted", [b"first"], keys=[b"k"])).level == 2
        keys = [b"k", None, b"k", b"k", None, None, b"k"]
        frame = session.send("compacted", [b"%d" % n for n in range(7)], keys=keys, partitions=0)
        last = session.send("compacted", [b"last"], keys=[b"k"])

        answer = session.answer(frame)
        assert [(first, count, code) for first, count, code, _ in answer.refused] == [
            (1, 1, "parked"),
            (4, 2, "parked"),
        ]
        assert "INVALID_RECORD" in answer.refused[0][3]
        assert session.acked(last).level == 2
        assert values(cluster, "compacted") == [b"first", b"0", b"2", b"3", b"6", b"last"]
        records = stack.ask("stats")["records"]
        assert (records["dead_lettered"], records["pending"]) == (3, 0)


def test_one_refused_record_after_another_costs_only_themselves(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("spoilt", partitions=1, config={"cleanup.policy": "compact"})
    with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
        frames = [
            session.send("spoilt", [b"%d" % n], keys=[None if n % 3 == 0 else b"k"], partitions=0) for n in range(20)
        ]
        answers = [session.answer(seq) for seq in frames]

        refused = [n for n, answer in enumerate(answers) if answer.refused]
        assert refused == [n for n in range(20) if n % 3 == 0]
        assert values(cluster, "spoilt") == [b"%d" % n for n in range(20) if n % 3]


def test_a_missing_permission_holds_the_partition_with_an_alarm_until_it_is_given(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("forbidden", partitions=1)
    with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
        assert session.acked(session.send("forbidden", [b"first"])).level == 2
        node = cluster.nodes[0]
        assert node.command(
            op="fail_next", api=PRODUCE, error="TOPIC_AUTHORIZATION_FAILED", times=1_000, topic="forbidden"
        ) == {"ok": True}
        frame = session.send("forbidden", [b"second"])

        stats = until(stack, lambda stats: bool(stats["alarms"]), "an alarm")
        assert "TOPIC_AUTHORIZATION_FAILED" in str(stats["alarms"])
        assert stats["records"]["pending"] == 1
        node.command(op="clear")

        assert session.acked(frame).level == 2
        assert values(cluster, "forbidden") == [b"first", b"second"]
        until(stack, lambda stats: not stats["alarms"], "the alarm to end")


def test_a_lost_answer_after_the_broker_wrote_is_found_to_be_a_duplicate(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("answers", partitions=1)
    with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
        assert session.acked(session.send("answers", [b"0"])).level == 2
        cluster.nodes[0].command(op="cut_answer", api=PRODUCE, keep=0, times=3)
        frames = [session.send("answers", [b"%d" % n]) for n in range(1, 6)]

        assert [session.acked(seq).level for seq in frames] == [2] * 5
        assert values(cluster, "answers") == [b"%d" % n for n in range(6)]


def test_people_let_a_partition_go_on_whose_producer_epoch_the_broker_disputes(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("disputed", partitions=1)
    with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
        assert session.acked(session.send("disputed", [b"0"])).level == 2
        node = cluster.nodes[0]
        node.command(op="fail_next", api=PRODUCE, error="INVALID_PRODUCER_EPOCH", times=1, topic="disputed")
        frame = session.send("disputed", [b"1", b"2"])
        stats = until(stack, lambda stats: bool(stats["alarms"]), "an alarm")
        assert stats["alarms"][0]["reason"] == "producer_epoch"
        with pytest.raises(ControlError, match="disputed-7 is not blocked"):
            stack.ask("resend", topic="disputed", partition=7)

        assert stack.ask("resend", topic="disputed", partition=0) == {"resent": True}

        assert session.acked(frame).level == 2
        assert values(cluster, "disputed") == [b"0", b"1", b"2"]
        assert stack.ask("stats")["records"]["possible_duplicates"] == 2
