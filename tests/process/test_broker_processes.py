"""The broker as real processes, asked by clients that are not ours and by raw requests."""

import struct
import time
from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.protocol.admin.topics import CreateTopicsRequest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import ProduceResponse
from penstock.broker.log.error_codes import ErrorCode

from tests.harness.batches import Rec, batch, numbered
from tests.harness.embedded import EmbeddedCluster, confluent, now_ms, produce, produce_request
from tests.harness.readers import read_topic

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def one() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3) as cluster:
        yield cluster


def fetch_request(topic: str, offset: int, *, wait_ms: int, min_bytes: int = 1) -> FetchRequest:
    part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    entry = FetchRequest.FetchTopic(topic=topic, partitions=[part])
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=[entry],
        forgotten_topics_data=[],
    )


def fetched(answer: object) -> bytes:
    assert isinstance(answer, FetchResponse)
    (part,) = answer.responses[0].partitions
    assert part.error_code == 0
    assert isinstance(part.records, bytes)
    return part.records


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_writes_and_reads_every_codec_on_three_nodes(three: EmbeddedCluster, codec: str) -> None:
    topic = three.create_topic(f"codec-{codec}", 6)
    assert sorted(three.leaders(topic).values()) == [0, 0, 1, 1, 2, 2]
    producer = confluent(three, **{"compression.type": codec})
    placed: dict[tuple[int, int], bytes] = {}
    failures: list[object] = []

    def told(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)
        else:
            placed[message.partition(), message.offset()] = message.value()  # type: ignore[attr-defined]

    for number in range(5000):
        headers = [("n", b"1"), ("null", None)] if number % 3 else []
        producer.produce(topic, str(number).encode() * 5, str(number), headers=headers, on_delivery=told)
    assert producer.flush(60) == 0
    assert failures == []
    found = {(one.partition, one.offset): one.value for one in read_topic(three, topic)}
    assert found == placed
    assert len(found) == 5000


def test_kafka_python_reads_from_the_beginning_and_from_a_time(three: EmbeddedCluster) -> None:
    topic = three.create_topic("kafka-python", 3)
    with three.call(three.leaders(topic)[1]) as caller:
        for at in (1000, 2000, 3000):
            assert produce(caller, topic, batch([Rec(b"a", timestamp=at), Rec(b"b", timestamp=at + 500)]), 1)[0] == 0
    consumer = KafkaConsumer(bootstrap_servers=three.bootstrap.split(","), consumer_timeout_ms=10_000)
    parts = [TopicPartition(topic, number) for number in range(3)]
    consumer.assign(parts)
    consumer.seek_to_beginning()
    first = [next(consumer) for _ in range(6)]
    assert [(one.partition, one.offset, one.timestamp) for one in first] == [
        (1, offset, 1000 + offset * 500) for offset in range(6)
    ]
    found = consumer.offsets_for_times({parts[1]: 1600, parts[0]: 5})
    assert (found[parts[1]].offset, found[parts[1]].timestamp) == (2, 2000)
    assert found.get(parts[0]) is None
    assert consumer.end_offsets(parts) == {parts[0]: 0, parts[1]: 6, parts[2]: 0}
    consumer.close()


def test_a_topic_made_on_one_node_is_known_on_the_others_at_once(three: EmbeddedCluster) -> None:
    with three.call(0) as first, three.call(1) as second:
        for number in range(20):
            name = f"made-{number}"
            topic = CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=3, replication_factor=1, assignments=[], configs=[]
            )
            made = first.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=False), 7)
            assert made.topics[0].error_code == 0
            asked = MetadataRequest.MetadataRequestTopic(name=name)
            told = second.ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=False), 12)
            assert told.topics[0].error_code == 0
            assert told.topics[0].topic_id == made.topics[0].topic_id


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 104_857_601),
        struct.pack(">i", 0),
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhi", 8, 0, 2, 1),
        struct.pack(">ihhi", 8, 3, 99, 1),
        struct.pack(">ihhi", 40, 0, 9, 1) + b"\xff" * 32,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["negative", "too-large", "empty", "unknown-api", "old-produce", "new-metadata", "garbage", "http"],
)
def test_bad_bytes_close_their_connection_and_no_other(one: EmbeddedCluster, data: bytes) -> None:
    with one.call() as good, one.call() as bad:
        bad.sock.sendall(data)
        assert bad.hung_up()
        assert good.ask(ApiVersionsRequest(), 0).error_code == 0


