"""Records of every kind through the daemon into real Kafka, spelled out by hand on the socket and read back by others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kafka.partitioner import murmur2

from tests.harness.checker import judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.ledger import Level
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.log_files import CODECS, batches_of
from tests.harness.raw_session import PARTITIONS as PARTITIONS_VERB
from tests.harness.raw_session import Acked, RawSession, Refused
from tests.harness.readers import read_topic, read_topic_by_java
from tests.harness.records import Found, Shape

from .conftest import count_from

PARTITIONS: Final = 6


@pytest.fixture(scope="module")
def shared_daemon(kafka_one: Cluster) -> Iterator[Daemon]:
    """A daemon that chooses the codec by the end of a topic's name."""
    codecs = {f'topics."*-{codec}"': {"compression.type": codec} for codec in CODECS}
    with Daemon(kafka_one.bootstrap, sections=codecs) as running:
        running.start()
        yield running


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """The daemon, none of whose processes may die: a quick restart could hide it."""
    before = shared_daemon.pids()
    yield shared_daemon
    assert shared_daemon.pids() == before, "a process of the daemon died"


def found_by_place(cluster: Cluster, topic: str) -> dict[tuple[int, int], Found]:
    """Everything in the topic, by where it is."""
    return {(each.partition, each.offset): each for each in read_topic(cluster, topic)}


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_shape_arrive_in_every_codec(
    kafka_one: Cluster, daemon: Daemon, topic_name: str, tmp_path: Path, codec: str
) -> None:
    topic = kafka_one.create_topic(f"{topic_name}-{codec}", PARTITIONS)
    records = count_from("PENSTOCK_RECORDS", 12_000) // 4
    kinds = [
        (Level.DELIVERED, 1, Shape(key_count=50)),
        (Level.DELIVERED, 20, Shape(key_count=50, headers=True, timestamps=True, null_every=5)),
        (Level.SPOOLED, 200, Shape(value_bytes=1024)),
        (Level.ACCEPTED, 7, Shape(value_bytes=300, headers=True)),
    ]
    jobs = [
        Job(
            through="penstock",
            address=str(daemon.socket_path),
            client=f"{topic_name[-8:]}-{number}",
            topic=topic,
            ledger=str(tmp_path / f"app-{number}.ledger"),
            records=records,
            level=int(level),
            frame_records=frame_records,
            shape=shape,
        )
        for number, (level, frame_records, shape) in enumerate(kinds)
    ]
    with Load(jobs, tmp_path) as load:
        load.wait_done(seconds=60)
    figures = judge(load.ledgers(), read_topic(kafka_one, topic))
    assert figures.wrong() == []
    assert (figures.found, figures.unknown, figures.failed) == (4 * records, 0, 0)
    if isinstance(kafka_one, OwnCluster):
        batches = batches_of(kafka_one, topic)
        assert {batch.codec for batch in batches} == {codec}
        assert len({(batch.producer_id, batch.producer_epoch) for batch in batches}) == 1
        assert all(batch.producer_id >= 0 and batch.base_sequence >= 0 for batch in batches)


KEYS: Final = (None, b"", b"k", b"\x00\xff" * 10, b"key")
VALUES: Final = (b"", None, b"v", b"\x00\n\xff", b"value")
HEADERS: Final[tuple[tuple[tuple[str, bytes | None], ...], ...]] = (
    (),
    (("name", b"value"),),
    (("twice", b"1"), ("twice", b"2"), ("nothing", None)),
    (("", b""), ("größe", b"\xff\x00")),
    (("many", b"x"),) * 40,
)


@pytest.mark.parametrize("codec", CODECS)
def test_each_byte_of_key_value_headers_and_timestamp_comes_back(
    kafka_one: Cluster, daemon: Daemon, topic_name: str, codec: str
) -> None:
    topic = kafka_one.create_topic(f"{topic_name}-{codec}", PARTITIONS)
    rows = [
        (key, value, headers, stamp)
        for key in KEYS
        for value in VALUES
        for headers in HEADERS
        for stamp in (0, 1_700_000_000_000)
    ]
    with RawSession(daemon.socket_path, f"app-{topic_name[-8:]}") as session:
        seq = session.send(
            topic,
            [value for _, value, _, _ in rows],
            keys=[key for key, _, _, _ in rows],
            headers=[[part for pair in headers for part in pair] or None for _, _, headers, _ in rows],
            timestamps=[stamp for _, _, _, stamp in rows],
        )
        answer = session.acked(seq)
    assert answer.level == Level.DELIVERED
    found = found_by_place(kafka_one, topic)
    assert len(found) == len(rows)
    for place, row in zip(answer.places(), rows, strict=True):
        there = found[place]
        assert (there.key, there.value, there.headers, there.timestamp_ms) == row


def test_kafkas_own_console_consumer_prints_what_was_sent(kafka_one: Cluster, daemon: Daemon, topic_name: str) -> None:
    topic = kafka_one.create_topic(f"{topic_name}-lz4", PARTITIONS)
    count = 500
    with RawSession(daemon.socket_path) as session:
        seq = session.send(
            topic,
            [b"value-%d" % number if number % 10 else None for number in range(count)],
            keys=[b"key-%d" % number if number % 3 else None for number in range(count)],
            headers=[["h", b"%d" % number, "none", None] for number in range(count)],
            timestamps=1_700_000_000_123,
        )
        places = session.acked(seq).places()
    version = "4.3.1" if kafka_one.version == "existing" else kafka_one.version
    printed = {(each.partition, each.offset): each for each in read_topic_by_java(kafka_one, topic, version=version)}
    assert len(printed) == count
    for number, place in enumerate(places):
        line = printed[place]
        assert line.value == (f"value-{number}" if number % 10 else "null")
        assert line.key == (f"key-{number}" if number % 3 else "null")
        assert line.headers == f"h:{number},none:null"
        assert line.timestamp_ms == 1_700_000_000_123


