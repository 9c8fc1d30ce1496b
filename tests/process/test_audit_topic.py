"""The audit topic of real processes: what it says is what lies in the other topics, whatever dies meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest
from penstock.wire.audit_records import CLOSED, RUNNING

from tests.harness.audit_topic import TOPIC, Told, check_balance, read_audit
from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.resender import Resender
from tests.harness.stack import Stack

pytestmark = pytest.mark.process
AUDIT = {"interval_s": 0.2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        found.create_topic(TOPIC, partitions=3)
        yield found


def values_of(seq: int, count: int = 5) -> list[bytes]:
    return [b"%d:%d" % (seq, row) for row in range(count)]


def audit_of(stack: Stack) -> dict[str, Any]:
    return dict(stack.ask("stats")["audit"])


def told_of(cluster: EmbeddedCluster, stack: Stack) -> Told:
    """What this daemon's incarnation says, others of the module left out."""
    told = read_audit(cluster)
    incarnation = audit_of(stack)["incarnation"]
    told.latest = {key: one for key, one in told.latest.items() if one.incarnation == incarnation}
    return told


def stop(stack: Stack) -> None:
    assert stack.stop_router() == 0
    for shard in stack.shards.values():
        assert shard.wait(10) == 0


def test_every_record_is_told_and_an_orderly_stop_closes_the_books(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("plain", partitions=3)
    with Stack(cluster.bootstrap, shards=2, audit=AUDIT) as stack:
        with stack.session("app") as session:
            for seq in range(20):
                session.send("plain", values_of(seq), keys=[b"%d" % row for row in range(5)], seq=seq)
            for seq in range(20):
                assert session.acked(seq).level == 2
        incarnation = audit_of(stack)["incarnation"]
        stop(stack)
        told = read_audit(cluster)
        heartbeat = told.heartbeats()[incarnation]
        assert heartbeat.state == CLOSED
        assert heartbeat.settled_before == heartbeat.closed_before
        assert check_balance(told, "plain", list(read_topic(cluster, "plain"))) == {incarnation: 100}
        assert told.intakes(TOPIC) == []
        stack.wait_ready()
        running = wait_until(
            lambda: read_audit(cluster).heartbeats()[incarnation].state == RUNNING,
            seconds=10,
            what="the heartbeat says that the daemon runs again",
        )
        assert running
        records = stack.ask("stats")["records"]
        assert (records["received"], records["taken"], records["pending"]) == (0, 0, 0)
