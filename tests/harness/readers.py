"""Reading a topic back with clients that are not ours: librdkafka's, and the console consumer of Kafka's own tools."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from .kafka_cluster import Cluster
from .kafka_node import kafka_libs
from .processes import Deadline
from .records import Found

FETCH_RECORDS = 10_000


def _found(message: Message) -> Found:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    headers = message.headers() or []
    plain = tuple((name, body.encode() if isinstance(body, str) else body) for name, body in headers)
    return Found(partition, offset, key, value, plain, message.timestamp()[1])


def read_topic(cluster: Cluster, topic: str, *, seconds: float = 120) -> Iterator[Found]:
    """Every record between the beginning and the end offsets of this moment, each partition in offset order.

    Reads by assignment, commits nothing, sees uncommitted records too. Raise TooLate, or KafkaException.
    """
    deadline = Deadline(seconds, f"reading {topic} back")
    spans = {number: span for number, span in cluster.offsets(topic).items() if span[0] < span[1]}
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "penstock-tests-read",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 2,
        }
    )
    try:
        reader.assign([TopicPartition(topic, number, begin) for number, (begin, _) in spans.items()])
        unread = {number: end for number, (_, end) in spans.items()}
        while unread:
            for message in reader.consume(FETCH_RECORDS, timeout=min(1.0, deadline.left())):
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        # Its position is the end: records below the end offset that are missing were compacted away.
                        _ = unread.pop(message.partition() or 0, None)
                        continue
                    if error.retriable() or error.code() == KafkaError._TRANSPORT:
                        continue
                    raise KafkaException(error)
                found = _found(message)
                end = unread.get(found.partition)
                if end is None:
                    continue
                if found.offset < end:
                    yield found
                if found.offset >= end - 1:
                    del unread[found.partition]
    finally:
        reader.close()


JAVA_SEPARATOR: Final = "\x1f"
JAVA_PREFIX: Final = re.compile(r"(?:CreateTime|LogAppendTime|NoTimestampType):(-?\d+)")


class JavaFound(NamedTuple):
    """One record as the console consumer printed it; texts, because it prints texts."""

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
        headers=fields[3],
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
        timeout=seconds,
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
