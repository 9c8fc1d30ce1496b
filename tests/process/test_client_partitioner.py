"""A partitioner of the application's own, against a daemon that the test plays."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from penstock.client import PartitionMetadata, Producer, RefusedError, WaitTimeoutError
from penstock.wire import frames
from penstock.wire.frames import Code, PartitionInfo, Type

from tests.fakes.fake_daemon import FakeDaemon, Peer

WAIT_S = 60.0
ROWS = [PartitionInfo(0, 1, [1], [1]), PartitionInfo(1, 2, [2], [2]), PartitionInfo(2, -1, [3], [])]

Make = Callable[..., Producer]
Call = tuple[str, bytes | None, bytes | None, list[int]]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path) as fake:
        yield fake


class ByLength:
    """A record goes where its key's length says; without a key it is left to the daemon."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: Sequence[PartitionMetadata]
    ) -> int | None:
        self.calls.append((topic, key, value, [row.leader for row in partitions]))
        return None if key is None else len(key)


@pytest.fixture
def make(daemon: FakeDaemon) -> Iterator[Make]:
    made: list[Producer] = []

    def new(**options: Any) -> Producer:
        producer = Producer(daemon.path, linger_ms=0, **options)
        made.append(producer)
        return producer

    yield new
    for producer in made:
        producer.close(0)


def beside(call: Callable[[], object]) -> threading.Thread:
    """What waits for the daemon, on a thread of its own."""
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def asked(peer: Peer, topic: str) -> int:
    """The daemon is asked for a topic's partitions."""
    number, seq, name = peer.message()
    assert (number, name) == (Type.PARTITIONS, topic)
    return int(seq)


def test_it_is_told_the_topics_partitions_and_its_word_goes_to_the_daemon(daemon: FakeDaemon, make: Make) -> None:
    partitioner = ByLength()
    producer = make(partitioner=partitioner)
    sending = beside(lambda: [producer.send("orders", bytearray(b"v"), key) for key in (b"k", None, b"")])
    peer = daemon.accept()
    _ = peer.greet()
    peer.say(frames.done(asked(peer, "orders"), ROWS))
    partitions: list[int | None] = []
    while len(partitions) < 3:
        sent = peer.frame()
        count = len(sent.values)
        partitions += sent.partitions if isinstance(sent.partitions, list) else [sent.partitions] * count
    sending.join(WAIT_S)
    assert partitions == [1, None, 0]
    assert partitioner.calls == [("orders", key, b"v", [1, 2, -1]) for key in (b"k", None, b"")]


def test_it_is_asked_only_for_records_that_name_no_partition(daemon: FakeDaemon, make: Make) -> None:
    partitioner = ByLength()
    producer = make(partitioner=partitioner)
    _ = producer.send("orders", b"v", b"key", partition=7)
    peer = daemon.accept()
    _ = peer.greet()
    sent = peer.frame()
    assert sent.partitions in (7, [7])
    assert partitioner.calls == []
    columns = ([b"a", b"b", b"c"], [b"k", b"kk", None])
    sending = beside(lambda: producer.send_many("orders", *columns, partitions=[None, 0, None]))
    peer.say(frames.done(asked(peer, "orders"), ROWS))
    sent = peer.frame()
    sending.join(WAIT_S)
    assert sent.partitions == [1, 0, None]
    assert [call[1] for call in partitioner.calls] == [b"k", None]


def test_a_partition_that_is_none_of_the_topics_fails_the_call_and_nothing_is_sent(
    daemon: FakeDaemon, make: Make
) -> None:
    producer = make(partitioner=ByLength())
    failures: list[Exception] = []

    def send() -> None:
        for call in (
            lambda: producer.send("orders", b"v", b"four"),
            lambda: producer.send_many("orders", [b"v"], [b"four"]),
        ):
            try:
                _ = call()
            except ValueError as error:
                failures.append(error)
        _ = producer.send("orders", b"good", b"k")

    sending = beside(send)
    peer = daemon.accept()
    _ = peer.greet()
    peer.say(frames.done(asked(peer, "orders"), ROWS))
    sent = peer.frame()
    sending.join(WAIT_S)
    assert sent.values == [b"good"]
    text = "the partitioner chose partition 4 of topic orders, which has 0 to 2"
    assert [str(error) for error in failures] == [text, text]


def test_what_it_raises_the_call_raises(daemon: FakeDaemon, make: Make) -> None:
    def broken(*_: object) -> int:
        raise KeyError("no idea")

    producer = make(partitioner=broken)
    raised: list[Exception] = []

    def send() -> None:
        try:
            _ = producer.send("orders", b"v")
        except KeyError as error:
            raised.append(error)

    sending = beside(send)
    peer = daemon.accept()
    _ = peer.greet()
    peer.say(frames.done(asked(peer, "orders"), ROWS))
    sending.join(WAIT_S)
    assert [error.args for error in raised] == [("no idea",)]
    assert producer.held_bytes == 0


def test_a_topic_that_is_not_there_is_said_so(daemon: FakeDaemon, make: Make) -> None:
    producer = make(partitioner=ByLength())
    raised: list[RefusedError] = []

    def send() -> None:
        try:
            _ = producer.send("nothing", b"v")
        except RefusedError as error:
            raised.append(error)

    sending = beside(send)
    peer = daemon.accept()
    _ = peer.greet()
    peer.say(frames.refused(asked(peer, "nothing"), Code.UNKNOWN_TOPIC, "no topic nothing"))
    sending.join(WAIT_S)
    assert [error.code for error in raised] == [Code.UNKNOWN_TOPIC]


def test_a_daemon_that_says_nothing_is_waited_for_no_longer_than_for_room(make: Make) -> None:
    producer = make(partitioner=ByLength(), max_block_ms=20)
    with pytest.raises(WaitTimeoutError, match=r"no answer within 0\.02 s"):
        _ = producer.send("orders", b"v")


def test_partitions_can_be_asked_for_without_waiting_and_a_refusal_is_no_news(daemon: FakeDaemon, make: Make) -> None:
    producer = make()
    future = producer.send("orders", b"v")
    peer = daemon.accept()
    _ = peer.greet()
    peer.deliver(peer.frame())
    _ = future.result(WAIT_S)
    told: list[Sequence[PartitionMetadata]] = []
    heard = threading.Event()

    def learn(partitions: Sequence[PartitionMetadata]) -> None:
        told.append(partitions)
        heard.set()

    producer._session.ask_partitions("orders", learn)
    peer.say(frames.refused(asked(peer, "orders"), Code.NO_METADATA, "not now"))
    producer._session.ask_partitions("orders", learn)
    peer.say(frames.done(asked(peer, "orders"), ROWS))
    assert heard.wait(WAIT_S)
    assert told == [[PartitionMetadata(*row) for row in ROWS]]
