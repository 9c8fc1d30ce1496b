"""What is done to topics and logs to see whether an audit notices: records told again, in another order, or not at all; logs cut;
acknowledgements held back."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from .bronze import Place
from .kafka_cluster import REQUEST_S, Cluster, OwnCluster
from .log_files import FRONT, OVERHEAD
from .processes import Deadline, wait_until

AUDIT_CONFIG: Final = {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"}
"""As `penstock audit create-topic` makes it."""
SECONDS: Final = 60.0


class Raw(NamedTuple):
    """A record of a topic, as it is written again."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def raw_records(cluster: Cluster, topic: str) -> list[Raw]:
    """Every record of a topic, each partition in order."""
    starts = {partition: first for partition, (first, _) in cluster.offsets(topic).items()}
    return [_raw(message) for message in _messages(cluster, topic, starts)]


def raw_at(cluster: Cluster, topic: str, places: Iterable[Place]) -> list[Raw]:
    """The records at these places, headers and all. Raise AssertionError where there is none."""
    found: list[Raw] = []
    for place in places:
        message = next(_messages(cluster, topic, {place.partition: place.offset}))
        assert message.offset() == place.offset, f"{topic} has no record at {place}"
        found.append(_raw(message))
    return found


def _messages(cluster: Cluster, topic: str, starts: dict[int, int]) -> Iterator[Message]:
    deadline = Deadline(SECONDS, f"reading {topic}")
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "penstock-tests-raw",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        reader.assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
        left = set(starts)
        while left:
            for message in reader.consume(1_000, timeout=min(1.0, deadline.left())):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition() or 0)
                else:
                    assert error.retriable() or error.code() == KafkaError._TRANSPORT, error
    finally:
        reader.close()


def _raw(message: Message) -> Raw:
    partition, key, value = message.partition(), message.key(), message.value()
    assert partition is not None
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    headers = tuple((name, body) for name, body in message.headers() or ())
    return Raw(partition, key, value, headers, message.timestamp()[1])


def write_raw(cluster: Cluster, topic: str, records: Iterable[Raw]) -> list[Place]:
    """Write records by a client that is not ours, as they are, and return where they lie now."""
    places: list[Place] = []

    def written(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        places.append(Place(partition, offset))

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 2})
    for each in records:
        producer.produce(
            topic,
            each.value,
            each.key,
            partition=each.partition,
            headers=list(each.headers),
            timestamp=each.timestamp_ms,
            on_delivery=written,
        )
        _ = producer.poll(0)
    assert producer.flush(SECONDS) == 0, f"{topic} takes no records"
    return places


def shuffled(records: Sequence[Raw], random: Random) -> list[Raw]:
    """In another order."""
    mixed = list(records)
    random.shuffle(mixed)
    return mixed


def compacted(records: Iterable[Raw]) -> list[Raw]:
    """Of each key the last record alone, as a compacted topic keeps it."""
    last: dict[tuple[int, bytes | None], Raw] = {}
    for each in records:
        _ = last.pop((each.partition, each.key), None)
        last[each.partition, each.key] = each
    return list(last.values())


def set_topic(cluster: Cluster, topic: str, **settings: str) -> None:
    """Change settings of a topic; dots of their names are given as underscores. Waits until the broker tells them so."""
    wanted = {name.replace("_", "."): value for name, value in settings.items()}
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    for done in cluster.admin.incremental_alter_configs([asked]).values():
        _ = done.result(REQUEST_S)

    def told() -> bool:
        [answer] = cluster.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        entries = answer.result(REQUEST_S)
        return all(entries[name].value == value for name, value in wanted.items())

    _ = wait_until(told, seconds=REQUEST_S, what=f"{topic} has {wanted}")


@contextmanager
def refusing(cluster: Cluster, topic: str) -> Iterator[None]:
    """For a while nobody may write to the topic; other topics go on. The brokers have an authorizer that lets everyone do
    everything that is not denied."""
    where = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    rules = [
        # A topic with rules is closed to what no rule allows.
        AclBinding(*where, AclOperation.ALL, AclPermissionType.ALLOW),
        AclBinding(*where, AclOperation.WRITE, AclPermissionType.DENY),
    ]
    for done in cluster.admin.create_acls(rules).values():
        _ = done.result(REQUEST_S)
    _ = wait_until(lambda: not _writable(cluster, topic), seconds=REQUEST_S, what=f"{topic} is closed to writers")
    try:
        yield
    finally:
        all_rules = AclBindingFilter(*where, AclOperation.ANY, AclPermissionType.ANY)
        for done in cluster.admin.delete_acls([all_rules]).values():
            _ = done.result(REQUEST_S)
        _ = wait_until(lambda: _writable(cluster, topic), seconds=REQUEST_S, what=f"{topic} is open to writers")


def _writable(cluster: Cluster, topic: str) -> bool:
    asked = cluster.admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    try:
        allowed = asked[topic].result(REQUEST_S).authorized_operations
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # Between the one rule and the other.
            return False
        raise
    return AclOperation.WRITE in (allowed or [])


def cut_logs(cluster: OwnCluster, places: Iterable[tuple[str, int]], *, keep: int) -> dict[tuple[str, int], int]:
    """End these partitions (topic, number) at the first batch boundary at or behind offset `keep`, as the unclean election of a
    replica that was behind does; returns the new ends. The broker is killed for it, and started again."""
    [node] = cluster.nodes.values()
    node.kill()
    ends: dict[tuple[str, int], int] = {}
    for topic, partition in places:
        folder = node.data_folder / f"{topic}-{partition}"
        [log] = folder.glob("*.log")
        size, ends[topic, partition] = _front_up_to(log.read_bytes(), keep)
        with log.open("r+b") as file:
            _ = file.truncate(size)
        # All of these speak of what is gone, and are made anew from the log.
        for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint"):
            for path in folder.glob(pattern):
                path.unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", ".kafka_cleanshutdown"):
        (node.data_folder / name).unlink(missing_ok=True)
    cluster.restart(node.address.number)
    for (topic, partition), end in ends.items():
        found = wait_until(
            lambda topic=topic: _offsets(cluster, topic), seconds=REQUEST_S, what=f"{topic} has a leader"
        )
        assert found[partition] == (0, end)
    return ends


def _offsets(cluster: Cluster, topic: str) -> dict[int, tuple[int, int]] | None:
    """None while the partitions are only becoming somebody's again."""
    try:
        return cluster.offsets(topic)
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION:
            return None
        raise


def _front_up_to(data: bytes, keep: int) -> tuple[int, int]:
    """Size and end offset of the batches at the front of a log that hold all below `keep`."""
    at = end = 0
    while end < keep:
        base, length, _, _, _, _, last_delta, *_ = FRONT.unpack_from(data, at)
        at += length + OVERHEAD
        end = base + last_delta + 1
    return at, end
