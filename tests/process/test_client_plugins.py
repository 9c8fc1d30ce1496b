"""Serializers, interceptors and configured partitioners of the client library, against a daemon that the test plays."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from penstock.api.errors import PenstockError
from penstock.client import (
    BufferExhaustedError,
    ClosedError,
    Headers,
    Interceptor,
    Producer,
    Record,
    RecordMetadata,
    RefusedError,
    SerializationError,
)
from penstock.wire import frames
from penstock.wire.frames import Code, PartitionInfo, RefusedRecords, Run, Type

from tests.fakes.fake_daemon import FakeDaemon, Peer

WAIT_S = 60.0
Make = Callable[..., Producer]


class Watching(Interceptor):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.settings: Mapping[str, object] = {}
        self.acks: list[tuple[RecordMetadata, BaseException | None, list[Any], str]] = []
        self.refusals: list[tuple[RecordMetadata, BaseException]] = []
        self.closed = 0

    def configure(self, settings: Mapping[str, object], /) -> None:
        self.settings = settings

    def on_send(self, record: Record, /) -> Record:
        record.headers.add("seen", b"1")
        return record._replace(value=str(record.value) + "!")

    def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
        self.acks.append((metadata, error, list(headers), threading.current_thread().name))

    def on_send_error(self, metadata: RecordMetadata, error: BaseException, headers: Headers, /) -> None:
        self.refusals.append((metadata, error))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path) as fake:
        yield fake


@pytest.fixture
def make(daemon: FakeDaemon) -> Iterator[Make]:
    made: list[Producer] = []

    def new(**options: Any) -> Producer:
        producer = Producer(daemon.path, **{"linger_ms": 0, "value_serializer": "text", **options})
        made.append(producer)
        return producer

    yield new
    for producer in made:
        producer.close(0)


def met(daemon: FakeDaemon) -> Peer:
    peer = daemon.accept()
    _ = peer.greet()
    return peer


def test_records_are_intercepted_then_serialized_and_their_ends_told_before_the_callback(
    daemon: FakeDaemon, make: Make
) -> None:
    one, told = Watching(), threading.Event()
    order: list[int] = []

    def acknowledged(_metadata: RecordMetadata | None, _error: PenstockError | None) -> None:
        order.append(len(one.acks))
        told.set()

    producer = make(client_id="app", key_serializer="int", interceptors=[one])
    future = producer.send("orders", "v", 7, headers=[("own", b"0")], timestamp_ms=5, on_ack=acknowledged)
    peer = met(daemon)
    sent = peer.frame()
    assert sent[3:] == (None, [b"\x00\x00\x00\x07"], [b"v!"], [["own", b"0", "seen", b"1"]], [5])
    peer.deliver(sent, partition=3, offset=40)
    assert told.wait(WAIT_S)
    ((metadata, error, headers, thread),) = one.acks
    assert (metadata, error) == (future.result(WAIT_S), None)
    assert (headers, thread, order) == ([("own", b"0"), ("seen", b"1")], "penstock-client", [1])
    assert one.settings == {"client.id": "app"}
    producer.close(WAIT_S)
    producer.close()
    assert one.closed == 1


def test_a_refusal_is_told_with_the_partition_that_is_known(daemon: FakeDaemon, make: Make) -> None:
    one = Watching()
    producer = make(interceptors=[one])
    futures = [producer.send("orders", "v", partition=partition) for partition in (None, 4)]
    peer = met(daemon)
    refused = 0
    while refused < 2:
        sent = peer.frame()
        refused += len(sent.values)
        peer.say(frames.refused(sent.seq, Code.NOT_ALLOWED, "no"))
    for future in futures:
        assert isinstance(future.exception(WAIT_S), RefusedError)
    assert [(metadata.partition, metadata.offset, type(error)) for metadata, error, *_ in one.acks] == [
        (-1, -1, RefusedError),
        (4, -1, RefusedError),
    ]


def test_what_is_not_taken_is_raised_and_told(daemon: FakeDaemon, make: Make) -> None:
    one = Watching()
    producer = make(interceptors=[one], buffer_bytes_max=1_000, batch_bytes=1, max_block_ms=0)
    with pytest.raises(SerializationError):
        _ = producer.send("orders", "\ud800", partition=1)
    with pytest.raises(ValueError, match="not a topic"):
        _ = producer.send("no topic", "v")
    _ = producer.send("orders", "x" * 500)
    with pytest.raises(BufferExhaustedError):
        _ = producer.send_many("orders", ["y" * 600, "z"])
    producer.close(0)
    with pytest.raises(ClosedError):
        _ = producer.send("orders", "late")
    told = [(metadata.topic, metadata.partition, type(error)) for metadata, error in one.refusals]
    assert told == [
        ("orders", 1, SerializationError),
        ("no topic", -1, ValueError),
        ("orders", -1, BufferExhaustedError),
        ("orders", -1, BufferExhaustedError),
        ("orders", -1, ClosedError),
    ]


def test_columns_are_serialized_and_each_of_their_records_is_told(daemon: FakeDaemon, make: Make) -> None:
    one = Watching()
    many: list[Any] = []
    producer = make(key_serializer="long", interceptors=[one])
    future = producer.send_many(
        "orders", ["a", "b", "c"], [1, None, 3], on_ack=lambda metadata, error: many.append((metadata, error))
    )
    peer = met(daemon)
    sent = peer.frame()
    assert sent.keys == [b"\0\0\0\0\0\0\0\1", None, b"\0\0\0\0\0\0\0\3"]
    assert sent.values == [b"a!", b"b!", b"c!"]
    peer.ack(sent.seq, runs=[Run(2, 10, 2, -1)], partitions=[2, 2, 2], refused=[RefusedRecords(1, 1, "parked", "bad")])
    error = future.exception(WAIT_S)
    assert isinstance(error, RefusedError)
    producer.flush(WAIT_S)
    assert many == [(None, many[0][1])]
    assert [(metadata.partition, metadata.offset, failed is None) for metadata, failed, *_ in one.acks] == [
        (2, 10, True),
        (-1, -1, False),
        (2, 11, True),
    ]


def test_a_column_is_taken_whole_or_not_at_all(daemon: FakeDaemon, make: Make) -> None:
    producer = make(value_serializer="int")
    with pytest.raises(SerializationError):
        _ = producer.send_many("orders", [1, "two"])
    _ = producer.send("orders", 3)
    assert met(daemon).frame().values == [b"\0\0\0\3"]


def test_a_partitioner_sees_bytes_and_its_choice_is_told_with_a_failure(daemon: FakeDaemon, make: Make) -> None:
    class Last:
        seen: list[object]
        closed = 0

        def configure(self, settings: Mapping[str, object]) -> None:
            self.seen = [settings["client.id"]]

        def __call__(self, _topic: str, key: bytes | None, value: bytes | None, partitions: Any) -> int:
            self.seen += [key, value]
            return len(partitions) - 1

        def close(self) -> None:
            self.closed += 1

    one, last = Watching(), Last()
    producer = make(client_id="app", interceptors=[one], partitioner=last, key_serializer="text")
    futures: list[Any] = []
    sending = threading.Thread(target=lambda: futures.append(producer.send("orders", "v", "k")))
    sending.start()
    peer = met(daemon)
    question = peer.message()
    assert question[0] == Type.PARTITIONS
    peer.say(frames.done(question[1], [PartitionInfo(0, 1, [1], [1]), PartitionInfo(1, 1, [1], [1])]))
    sent = peer.frame()
    assert sent.partitions == [1]
    peer.say(frames.refused(sent.seq, Code.NOT_ALLOWED, "no"))
    sending.join(WAIT_S)
    assert isinstance(futures[0].exception(WAIT_S), RefusedError)
    assert last.seen == ["app", b"k", b"v!"]
    assert one.acks[0][0].partition == 1
    producer.close(WAIT_S)
    assert last.closed == 1


def test_plug_ins_are_closed_when_nobody_holds_the_producer_any_more(daemon: FakeDaemon) -> None:
    closed = threading.Event()

    class Closing(Interceptor):
        def close(self) -> None:
            closed.set()

    producer = Producer(daemon.path, linger_ms=0, interceptors=[Closing])
    _ = producer.send("orders", b"v")
    del producer
    peer = met(daemon)
    peer.deliver(peer.frame())
    assert closed.wait(WAIT_S)


def test_what_is_no_plug_in_is_refused_and_what_was_made_is_closed(daemon: FakeDaemon) -> None:
    one = Watching()
    with pytest.raises(TypeError, match="no interceptor"):
        _ = Producer(daemon.path, interceptors=[one, object()])
    assert one.closed == 1
    with pytest.raises(ValueError, match="no serializer 'avro'"):
        _ = Producer(daemon.path, value_serializer="avro")


def test_a_callback_that_exits_keeps_nobody_else_from_being_told(daemon: FakeDaemon, make: Make) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(3)

    class Leaving(Interceptor):
        def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
            leave()

    watching = Watching()
    producer = make(interceptors=[Leaving(), watching], linger_ms=10_000)
    futures = [producer.send("orders", "v", on_ack=leave), producer.send("orders", "w")]
    flushing = threading.Thread(target=producer.flush, daemon=True)
    flushing.start()
    peer = daemon.accept()
    _ = peer.greet()
    peer.deliver(peer.frame())
    assert [future.result(WAIT_S).offset for future in futures] == [100, 101]
    flushing.join(WAIT_S)
    assert not flushing.is_alive()
    assert len(watching.acks) == 2