def test_half_a_request_is_not_executed(one: EmbeddedCluster) -> None:
    topic = one.create_topic("half", 1)
    request = produce_request(topic, batch([Rec(b"half")]))
    request.API_VERSION = 9
    request.with_header(1, "half")
    data = request.encode(header=True, framed=True)
    with one.call() as caller:
        caller.sock.sendall(data[:-1])
    with one.call() as caller:
        caller.sock.sendall(data[:-1])
        caller.reset()
    assert one.offsets(topic) == {0: (0, 0)}


def test_requests_written_before_a_clean_close_are_executed(one: EmbeddedCluster) -> None:
    topic = one.create_topic("closed", 1)
    with one.call() as caller:
        for number in range(3):
            _ = caller.send(produce_request(topic, batch([Rec(b"%d" % number)])), 9)
        caller.sock.shutdown(1)
        assert [caller.receive()[0] for _ in range(3)] == [1, 2, 3]
        assert caller.hung_up()
    assert one.offsets(topic) == {0: (0, 3)}


def test_requests_of_a_connection_are_answered_in_order_behind_one_that_waits(one: EmbeddedCluster) -> None:
    topic = one.create_topic("order", 1)
    with one.call() as caller:
        waiting = caller.send(fetch_request(topic, 0, wait_ms=300), 11)
        sent = [caller.send(produce_request(topic, batch([Rec(b"%d" % n)])), 9) for n in range(3)]
        began = time.monotonic()
        answers = [caller.receive() for _ in range(4)]
        # The produce requests behind the fetch are not read before it is answered, so it finds nothing.
        assert time.monotonic() - began >= 0.25
        assert [correlation for correlation, _ in answers] == [waiting, *sent]
        assert fetched(answers[0][1]) == b""


def test_a_waiting_fetch_is_woken_by_an_append_on_another_connection(one: EmbeddedCluster) -> None:
    topic = one.create_topic("woken", 1)
    with one.call() as reader, one.call() as writer:
        _ = reader.send(fetch_request(topic, 0, wait_ms=30_000), 11)
        assert produce(writer, topic, batch([Rec(b"hello")])) == (0, 0)
        began = time.monotonic()
        assert b"hello" in fetched(reader.receive()[1])
        assert time.monotonic() - began < 10


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(one: EmbeddedCluster) -> None:
    topic = one.create_topic("bytes", 1)
    data = batch([Rec(b"x" * 100)])
    with one.call() as reader, one.call() as writer:
        _ = reader.send(fetch_request(topic, 0, wait_ms=30_000, min_bytes=2 * len(data)), 11)
        assert produce(writer, topic, data) == (0, 0)
        assert produce(writer, topic, data) == (0, 1)
        assert len(fetched(reader.receive()[1])) == 2 * len(data)


def test_a_client_that_leaves_while_its_fetch_waits_leaves_nothing_behind(one: EmbeddedCluster) -> None:
    topic = one.create_topic("left", 1)
    for reset in (False, True):
        caller = one.call()
        _ = caller.send(fetch_request(topic, 0, wait_ms=30_000), 11)
        if reset:
            caller.reset()
        else:
            caller.sock.close()
    with one.call() as caller:
        assert produce(caller, topic, batch()) == (0, 0)


def test_an_unknown_version_of_api_versions_is_answered_in_version_zero(one: EmbeddedCluster) -> None:
    with one.call() as caller:
        caller.sock.sendall(struct.pack(">ihhih", 10, 18, 77, 5, -1))
        size, correlation, error, count = struct.unpack(">iihi", caller.sock.recv(14))
        assert (correlation, error) == (5, ErrorCode.UNSUPPORTED_VERSION)
        assert size == 10 + count * 6


