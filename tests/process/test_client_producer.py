"""The client library against a daemon that the test plays."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock.client import (
    BufferExhaustedError,
    ClosedError,
    OutcomeUnknownError,
    PenstockError,
    Producer,
    RecordMetadata,
    RefusedError,
    SessionError,
    WaitTimeoutError,
)
from penstock.wire import frames
from penstock.wire.frames import Ack, Code, PartitionInfo, RefusedRecords, Run, Type

from tests.fakes.fake_daemon import FakeDaemon, Peer

WAIT_S = 60.0

Make = Callable[..., Producer]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path) as fake:
        yield fake


@pytest.fixture
def make(daemon: FakeDaemon) -> Iterator[Make]:
    made: list[Producer] = []

    def new(**options: Any) -> Producer:
        producer = Producer(daemon.path, **options)
        made.append(producer)
        return producer

    yield new
    for producer in made:
        producer.close(0)


def met(daemon: FakeDaemon, high: int = -1, **limits: int) -> Peer:
    peer = daemon.accept()
    _ = peer.greet(high, **limits)
    return peer


@pytest.mark.fault("K12", "K21")
def test_records_sent_together_share_a_frame_and_each_learns_its_offset(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=10_000)
    futures = [producer.send("orders", b"v%d" % i, b"k%d" % i) for i in range(3)]
    peer = met(daemon)
    assert peer.quiet(0.05)
    flusher = threading.Thread(target=producer.flush)
    flusher.start()
    sent = peer.frame()
    assert sent[1:] == (2, "orders", None, [b"k0", b"k1", b"k2"], [b"v0", b"v1", b"v2"], None, None)
    assert peer.message()[0] == Type.FLUSH
    assert not futures[0].done()
    runs = [Run(5, 7, 1, -1), Run(1, 40, 1, 99), Run(5, 8, 1, -1)]
    peer.ack(sent.seq, runs=runs, partitions=[5, 1, 5], flags=1)
    flusher.join(WAIT_S)
    assert not flusher.is_alive()
    places = [future.result(WAIT_S)[1:4] for future in futures]
    assert places == [(5, 7, -1), (1, 40, 99), (5, 8, -1)]
    assert futures[0].result() == RecordMetadata("orders", 5, 7, -1, "delivered", single_replica=True)
    assert producer.held_bytes == 0


def test_a_lingering_record_is_written_when_its_time_is_up(daemon: FakeDaemon, make: Make) -> None:
    future = make(linger_ms=20).send("orders", b"v")
    peer = met(daemon)
    peer.deliver(peer.frame(), partition=3, offset=9)
    assert future.result(WAIT_S)[1:3] == (3, 9)


def test_a_full_column_does_not_wait_for_its_linger(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=60_000, batch_bytes=5_000)
    peer_future = producer.send("orders", b"x" * 3_000)
    _ = producer.send("orders", b"x" * 3_000)
    peer = met(daemon)
    sent = peer.frame()
    assert len(sent.values) == 1
    peer.deliver(sent)
    assert peer_future.result(WAIT_S).offset == 100
    assert peer.quiet(0.05)


def test_everything_of_a_record_reaches_the_frame(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=50, level="accepted")
    _ = producer.send("orders", b"a")
    _ = producer.send("orders", None, bytearray(b"k"), headers=[("h", b"1"), ("n", None)], partition=4, timestamp_ms=77)
    _ = producer.send("orders", memoryview(b"c"))
    sent = met(daemon).frame()
    assert sent[1:] == (
        0,
        "orders",
        [None, 4, None],
        [None, b"k", None],
        [b"a", None, b"c"],
        [None, ["h", b"1", "n", None], None],
        [None, 77, None],
    )


def test_records_of_a_topic_keep_their_order_whatever_their_level(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=20)
    for level in ("delivered", "accepted", "accepted", "spooled"):
        _ = producer.send("orders", level.encode(), level=level)
    _ = producer.send_many("orders", [b"many"])
    peer = met(daemon)
    frames_seen = [peer.frame() for _ in range(4)]
    assert [sent.values for sent in frames_seen] == [[b"delivered"], [b"accepted"] * 2, [b"spooled"], [b"many"]]
    assert [sent.level for sent in frames_seen] == [2, 0, 1, 2]
    assert sorted({sent.seq for sent in frames_seen}) == [sent.seq for sent in frames_seen]


@pytest.mark.fault("K12", "K22")
def test_whole_columns_are_written_at_once_and_answered_as_one(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=60_000)
    heard: list[tuple[object, object]] = []
    done = threading.Event()

    def on_ack(metadata: object, error: object) -> None:
        heard.append((metadata, error))
        done.set()

    future = producer.send_many(
        "orders",
        [b"a", b"b"],
        (b"k", None),
        headers=[None, [("h", b"x")]],
        partitions=2,
        timestamps_ms=5,
        on_ack=on_ack,
    )
    peer = met(daemon)
    sent = peer.frame()
    assert sent[1:] == (2, "orders", 2, [b"k", None], [b"a", b"b"], [None, ["h", b"x"]], 5)
    peer.deliver(sent, partition=2, offset=50)
    metadata = future.result(WAIT_S)
    assert (metadata.count, metadata.runs, metadata.partitions) == (2, [(2, 50, 2, -1)], [2, 2])
    assert done.wait(WAIT_S)
    assert heard == [(metadata, None)]


def test_columns_larger_than_a_frame_are_cut_and_their_answers_joined(daemon: FakeDaemon, make: Make) -> None:
    producer = make()
    values = [b"%04d" % i + b"x" * 1000 for i in range(2000)]
    heard: list[object] = []
    future = producer.send_many("orders", values, keys=[b"k"] * 2000, on_ack=lambda *one: heard.append(one))
    peer = met(daemon)
    seen: list[bytes] = []
    while len(seen) < 2000:
        sent = peer.frame()
        assert len(sent.keys) == len(sent.values)
        assert not future.done()
        peer.deliver(sent, partition=1, offset=len(seen))
        seen += sent.values
    assert seen == values
    metadata = future.result(WAIT_S)
    assert (metadata.count, sum(run.count for run in metadata.runs)) == (2000, 2000)
    assert [run.offset for run in metadata.runs] == sorted(run.offset for run in metadata.runs)
    producer.flush(WAIT_S)
    assert heard == [(metadata, None)]


def test_a_record_too_large_for_any_frame_is_refused_at_once(daemon: FakeDaemon, make: Make) -> None:
    producer = make(buffer_bytes_max=8 << 20)
    with pytest.raises(RefusedError, match="too_large"):
        producer.send("orders", bytes(1 << 20))
    with pytest.raises(RefusedError, match="record 1 takes"):
        producer.send_many("orders", [b"a", bytes(1 << 20), b"b"])
    with pytest.raises(ValueError, match="in pieces"):
        producer.send_many("orders", [bytes(500_000)] * 20)
    assert producer.held_bytes == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("orders", "text"), TypeError),
        (("orders", b"v", "text"), TypeError),
        (("no topic", b"v"), ValueError),
        (("", b"v"), ValueError),
    ],
)
def test_what_is_no_record_is_refused_where_it_is_sent(
    make: Make, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make().send(*arguments)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partition": -1}, ValueError),
        ({"partition": True}, TypeError),
        ({"timestamp_ms": 1 << 63}, ValueError),
        ({"timestamp_ms": 1.5}, TypeError),
        ({"headers": [("h", "text")]}, TypeError),
        ({"headers": [(b"h", b"v")]}, TypeError),
        ({"level": "sent"}, ValueError),
    ],
)
def test_what_is_no_option_is_refused_where_it_is_sent(
    make: Make, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make().send("orders", b"v", **options)


def test_columns_of_unequal_length_are_refused_where_they_are_sent(make: Make) -> None:
    producer = make()
    with pytest.raises(ValueError, match="keys has 1 items for 2"):
        producer.send_many("orders", [b"a", b"b"], [b"k"])
    with pytest.raises(ValueError, match="no record"):
        producer.send_many("orders", [])
    with pytest.raises(TypeError):
        producer.send_many("orders", b"bytes")  # type: ignore[arg-type]


@pytest.mark.fault("K2", "K7")
def test_a_refused_frame_fails_its_records_and_leaves_others_alone(daemon: FakeDaemon, make: Make) -> None:
    errors: list[PenstockError] = []
    producer = make(linger_ms=1, on_error=errors.append)
    heard: list[object] = []
    future = producer.send("orders", b"v", on_ack=lambda metadata, error: heard.append((metadata, error)))
    many = producer.send_many("other", [b"v", b"w"])
    peer = met(daemon)
    one, two = sorted((peer.frame(), peer.frame()), key=lambda sent: sent.topic)
    peer.say(frames.refused(two.seq, Code.UNKNOWN_TOPIC, "there is no topic orders", 500))
    peer.say(frames.refused(one.seq, Code.BUSY, "the spool is full"))
    with pytest.raises(RefusedError) as caught:
        _ = (future if two.topic == "orders" else many).result(WAIT_S)
    assert (caught.value.code, caught.value.retry_ms) == ("unknown_topic", 500)
    assert isinstance(future.exception(WAIT_S), RefusedError)
    assert isinstance(many.exception(WAIT_S), RefusedError)
    producer.flush(WAIT_S)
    assert len(heard) == 1
    assert len(errors) == 2
    later = producer.send("orders", b"again")
    peer.deliver(peer.frame())
    assert later.result(WAIT_S).offset == 100


def test_records_that_did_not_share_their_frames_outcome_fail_alone(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=10_000)
    futures = [producer.send("orders", b"v%d" % i) for i in range(4)]
    many = producer.send_many("orders", [b"a", b"b"])
    peer = met(daemon)
    sent = peer.frame()
    refused = [RefusedRecords(1, 1, "parked", "too old"), RefusedRecords(3, 1, "expired_may_be_written", "late")]
    peer.say(frames.acks([Ack(sent.seq, 2, [Run(0, 10, 2, -1)], None, refused)]))
    assert [futures[i].result(WAIT_S).offset for i in (0, 2)] == [10, 11]
    with pytest.raises(RefusedError, match="parked: too old") as one:
        _ = futures[1].result()
    assert [each[:2] for each in one.value.refused] == [(0, 1)]
    with pytest.raises(OutcomeUnknownError):
        _ = futures[3].result()
    sent = peer.frame()
    peer.say(frames.acks([Ack(sent.seq, 2, [Run(0, 12, 1, -1)], None, [RefusedRecords(1, 1, "parked", "no")])]))
    with pytest.raises(RefusedError) as caught:
        _ = many.result(WAIT_S)
    assert [one[:3] for one in caught.value.refused] == [(1, 1, "parked")]


@pytest.mark.fault("K9")
def test_what_has_no_answer_is_sent_again_in_order_under_the_same_sequences(daemon: FakeDaemon, make: Make) -> None:
    producer = make(client_id="app", linger_ms=0)
    futures = [producer.send_many("orders", [b"%d" % i]) for i in range(4)]
    peer = daemon.accept()
    assert peer.greet(high=41) == [Type.HELLO, 1, "app", {"detail": "records"}]
    first = [peer.frame() for _ in range(4)]
    assert [sent.seq for sent in first] == [42, 43, 44, 45]
    peer.deliver(first[1])
    assert futures[1].result(WAIT_S).count == 1
    peer.close()
    peer = daemon.accept()
    assert peer.greet(high=45)[3] == {"detail": "records", "unanswered_from": 42}
    again = [peer.frame() for _ in range(3)]
    assert again == [first[0], first[2], first[3]]
    later = producer.send_many("orders", [b"later"])
    assert peer.frame().seq == 46
    for sent in again:
        peer.deliver(sent)
    peer.ack(46)
    assert all(future.result(WAIT_S).count == 1 for future in (*futures, later))


def test_frames_wait_for_a_daemon_that_is_not_there_yet(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.stop_listening()
        Path(daemon.path).unlink()
        with Producer(daemon.path) as producer:
            future = producer.send("orders", b"v")
            with pytest.raises(WaitTimeoutError):
                _ = future.result(0.1)
            daemon.listen()
            peer = met(daemon)
            peer.deliver(peer.frame())
            assert future.result(WAIT_S).offset == 100


def test_a_half_written_frame_is_written_whole_to_the_next_connection(daemon: FakeDaemon, make: Make) -> None:
    producer = make(client_id="app")
    values = [bytes([i]) * 100_000 for i in range(40)]
    futures = [producer.send_many("orders", [value]) for value in values]
    peer = met(daemon)
    _ = peer.frame()
    peer.close()
    peer = met(daemon, high=0)
    again = [peer.frame() for _ in range(40)]
    assert [sent.values for sent in again] == [[value] for value in values]
    assert [sent.seq for sent in again] == list(range(40))
    for sent in again:
        peer.deliver(sent)
    assert futures[-1].result(WAIT_S).count == 1


def test_frames_refused_by_a_daemon_that_stops_go_to_the_next_one_in_order(daemon: FakeDaemon, make: Make) -> None:
    errors: list[PenstockError] = []
    producer = make(client_id="app", on_error=errors.append)
    futures = [producer.send_many("orders", [b"%d" % i]) for i in range(4)]
    peer = met(daemon)
    sent = [peer.frame() for _ in range(4)]
    peer.say(frames.refused(sent[1].seq, Code.DRAINING, "the daemon is about to stop"))
    peer.say(frames.refused(sent[2].seq, Code.DRAINING, "the daemon is about to stop"))
    late = producer.send_many("orders", [b"late"])
    assert peer.quiet(0.05)
    peer.deliver(sent[0])
    peer.close()
    peer = met(daemon, high=0)
    again = [peer.frame() for _ in range(4)]
    assert [one.values for one in again] == [[b"1"], [b"2"], [b"3"], [b"late"]]
    assert [one.seq for one in again] == sorted(one.seq for one in again)
    assert again[0].seq > sent[3].seq
    for one in again:
        peer.deliver(one)
    assert all(future.result(WAIT_S).count == 1 for future in (*futures, late))
    assert errors == []


def test_a_client_id_that_somebody_else_uses_too_is_an_error(daemon: FakeDaemon, make: Make) -> None:
    producer = make(client_id="app")
    future = producer.send("orders", b"v")
    peer = met(daemon)
    _ = peer.frame()
    peer.close()
    _ = met(daemon, high=1000)
    assert isinstance(future.exception(WAIT_S), OutcomeUnknownError)
    with pytest.raises(SessionError, match="sequence 1000"):
        producer.send("orders", b"v")


def test_a_session_refused_for_good_fails_everything_with_the_reason(daemon: FakeDaemon, make: Make) -> None:
    errors: list[PenstockError] = []
    producer = make(client_id="app", on_error=errors.append)
    future = producer.send("orders", b"v")
    peer = daemon.accept()
    _ = peer.message()
    peer.say(frames.refused(None, Code.CLIENT_ID_IN_USE_BY_ANOTHER_USER, "client id app belongs to another user"))
    peer.close()
    with pytest.raises(SessionError, match="another user"):
        _ = future.result(WAIT_S)
    with pytest.raises(SessionError):
        producer.send("orders", b"v")
    assert isinstance(errors[0], SessionError)


def test_a_session_ended_in_passing_is_opened_again(daemon: FakeDaemon, make: Make) -> None:
    future = make().send("orders", b"v")
    peer = met(daemon)
    _ = peer.frame()
    peer.say(frames.refused(None, Code.LIMIT, "too many sessions"))
    peer.close()
    peer = met(daemon)
    peer.deliver(peer.frame())
    assert future.result(WAIT_S).offset == 100


@pytest.mark.fault("K5")
def test_a_full_buffer_blocks_and_then_says_so(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=0, batch_bytes=1_000, buffer_bytes_max=10_000, max_block_ms=100)
    first = producer.send("orders", b"x" * 6_000)
    with pytest.raises(BufferExhaustedError, match="6536 of 10000 bytes wait"):
        producer.send("orders", b"x" * 6_000)
    peer = met(daemon)
    peer.deliver(peer.frame())
    assert first.result(WAIT_S).offset == 100
    producer.flush(WAIT_S)
    assert producer.send("orders", b"x" * 6_000) is not None


@pytest.mark.fault("K18")
def test_a_send_that_waits_for_room_goes_on_when_answers_come(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=0, batch_bytes=1_000, buffer_bytes_max=10_000)
    _ = producer.send("orders", b"x" * 6_000)
    blocked = threading.Thread(target=producer.send, args=("orders", b"y" * 6_000))
    blocked.start()
    peer = met(daemon)
    sent = peer.frame()
    assert blocked.is_alive()
    peer.deliver(sent)
    assert peer.frame().values == [b"y" * 6_000]
    blocked.join(WAIT_S)
    assert not blocked.is_alive()


@pytest.mark.fault("K7")
def test_callbacks_run_before_flush_returns_and_their_errors_are_logged(
    daemon: FakeDaemon, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    producer = make(linger_ms=0)
    order: list[str] = []

    def fail(metadata: object, error: object) -> None:
        order.append("callback")
        raise RuntimeError("a fault of the application")

    future = producer.send("orders", b"v", on_ack=fail)
    peer = met(daemon)
    peer.deliver(peer.frame())
    producer.flush(WAIT_S)
    order.append("flushed")
    assert order == ["callback", "flushed"]
    assert future.result(0).offset == 100
    assert "callback_failed" in caplog.text


def test_a_callback_may_send_but_not_wait_for_itself(daemon: FakeDaemon, make: Make) -> None:
    producer = make(linger_ms=0)
    caught: list[BaseException] = []
    done = threading.Event()

    def again(metadata: object, error: object) -> None:
        _ = producer.send("orders", b"from a callback")
        for call in (producer.flush, producer.close, lambda: producer.partitions_for("orders")):
            try:
                call()
            except RuntimeError as trouble:
                caught.append(trouble)
        done.set()

    _ = producer.send("orders", b"v", on_ack=again)
    peer = met(daemon)
    peer.deliver(peer.frame())
    assert peer.frame().values == [b"from a callback"]
    assert done.wait(WAIT_S)
    assert len(caught) == 3


def test_partitions_are_asked_for_and_asked_again_after_a_lost_connection(daemon: FakeDaemon, make: Make) -> None:
    producer = make()
    found: list[object] = []
    asking = threading.Thread(target=lambda: found.append(producer.partitions_for("orders")))
    asking.start()
    peer = met(daemon)
    assert peer.message()[0::2] == [Type.PARTITIONS, "orders"]
    peer.close()
    peer = met(daemon)
    _, seq, topic = peer.message()
    peer.say(frames.done(seq, [PartitionInfo(0, 1, [1, 2], [1])]))
    asking.join(WAIT_S)
    assert found == [[(0, 1, [1, 2], [1])]]
    refused: list[BaseException] = []

    def ask() -> None:
        try:
            _ = producer.partitions_for("nothing")
        except RefusedError as error:
            refused.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    _, seq, topic = peer.message()
    peer.say(frames.refused(seq, Code.UNKNOWN_TOPIC, "there is no such topic"))
    asking.join(WAIT_S)
    assert (topic, len(refused)) == ("nothing", 1)


def test_close_sends_what_lingers_says_bye_and_takes_no_more(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.path, linger_ms=60_000)
    future = producer.send("orders", b"v")
    closing = threading.Thread(target=producer.close)
    closing.start()
    peer = met(daemon)
    peer.deliver(peer.frame())
    assert peer.message() == [Type.BYE]
    peer.close()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert future.result(0).offset == 100
    with pytest.raises(ClosedError):
        producer.send("orders", b"v")
    producer.close()


def test_close_with_a_time_limit_tells_what_was_never_written_from_what_may_be_there(daemon: FakeDaemon) -> None:
    never = Producer(daemon.path + ".not")
    lost = never.send("orders", b"v")
    never.close(0.05)
    assert type(lost.exception(0)) is ClosedError
    unanswered = Producer(daemon.path, linger_ms=0)
    maybe = unanswered.send("orders", b"v")
    _ = met(daemon).frame()
    unanswered.close(0.05)
    assert isinstance(maybe.exception(0), OutcomeUnknownError)


def test_a_producer_that_was_never_used_opens_no_session(daemon: FakeDaemon) -> None:
    Producer(daemon.path).close()
    assert daemon.is_quiet(0.05)


@pytest.mark.fault("K19")
def test_after_a_fork_the_child_has_a_session_of_its_own(daemon: FakeDaemon, make: Make) -> None:
    producer = make(client_id="app", linger_ms=0)
    future = producer.send("orders", b"parent")
    peer = met(daemon)
    sent = peer.frame()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            unknown = isinstance(future.exception(0), OutcomeUnknownError)
            offset = producer.send("orders", b"child").result(WAIT_S).offset
            producer.close(WAIT_S)
            code = 0 if unknown and offset == 7 else 2
        finally:
            os._exit(code)
    child = daemon.accept()
    assert child.greet()[2] == f"app.{pid}"
    second = child.frame()
    assert second.values == [b"child"]
    peer.deliver(sent)
    assert future.result(WAIT_S).offset == 100
    child.deliver(second, offset=7)
    assert child.message() == [Type.BYE]
    child.close()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    still = producer.send("orders", b"parent again")
    peer.deliver(peer.frame())
    assert still.result(WAIT_S).offset == 100


def test_many_threads_may_send_and_every_record_arrives_once_in_its_threads_order(
    daemon: FakeDaemon, make: Make
) -> None:
    producer = make(linger_ms=1, batch_bytes=2_000)

    def work(name: int) -> None:
        for i in range(500):
            _ = producer.send("orders", b"%d %d" % (name, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    peer = met(daemon)
    seen: list[bytes] = []
    while len(seen) < 2000:
        sent = peer.frame()
        seen += sent.values
        peer.deliver(sent)
    for n in range(4):
        assert [value for value in seen if value.startswith(b"%d " % n)] == [b"%d %d" % (n, i) for i in range(500)]
    producer.flush(WAIT_S)
    assert producer.held_bytes == 0
    for thread in threads:
        thread.join(WAIT_S)


def test_an_answer_that_is_no_message_ends_the_connection_and_nothing_is_lost(daemon: FakeDaemon, make: Make) -> None:
    future = make(linger_ms=0).send("orders", b"v")
    for rubbish in (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"HTTP/1.1 400 Bad Request\r\n"):
        peer = met(daemon)
        sent = peer.frame()
        peer.say(rubbish)
        assert peer.is_closed()
    peer = met(daemon)
    assert peer.frame() == sent
    peer.deliver(sent)
    assert future.result(WAIT_S).offset == 100


def test_a_producer_nobody_holds_ends_its_session_when_all_is_answered(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.path, linger_ms=0)
    future = producer.send("orders", b"v")
    peer = met(daemon)
    sent = peer.frame()
    del producer
    assert peer.quiet(0.05)
    peer.deliver(sent)
    assert future.result(WAIT_S).offset == 100
    assert peer.message() == [Type.BYE]


def test_a_program_that_ends_without_closing_still_sends_what_it_took(daemon: FakeDaemon) -> None:
    pid = os.fork()
    if pid == 0:
        os.execv(
            sys.executable,
            [
                sys.executable,
                "-c",
                f"from penstock.client import Producer; p = Producer({daemon.path!r}, linger_ms=60000); p.send('orders', b'v')",
            ],
        )
    try:
        peer = met(daemon)
        sent = peer.frame()
        assert sent.values == [b"v"]
        peer.deliver(sent)
        assert peer.message() == [Type.BYE]
        peer.close()
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
