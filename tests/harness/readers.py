"""Reading a topic back with clients that are not ours: librdkafka's, and the console consumer of Kafka's own tools."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from penstock.wire import record_ids

from .kafka_cluster import Cluster
from .kafka_node import kafka_libs
from .processes import PATIENCE, Deadline
from .records import Found

FETCH_RECORDS = 10_000
FENCE: Final = b"\x00fence\x00"
# librdkafka goes on by itself after these.
PASSING_ERRORS: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PARTITION_EOF})


def _found(message: Message) -> Found:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    headers = message.headers() or []
    # librdkafka gives a list of pairs; the declared type also names what a producer may hand in.
    assert isinstance(headers, list)
    plain = tuple((name, body.encode() if isinstance(body, str) else body) for name, body in headers)
    numbered: tuple[int, int, int] | None = None
    if plain and plain[-1][0] == record_ids.HEADER:
        numbered = record_ids.RecordId.unpack(plain[-1][1] or b"")[:3]
        plain = plain[:-1]
    assert all(name != record_ids.HEADER for name, _ in plain), f"an id that is not the last header, at {offset}"
    return Found(partition, offset, key, value, plain, message.timestamp()[1], numbered)


def _reader(cluster: Cluster) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "penstock-tests-read",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "check.crcs": True,
            "log_level": 2,
        }
    )


def read_topic(cluster: Cluster, topic: str, *, seconds: float = 120) -> Iterator[Found]:
    """Every record of a topic, each partition in offset order, up to a last record that this function adds.

    An end offset alone would not do: after a change of leaders the new one, or one that does not know yet that it was
    deposed, tells an older end for a while. So a *fence*, written with acks=all, ends each partition here, and the
    reader goes on until it has met them all. Fences are left out, also those of earlier readings. Raise TooLateError, or
    KafkaException.
    """
    deadline = Deadline(seconds, f"reading {topic} back")
    fences = _write_fences(cluster, topic, deadline)
    begins = cluster.offsets(topic)
    assert all(begin == 0 for begin, _ in begins.values()), f"{topic} has lost its beginning: {begins}"
    expected = dict.fromkeys(begins, 0)
    reader = _reader(cluster)
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in begins])
        while fences:
            for message in reader.consume(FETCH_RECORDS, timeout=min(1.0, deadline.left())):
                if (error := message.error()) is not None:
                    if error.retriable() or error.code() in PASSING_ERRORS:
                        continue
                    raise KafkaException(error)
                found = _found(message)
                if found.partition in fences:
                    # No topic of a test is compacted before it is read, or transactional: every offset holds a record.
                    skipped = f"the reader skipped to {found.partition}@{found.offset}"
                    assert found.offset == expected[found.partition], skipped
                    expected[found.partition] += 1
                if found.offset == fences.get(found.partition):
                    del fences[found.partition]
                elif found.partition in fences and not (found.value or b"").startswith(FENCE):
                    yield found
    finally:
        reader.close()


def read_committed(cluster: Cluster, topic: str, *, seconds: float = 30) -> list[Found]:
    """What a reader of committed records gets of a topic now, up to where transactions that are open hold it back. Raise
    TooLateError, or KafkaException."""
    deadline = Deadline(seconds, f"reading what is committed of {topic}")
    partitions = sorted(cluster.metadata(topic).topics[topic].partitions)
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "penstock-tests-committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 2,
        }
    )
    read: list[Found] = []
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in partitions])
        left = set(partitions)
        while left:
            for message in reader.consume(FETCH_RECORDS, timeout=min(1.0, deadline.left())):
                error = message.error()
                if error is None:
                    read.append(_found(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                elif not error.retriable() and error.code() not in PASSING_ERRORS:
                    raise KafkaException(error)
    finally:
        reader.close()
    return read


def _write_fences(cluster: Cluster, topic: str, deadline: Deadline) -> dict[int, int]:
    """Add one record to the end of each partition; partition to its offset."""
    fences: dict[int, int] = {}

    def written(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        fences[partition] = offset

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 2})
    partitions = sorted(cluster.metadata(topic).topics[topic].partitions)
    for number in partitions:
        # With a key, which compacted topics insist on.
        producer.produce(topic, FENCE + b"%d" % number, FENCE, partition=number, on_delivery=written)
    assert producer.flush(deadline.left()) == 0, f"{topic} takes no records"
    assert sorted(fences) == partitions
    return fences


JAVA_SEPARATOR: Final = "\x1f"
JAVA_ID: Final = re.compile(r"(?:^|,)penstock:\\x01.*$")
JAVA_PREFIX: Final = re.compile(r"(?:CreateTime|LogAppendTime|NoTimestampType):(-?\d+)")


class JavaFound(NamedTuple):
    """One record as the console consumer printed it; texts, because it prints texts. A daemon's id is left out of `headers`."""

    partition: int
    offset: int
    timestamp_ms: int
    headers: str
    key: str
    value: str


def _java_found(line: str) -> JavaFound:
    fields = line.split(JAVA_SEPARATOR)
    assert len(fields) == 6, f"not a line of the console consumer: {line[:200]!r}"
    stamp = JAVA_PREFIX.fullmatch(fields[0])
    assert stamp is not None, line[:200]
    return JavaFound(
        partition=int(fields[1].removeprefix("Partition:")),
        offset=int(fields[2].removeprefix("Offset:")),
        timestamp_ms=int(stamp[1]),
        headers=JAVA_ID.sub("", fields[3]) or "NO_HEADERS",
        key=fields[4],
        value=fields[5],
    )


def read_topic_by_java(cluster: Cluster, topic: str, *, version: str, seconds: float = 60) -> list[JavaFound]:
    """Every record up to this moment's end offsets, by Kafka's own ConsoleConsumer; keys and values must be text lines.

    `version` is that of the consumer's jars. A null shows as the word `null`. Raise CalledProcessError, TimeoutExpired.
    """
    wanted = cluster.record_count(topic)
    if wanted == 0:
        return []
    result = subprocess.run(
        _java_command(cluster, topic, version=version, wanted=wanted),
        check=True,
        capture_output=True,
        timeout=seconds * PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    # Not splitlines(): it also splits at control characters, which a value may hold.
    return [_java_found(line) for line in result.stdout.decode(errors="surrogateescape").split("\n") if line]


def _java_command(cluster: Cluster, topic: str, *, version: str, wanted: int) -> Sequence[str]:
    properties = {
        "print.timestamp": "true",
        "print.partition": "true",
        "print.offset": "true",
        "print.headers": "true",
        # Prints what is not ASCII as escapes: the id's bytes may be anything, line ends among them.
        "headers.deserializer": "org.apache.kafka.common.serialization.BytesDeserializer",
        "print.key": "true",
        "key.separator": JAVA_SEPARATOR,
    }
    # Kafka 4 renamed the option, and warns of the old name on standard output.
    option = "--property" if version.startswith("3.") else "--formatter-property"
    options = [part for name, value in properties.items() for part in (option, f"{name}={value}")]
    return [
        *(
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{kafka_libs(version)}/*",
        ),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(
            "--bootstrap-server",
            cluster.bootstrap,
            "--topic",
            topic,
            "--from-beginning",
        ),
        *("--max-messages", str(wanted), "--timeout-ms", "30000"),
        *options,
    ]