def test_acks_zero_is_not_answered(one: EmbeddedCluster) -> None:
    topic = one.create_topic("acks-0", 1)
    with one.call() as caller:
        _ = caller.send(produce_request(topic, batch(), acks=0), 9)
        assert caller.ask(ApiVersionsRequest(), 0).error_code == 0
    assert one.offsets(topic) == {0: (0, 1)}


def test_a_scripted_error_is_answered_as_often_as_told_before_or_after_the_work(one: EmbeddedCluster) -> None:
    topic = one.create_topic("scripted", 1)
    node = one.nodes[0]
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    at = now_ms()
    with one.call() as caller:
        told = node.command(op="fail_next", api=0, topic=topic, error="REQUEST_TIMED_OUT", times=2)
        assert told == {"ok": True}
        assert [produce(caller, topic, numbered(7, 0, 0, 1, at)) for _ in range(3)] == [(timed_out, -1)] * 2 + [(0, 0)]
        told = node.command(op="fail_next", api=0, topic=topic, error="REQUEST_TIMED_OUT", applied=True)
        assert told == {"ok": True}
        assert produce(caller, topic, numbered(7, 0, 1, 1, at)) == (timed_out, 1)
        assert produce(caller, topic, numbered(7, 0, 1, 1, at)) == (0, 1)
    assert one.offsets(topic) == {0: (0, 2)}


@pytest.mark.parametrize("keep", [0, 1, 10])
def test_an_answer_cut_on_command_was_applied(one: EmbeddedCluster, keep: int) -> None:
    topic = one.create_topic(f"cut-{keep}", 1)
    assert one.nodes[0].command(op="cut_answer", api=0, keep=keep) == {"ok": True}
    with one.call() as caller:
        _ = caller.send(produce_request(topic, batch()), 9)
        received = b""
        while more := caller.sock.recv(100):
            received += more
        assert len(received) == keep
    assert one.offsets(topic) == {0: (0, 1)}


def test_an_answer_dropped_on_command_was_applied_and_the_connection_goes_on(one: EmbeddedCluster) -> None:
    topic = one.create_topic("dropped", 1)
    assert one.nodes[0].command(op="drop_answer", api=0) == {"ok": True}
    with one.call() as caller:
        dropped = caller.send(produce_request(topic, batch()), 9)
        second = caller.send(produce_request(topic, batch()), 9)
        correlation, answer = caller.receive()
        assert correlation == second != dropped
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].base_offset == 1


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"op": "no"}', '{"op": "fail_next", "api": 0, "error": "NO"}'])
def test_a_command_that_is_none_is_answered_with_what_is_wrong(one: EmbeddedCluster, line: str) -> None:
    node = one.nodes[0]
    assert node.process.stdin is not None
    _ = node.process.stdin.write(line.encode() + b"\n")
    node.process.stdin.flush()
    answer = node._line()
    assert '"ok": false' in answer


def test_an_idempotent_producer_gets_over_cut_answers_and_scripted_errors(one: EmbeddedCluster) -> None:
    topic = one.create_topic("rough", 2)
    node = one.nodes[0]
    producer = confluent(one, **{"retry.backoff.ms": 10, "reconnect.backoff.ms": 10, "queue.buffering.max.ms": 1})
    for number in range(2000):
        if number % 400 == 100:
            assert node.command(op="cut_answer", api=0, keep=number % 7)["ok"]
        if number % 400 == 300:
            assert node.command(op="fail_next", api=0, error="NOT_ENOUGH_REPLICAS_AFTER_APPEND", applied=True)["ok"]
        producer.produce(topic, b"%d" % number)
        if number % 50 == 0:
            _ = producer.poll(0.01)
    assert producer.flush(60) == 0
    assert node.command(op="clear") == {"ok": True}
    assert sorted(int(one.value or b"") for one in read_topic(one, topic)) == list(range(2000))


def test_a_topic_is_not_made_by_asking_where_that_is_not_allowed(one: EmbeddedCluster) -> None:
    with one.call() as caller:
        asked = MetadataRequest.MetadataRequestTopic(name="asked-for")
        told = caller.ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=True), 12)
        assert told.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        everything = caller.ask(MetadataRequest(topics=None, allow_auto_topic_creation=True), 12)
        assert "asked-for" not in [topic.name for topic in everything.topics]
