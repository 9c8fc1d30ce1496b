"""A spool at its limit stops its clients and loses nothing; a full disk refuses frames and nothing else."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.requirements import mounted_tmpfs
from tests.harness.resender import Resender
from tests.harness.stack import Stack

pytestmark = pytest.mark.process

FILL = b"x" * 10_000


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1, folders=True, arguments=["--verify", "batches"]) as found:
        yield found


def value(seq: int, row: int) -> bytes:
    return b"%d:%d:" % (seq, row) + FILL


def test_a_spool_at_its_limit_stops_reading_and_goes_on_when_kafka_is_back(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("full", partitions=2)
    spool = {"bytes_max": 64 << 20, "segment_bytes": 4 << 20}
    frames = 160
    with Stack(cluster.bootstrap, shards=1, spool=spool, kafka={"compression.type": "lz4"}) as stack:
        client = Resender(stack.socket_path, "app", "full", window=1_000)
        client.add(0, [value(0, row) for row in range(50)])
        client.run(seconds=20)
        cluster.nodes[0].kill()
        for seq in range(1, frames):
            client.add(seq, [value(seq, row) for row in range(50)])
        back: list[bool] = []

        def step(_answered: int) -> None:
            if back:
                return
            told = stack.ask("stats")
            if told["sessions"]["list"] and told["sessions"]["list"][0]["held_for"] == "spool":
                assert told["spool"]["bytes"] <= 64 << 20
                assert told["records"]["refused"] == 0
                cluster.nodes[0].start()
                back.append(True)

        client.run(seconds=90, step=step)
        client.close()
        assert back, "the spool never filled"
        found = Counter(record.value for record in read_topic(cluster, "full"))
        assert found == Counter(value(seq, row) for seq in range(frames) for row in range(50))


def test_a_full_spool_answers_busy_where_the_policy_says_so(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("busy", partitions=1)
    spool = {"bytes_max": 64 << 20, "segment_bytes": 4 << 20, "when_full": "reject"}
    with Stack(cluster.bootstrap, shards=1, spool=spool) as stack, stack.session() as session:
        assert session.acked(session.send("busy", [b"first"])).level == 2
        cluster.nodes[0].kill()
        answer = None
        for seq in range(1, 300):
            answer = session.answer(session.send("busy", [FILL] * 50, level=1, seq=seq))
            if hasattr(answer, "code"):
                break
        assert answer is not None
        assert (answer.code, answer.retry_ms) == ("busy", 1_000)
        records = stack.ask("stats")["records"]
        assert records["refused_by_code"] == {"busy": 50}
        assert records["received"] == records["refused"] + records["pending"] + records["delivered"]


def test_a_full_disk_refuses_frames_keeps_what_it_has_and_recovers_by_itself(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("disk", partitions=1)
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted_tmpfs(disk, "size=48m"):
        spool = {"segment_bytes": 8 << 20, "allow_unsafe_filesystem": True}
        with Stack(cluster.bootstrap, shards=1, spool=spool, data_dir=str(disk)) as stack, stack.session() as session:
            assert session.acked(session.send("disk", [b"first"])).level == 2
            cluster.nodes[0].kill()
            taken = 0
            answer = None
            for seq in range(1, 200):
                answer = session.answer(session.send("disk", [FILL] * 50, level=1, seq=seq))
                if hasattr(answer, "code"):
                    break
                taken += 1
            assert answer is not None
            assert (answer.code, answer.retry_ms) == ("no_space", 5_000)
            cluster.nodes[0].start()
            wait_until(
                lambda: stack.ask("stats")["records"]["pending"] == 0, seconds=30, what="delivery on a full disk"
            )
            wait_until(
                lambda: not hasattr(session.answer(session.send("disk", [b"last"])), "code"),
                seconds=20,
                what="frames to be taken again",
            )
            found = list(read_topic(cluster, "disk"))
            assert sum(1 for record in found if record.value == FILL) == taken * 50
