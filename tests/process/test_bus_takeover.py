"""Shards that hang or stay away: others take their nodes over, and give them back."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.raw_session import RawSession
from tests.harness.readers import read_topic
from tests.harness.stack import Stack

pytestmark = pytest.mark.process
WAIT_S = 60.0
TIMEOUTS = {"shard_silence_ms": 1_000, "shard_return_ms": 300}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        yield found


def send(session: RawSession, topic: str, first: int, count: int) -> list[int]:
    """Frames with a record for each of the four partitions."""
    return [session.send(topic, [b"%d" % n] * 4, partitions=[0, 1, 2, 3], seq=n) for n in range(first, first + count)]


def check(cluster: EmbeddedCluster, topic: str, frames: int) -> None:
    found = sorted(read_topic(cluster, topic), key=lambda record: (record.partition, record.offset))
    for partition in range(4):
        values = [record.value for record in found if record.partition == partition]
        assert values == [b"%d" % n for n in range(frames)]


def test_a_hung_shard_is_killed_and_the_other_takes_over_its_nodes(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("hung", partitions=4)
    with Stack(cluster.bootstrap, shards=2, timeouts=TIMEOUTS) as stack, stack.session("app") as session:
        for seq in send(session, "hung", 0, 5):
            assert session.acked(seq).level == 2
        os.kill(stack.shards[0].pid, signal.SIGSTOP)

        frames = send(session, "hung", 5, 20)

        assert [session.acked(seq).level for seq in frames] == [2] * 20
        assert stack.shards[0].wait(WAIT_S) == -signal.SIGKILL
        check(cluster, "hung", 25)


def test_a_shard_that_comes_back_late_gets_nodes_again(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("late", partitions=4)
    with Stack(cluster.bootstrap, shards=2, timeouts=TIMEOUTS) as stack, stack.session("app") as session:
        for seq in send(session, "late", 0, 5):
            assert session.acked(seq).level == 2
        stack.kill_shard(1)
        for seq in send(session, "late", 5, 10):
            assert session.acked(seq).level == 2
        first_pid = stack.shards[0].pid

        stack.start_shard(1)
        sent = 15

        def both_work() -> bool:
            nonlocal sent
            for seq in send(session, "late", sent, 5):
                assert session.acked(seq).level == 2
            sent += 5
            return {row["shard"] for row in stack.ask("stats")["leases"]["partitions"]} >= {0, 1}

        _ = wait_until(both_work, seconds=WAIT_S, what="both shards to hold leases again")
        assert stack.shards[0].pid == first_pid
        assert stack.shards[0].poll() is None
        check(cluster, "late", sent)