def test_a_key_goes_where_javas_partitioner_puts_it(kafka_one: Cluster, daemon: Daemon, topic_name: str) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    keys = [b"", b"\x00", *(b"key-%d" % number for number in range(300)), *(b"\xff" * size for size in range(1, 20))]
    with RawSession(daemon.socket_path) as session:
        answer = session.acked(session.send(topic, keys, keys=keys))
    assert answer.partitions == [(murmur2(key) & 0x7FFFFFFF) % PARTITIONS for key in keys]


def test_a_partition_that_is_named_is_the_one_used(kafka_one: Cluster, daemon: Daemon, topic_name: str) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    with RawSession(daemon.socket_path) as session:
        for_all = session.acked(session.send(topic, [b"a", b"b"], keys=[b"k", None], partitions=4))
        for_each = session.acked(session.send(topic, [b"c", b"d", b"e"], partitions=[5, 0, 5]))
        nowhere = session.answer(session.send(topic, [b"f"], partitions=PARTITIONS))
    assert for_all.places() == [(4, 0), (4, 1)]
    assert for_each.places() == [(5, 0), (0, 0), (5, 1)]
    assert isinstance(nowhere, Refused)
    assert nowhere.code == "bad_partition"


def test_a_frame_resent_under_its_sequence_is_answered_and_not_written_again(
    kafka_one: Cluster, daemon: Daemon, topic_name: str
) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    name = f"app-{topic_name[-8:]}"
    values = [b"%d" % number for number in range(100)]
    with RawSession(daemon.socket_path, name) as session:
        seq = session.send(topic, values)
        assert session.acked(seq).level == Level.DELIVERED
    with RawSession(daemon.socket_path, name) as session:
        assert session.high == seq
        again = session.answer(session.send(topic, values, seq=seq))
        assert isinstance(again, Acked)
        assert again.level == Level.DELIVERED
    assert sorted(each.value or b"" for each in read_topic(kafka_one, topic)) == sorted(values)


def test_a_missing_topic_is_a_definite_no_and_the_session_goes_on(
    kafka_one: Cluster, daemon: Daemon, topic_name: str
) -> None:
    topic = kafka_one.create_topic(topic_name, 1)
    with RawSession(daemon.socket_path, f"app-{topic_name[-8:]}") as session:
        missing = session.answer(session.send(f"{topic}-missing", [b"a"]))
        assert isinstance(missing, Refused)
        assert missing.code == "unknown_topic"
        assert f"{topic}-missing" in missing.text
        assert session.acked(session.send(topic, [b"b"])).places() == [(0, 0)]


def test_records_that_kafka_refuses_are_parked_and_the_rest_goes_on(
    kafka_one: Cluster, daemon: Daemon, topic_name: str
) -> None:
    # A compacted topic takes no record without a key, and says which one it was.
    topic = kafka_one.create_topic(topic_name, 1, config={"cleanup.policy": "compact"})
    with RawSession(daemon.socket_path, f"app-{topic_name[-8:]}") as session:
        seq = session.send(topic, [b"a", b"b", b"c"], keys=[b"1", None, b"3"], partitions=0)
        mixed = session.answer(seq)
        after = session.acked(session.send(topic, [b"d"], keys=[b"4"]))
    assert isinstance(mixed, Acked)
    assert mixed.refused is not None
    assert [(first, count, code) for first, count, code, _ in mixed.refused] == [(1, 1, "parked")]
    assert "INVALID_RECORD" in mixed.refused[0][3].upper().replace(" ", "_")
    assert after.level == Level.DELIVERED
    assert [each.value for each in read_topic(kafka_one, topic)] == [b"a", b"c", b"d"]


def test_a_batch_the_topic_finds_too_large_is_split_and_a_single_record_that_is_too_large_is_parked(
    kafka_one: Cluster, daemon: Daemon, topic_name: str
) -> None:
    topic = kafka_one.create_topic(topic_name, 1, config={"max.message.bytes": "20000"})
    small = [b"%03d" % number * 300 for number in range(100)]
    with RawSession(daemon.socket_path, f"app-{topic_name[-8:]}") as session:
        whole = session.send(topic, small)
        large = session.send(topic, [b"x" * 50_000])
        last = session.send(topic, [b"last"])
        assert [offset for _, offset in session.acked(whole).places()] == list(range(100))
        parked = session.answer(large)
        assert session.acked(last).level == Level.DELIVERED
    assert isinstance(parked, Acked)
    assert parked.refused is not None
    assert [(first, count, code) for first, count, code, _ in parked.refused] == [(0, 1, "parked")]
    assert [each.value for each in read_topic(kafka_one, topic)] == [*small, b"last"]


def test_partitions_are_told_with_their_leaders_and_replicas(
    kafka_one: Cluster, daemon: Daemon, topic_name: str
) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    with RawSession(daemon.socket_path) as session:
        rows = session.ask(PARTITIONS_VERB, topic)
    leaders = kafka_one.leaders(topic)
    replicas = kafka_one.replicas_of(topic)
    assert sorted(rows) == [[number, leaders[number], replicas[number], replicas[number]] for number in sorted(leaders)]
