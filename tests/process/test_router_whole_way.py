"""Records from a local socket through router and shards into the embedded broker, and back by a reader that is not ours."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.resender import Resender
from tests.harness.stack import Stack

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        yield found


def values_of(seq: int, count: int = 5) -> list[bytes]:
    return [b"%d:%d" % (seq, row) for row in range(count)]


def check_conserved(stack: Stack) -> dict[str, Any]:
    records: dict[str, Any] = stack.ask("stats")["records"]
    ended = records["delivered"] + records["dead_lettered"] + records["expired"] + records["quarantined"]
    assert records["received"] == records["refused"] + records["pending"] + ended, records
    return records


def check_topic(cluster: EmbeddedCluster, topic: str, client: Resender, frames: int, rows: int = 5) -> None:
    """Every record once, in order of the session in each partition, and where the acknowledgement says."""
    found = list(read_topic(cluster, topic))
    counted = Counter(record.value for record in found)
    assert set(counted) == {value for seq in range(frames) for value in values_of(seq, rows)}
    assert set(counted.values()) == {1}, [value for value, count in counted.items() if count > 1][:10]
    last: dict[int, tuple[int, int]] = {}
    for record in sorted(found, key=lambda record: (record.partition, record.offset)):
        assert record.value is not None
        seq, row = (int(part) for part in record.value.split(b":"))
        assert last.get(record.partition, (-1, -1)) < (seq, row)
        last[record.partition] = (seq, row)
    where = {(record.partition, record.offset): record.value for record in found}
    for seq, answer in client.answers.items():
        _, level, runs, partitions, refused, _ = answer
        assert refused is None
        assert level == 2
        if runs is None:
            continue
        at: dict[int, list[int]] = {}
        for partition, first, count, _ in runs:
            at.setdefault(partition, []).extend([-1] * count if first < 0 else range(first, first + count))
        for value, partition in zip(values_of(seq, rows), partitions, strict=True):
            offset = at[partition].pop(0)
            assert offset < 0 or where[partition, offset] == value


def test_a_record_comes_through_all_processes_and_is_read_back(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("orders", partitions=3)
    with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
        acked = session.acked(session.send("orders", [b"one", b"two"], keys=[b"k", b"k"]))
        assert acked.level == 2
        assert acked.flags == 1, "one replica is one broker's word"
        places = acked.places()
        found = {(record.partition, record.offset): record.value for record in read_topic(cluster, "orders")}
        assert [found[place] for place in places] == [b"one", b"two"]
        assert check_conserved(stack)["delivered"] == 2


@pytest.mark.fault("K15")
def test_kills_of_shards_and_router_lose_double_and_reorder_nothing(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("killed", partitions=4)
    frames = 400
    with Stack(cluster.bootstrap, shards=2, kafka={"linger.ms": 1}) as stack:
        client = Resender(stack.socket_path, "app", "killed")
        for seq in range(frames):
            client.add(seq, values_of(seq), [b"%d" % (seq % 7), *(b"%d" % row for row in range(4))])
        kills = {
            40: lambda: stack.kill_shard(0),
            100: stack.kill_router,
            160: lambda: stack.kill_shard(1),
            220: lambda: (stack.kill_shard(0), stack.kill_shard(1)),
            280: lambda: (stack.kill_router(), stack.kill_shard(0), stack.kill_shard(1)),
            340: stack.kill_router,
        }

        def step(answered: int) -> None:
            for at in [at for at in kills if at <= answered]:
                kills.pop(at)()
            stack.revive()

        client.run(seconds=60, step=step)
        client.close()
        assert not kills
        check_conserved(stack)
        check_topic(cluster, "killed", client, frames)


def test_an_orderly_stop_delivers_what_there_is_and_the_next_start_is_clean(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("stopped", partitions=2)
    with Stack(cluster.bootstrap, shards=2, kafka={"linger.ms": 1_000}) as stack:
        with stack.session("app") as session:
            for seq in range(20):
                session.send("stopped", values_of(seq), level=1, seq=seq)
            for seq in range(20):
                assert session.acked(seq).level == 1
        assert stack.stop_router() == 0
        for shard in stack.shards.values():
            assert shard.wait(60) == 0
        assert len(list(read_topic(cluster, "stopped"))) == 100
        stack.wait_ready()
        records = check_conserved(stack)
        assert records["recovered"] == 0
        assert '"power_cut": false' in stack.log_path.read_text()


@pytest.mark.fault("K20")
def test_frames_are_spooled_while_no_broker_answers_and_delivered_when_one_does() -> None:
    with EmbeddedCluster(1, folders=True) as cluster:
        cluster.create_topic("later", partitions=2)
        with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
            assert session.acked(session.send("later", values_of(0), seq=0)).level == 2
            cluster.nodes[0].kill()
            for seq in range(1, 11):
                session.send("later", values_of(seq), level=1, seq=seq)
            for seq in range(1, 11):
                assert session.acked(seq).level == 1
            assert check_conserved(stack)["pending"] == 50
            stack.kill_router()
            stack.wait_ready()
            with stack.session("app") as again:
                assert again.high == 10
                assert again.acked(again.send("later", values_of(10), level=1, seq=10)).level == 1
                last = again.send("later", values_of(11), seq=11)
                cluster.nodes[0].start()
                assert again.acked(last).level == 2
                wait_until(
                    lambda: check_conserved(stack)["pending"] == 0, seconds=20, what="everything to be delivered"
                )
        counted = Counter(record.value for record in read_topic(cluster, "later"))
        assert counted == Counter(value for seq in range(12) for value in values_of(seq))


def test_a_topic_that_does_not_exist_is_refused_and_one_made_meanwhile_is_not(cluster: EmbeddedCluster) -> None:
    with Stack(cluster.bootstrap, shards=1) as stack, stack.session() as session:
        answer = session.answer(session.send("nowhere", [b"x"]))
        assert answer.code == "unknown_topic"
        cluster.create_topic("nowhere", partitions=1)
        wanted = stack.ask("stats")["records"]["refused"]
        assert wanted == 1
        while not hasattr(answer := session.answer(session.send("nowhere", [b"x"])), "level"):
            assert answer.code == "unknown_topic"
        assert answer.level == 2
        rows = session.ask(4, "nowhere")
        assert [row[0] for row in rows] == [0]


def test_no_metadata_is_said_when_no_broker_answers_in_time() -> None:
    with Stack("127.0.0.1:1", shards=1, kafka={"max.block.ms": 300}) as stack, stack.session() as session:
        answer = session.answer(session.send("any", [b"x"]))
        assert answer.code == "no_metadata"
        assert "127.0.0.1" in answer.text


def test_flush_ends_the_wait_for_company(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("flushed", partitions=1)
    with Stack(cluster.bootstrap, shards=1, kafka={"linger.ms": 20_000}) as stack, stack.session(seconds=10) as session:
        # The first record goes alone whatever linger says, once it is due: flush before it as well.
        first = session.send("flushed", [b"first"])
        session.ask(3)
        assert session.acked(first).level == 2
        second = session.send("flushed", [b"second"])
        session.ask(3)
        assert session.acked(second).level == 2
