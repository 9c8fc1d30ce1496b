"""The client library through real processes into the embedded broker, read back by a reader that is not ours."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from penstock.client import Future, PenstockError, Producer, RecordMetadata, RefusedError

from tests.harness.embedded import EmbeddedCluster
from tests.harness.readers import read_topic
from tests.harness.stack import Stack

pytestmark = pytest.mark.process
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        yield found


def test_every_future_tells_where_its_record_lies(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("places", partitions=3)
    with Stack(cluster.bootstrap, shards=2) as stack, Producer(stack.socket_path, client_id="places") as producer:
        assert sorted(row.partition for row in producer.partitions_for("places", WAIT_S)) == [0, 1, 2]
        futures: dict[bytes, Future[RecordMetadata]] = {}
        for i in range(500):
            value = b"one %d" % i
            key = b"k%d" % (i % 20) if i % 3 else None
            futures[value] = producer.send(
                "places", value, key, headers=[("n", b"%d" % i)] if i % 5 == 0 else None, timestamp_ms=1_000_000 + i
            )
        values = [b"many %d" % i for i in range(3000)]
        many = producer.send_many("places", values, [b"k%d" % (i % 50) for i in range(3000)]).result(WAIT_S)
        spooled = producer.send("places", b"spooled", level="spooled").result(WAIT_S)
        producer.flush(WAIT_S)
        found = {record.value: record for record in read_topic(cluster, "places")}
        assert set(found) == {*futures, *values, b"spooled"}
        assert (spooled.level, spooled.offset) == ("spooled", -1)
        for value, future in futures.items():
            metadata = future.result(0)
            assert (metadata.partition, metadata.offset) == (found[value].partition, found[value].offset)
        assert found[b"one 5"].headers == (("n", b"5"),)
        assert found[b"one 5"].timestamp_ms == 1_000_005
        assert many.partitions is not None
        assert [found[value].partition for value in values] == list(many.partitions)
        assert sum(run.count for run in many.runs) == 3000


def test_what_the_daemon_refuses_fails_with_its_reason_and_the_rest_arrives(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("strict", partitions=2)
    with Stack(cluster.bootstrap, shards=1) as stack, Producer(stack.socket_path) as producer:
        wrong = producer.send("strict", b"v", partition=7)
        fine = producer.send_many("strict", [b"a", b"b"])
        text = producer.send_many("strict", ["text"])  # type: ignore[list-item]
        for future, code in ((wrong, "bad_partition"), (text, "bad_frame")):
            error = future.exception(WAIT_S)
            assert isinstance(error, RefusedError)
            assert error.code == code
        assert fine.result(WAIT_S).count == 2
        with pytest.raises(RefusedError, match="unknown_topic"):
            producer.partitions_for("there-is-none", WAIT_S)


@pytest.mark.parametrize("orderly", [False, True], ids=["killed", "stopped"])
def test_routers_that_go_cost_a_client_nothing_but_time(cluster: EmbeddedCluster, orderly: bool) -> None:
    topic = f"goes-{orderly}"
    cluster.create_topic(topic, partitions=3)
    with Stack(cluster.bootstrap, shards=2, kafka={"linger.ms": 1}) as stack:
        enough = threading.Event()
        futures: list[Future[RecordMetadata]] = []
        errors: list[PenstockError] = []

        def work(producer: Producer) -> None:
            while not enough.is_set():
                number = len(futures)
                futures.append(producer.send(topic, b"%d" % number, b"k%d" % (number % 9)))
                if number % 50 == 0:
                    _ = enough.wait(0.002)

        with Producer(stack.socket_path, client_id="app", on_error=errors.append) as producer:
            sender = threading.Thread(target=work, args=(producer,))
            sender.start()
            for _ in range(2):
                mark = len(futures)
                _ = futures[mark - 1].exception(WAIT_S) if mark else None
                if orderly:
                    _ = stack.stop_router()
                else:
                    stack.kill_router()
                stack.revive()
                stack.wait_ready()
            enough.set()
            sender.join(WAIT_S)
            producer.flush(WAIT_S)
        assert errors == []
        answers = [future.result(0) for future in futures]
        found = sorted(read_topic(cluster, topic), key=lambda record: (record.partition, record.offset))
        counted = Counter(record.value for record in found)
        assert len(futures) > 100
        assert counted == {b"%d" % number: 1 for number in range(len(futures))}
        last: dict[int, int] = {}
        for record in found:
            assert record.value is not None
            assert last.get(record.partition, -1) < int(record.value)
            last[record.partition] = int(record.value)
        where = {(record.partition, record.offset): record.value for record in found}
        for number, answer in enumerate(answers):
            assert answer.offset < 0 or where[answer.partition, answer.offset] == b"%d" % number
