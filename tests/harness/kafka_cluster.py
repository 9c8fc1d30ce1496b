"""A real Kafka cluster for tests: ours, of one or three nodes on the loopback, or one that KAFKA_BOOTSTRAP names."""

import atexit
import base64
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient
from kafka import TopicPartition as AdminPartition
from kafka.errors import KafkaError as AdminError

from .kafka_node import PLAIN_NODE, JavaOptions, KafkaNode, NodeAddress, NodeExtras
from .one_node import view_of
from .ports import free_ports
from .processes import Deadline, TooLateError, wait_until

REQUEST_S = 45.0
# Of librdkafka itself: a connection that came or went just then.
LOCAL_ERRORS: Final = frozenset(
    {KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}
)
READY_S = 90.0
MOVE_S = 30.0


class Cluster:
    """What every test needs of a cluster, ours or not."""

    def __init__(self, bootstrap: str, *, version: str, replicas: int) -> None:
        """`replicas` is the default replication factor of topics made here."""
        self.bootstrap = bootstrap
        self.version = version
        self.replicas = replicas
        self.made: list[str] = []
        """Topics made through this object."""
        self.admin = AdminClient(
            {
                "bootstrap.servers": bootstrap,
                "socket.timeout.ms": 10_000,
                "log_level": 2,
            }
        )

    def metadata(self, topic: str | None = None) -> ClusterMetadata:
        """One Metadata answer. Raise KafkaException when no broker answers."""
        return self.admin.list_topics(topic, timeout=REQUEST_S)

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        replicas: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, wait until each of its partitions has a leader, and return its name."""
        settings = dict(config or {})
        factor = replicas or self.replicas
        _ = settings.setdefault("min.insync.replicas", str(max(1, factor - 1)))
        # Test records may carry timestamps of other years, and a broker deletes by them.
        _ = settings.setdefault("retention.ms", "-1")
        topic = NewTopic(name, num_partitions=partitions, replication_factor=factor, config=settings)
        _ = wait_until(lambda: self._created(topic), seconds=2 * REQUEST_S, what=f"{name} is created")
        self.made.append(name)
        _ = wait_until(
            lambda: self._known_everywhere(name, partitions),
            seconds=REQUEST_S,
            what=f"every broker knows {name} and its leaders",
        )
        return name

    def _created(self, topic: NewTopic) -> bool:
        """Ask once; an attempt whose answer was lost may have done it. Raise KafkaException on what will not pass."""
        try:
            for done in self.admin.create_topics([topic], request_timeout=REQUEST_S).values():
                _ = done.result(REQUEST_S)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return True
            if error.code() in LOCAL_ERRORS or error.retriable():
                return False
            raise
        return True

    def _known_everywhere(self, name: str, partitions: int) -> bool:
        for broker in self.metadata().brokers.values():
            view = view_of(str(broker.host), broker.port)
            parts = {} if view is None else view.topics.get(name, {})
            if sum(part.leader >= 0 for part in parts.values()) != partitions:
                return False
        return True

    def delete_topic(self, name: str) -> None:
        """Ask for a topic's deletion and wait for the answer."""
        for done in self.admin.delete_topics([name], request_timeout=REQUEST_S).values():
            _ = done.result(REQUEST_S)
        self.made.remove(name)

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition to node, for the partitions that have a leader now."""
        found = self.metadata(topic).topics[topic]
        return {number: part.leader for number, part in found.partitions.items() if part.leader >= 0}

    def replicas_of(self, topic: str) -> dict[int, list[int]]:
        """Partition to the nodes that hold it, the preferred leader first."""
        found = self.metadata(topic).topics[topic]
        return {number: list(part.replicas) for number, part in found.partitions.items()}

    def move_leaders(self, topic: str, wanted: Mapping[int, int]) -> None:
        """Make the node `wanted[partition]` lead each of these partitions, and wait until it does.

        The wanted node is moved to the front of the replica list, and the preferred leader is elected. Raise TooLateError.
        """
        deadline = Deadline(MOVE_S, f"{topic}: leaders become {dict(wanted)}")
        replicas = self.replicas_of(topic)
        orders = {
            AdminPartition(topic, number): [
                node,
                *(other for other in replicas[number] if other != node),
            ]
            for number, node in wanted.items()
        }
        with self._mover() as mover:
            while True:
                try:
                    refused = [
                        error for error in mover.alter_partition_reassignments(orders).values() if error is not None
                    ]
                    assert not refused, f"reassignment refused: {refused}"
                    _ = mover.elect_leaders(0, {topic: list(wanted)}, raise_errors=False)
                    _ = wait_until(
                        lambda: {n: at for n, at in self.leaders(topic).items() if n in wanted} == dict(wanted),
                        seconds=min(3.0, deadline.left()),
                        what="the election shows",
                    )
                except (TooLateError, AdminError, KafkaException):
                    # A replica that is out of sync cannot be elected yet, and a controller may just be changing.
                    _ = deadline.left()
                else:
                    return

    def wait_told_by_all(self, topic: str, leaders: Mapping[int, int]) -> None:
        """Wait until every broker names these leaders: one may lag behind the others. Raise TooLateError."""

        def told() -> bool:
            for broker in self.metadata().brokers.values():
                view = view_of(str(broker.host), broker.port)
                parts = {} if view is None else view.topics.get(topic, {})
                if {index: part.leader for index, part in parts.items()} != dict(leaders):
                    return False
            return True

        _ = wait_until(told, seconds=MOVE_S, what=f"every broker names the leaders of {topic}")

    @contextmanager
    def _mover(self) -> Iterator[KafkaAdminClient]:
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","), request_timeout_ms=10_000)
        try:
            yield client
        finally:
            client.close()

    def active_controller(self) -> int:
        """The node that leads the quorum of controllers."""
        with self._mover() as asker:
            quorum = asker.describe_metadata_quorum()
        return int(quorum["topics"][0]["partitions"][0]["leader_id"])

    def rotate_leaders(self, topic: str) -> None:
        """Give each partition to the next of its replicas."""
        replicas = self.replicas_of(topic)
        leaders = self.leaders(topic)
        wanted: dict[int, int] = {}
        for number, nodes in replicas.items():
            order = sorted(nodes)
            wanted[number] = order[(order.index(leaders.get(number, order[0])) + 1) % len(order)]
        self.move_leaders(topic, wanted)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition to (first offset, end offset), asked of the leaders."""
        reader = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "penstock-tests-offsets",
                "log_level": 2,
            }
        )
        try:
            parts = sorted(self.metadata(topic).topics[topic].partitions)
            return {
                number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=REQUEST_S)
                for number in parts
            }
        finally:
            reader.close()

    def record_count(self, topic: str) -> int:
        """How many offsets the topic spans: the records that arrived, where nothing is compacted or transactional."""
        return sum(end - begin for begin, end in self.offsets(topic).values())

    def wait_ready(self, *, nodes: int) -> None:
        """Wait until `nodes` brokers are known, a topic can be made, and an idempotent producer gets an answer."""

        def known() -> bool:
            self._check_alive()
            try:
                return len(self.admin.list_topics(timeout=2).brokers) >= nodes
            except KafkaException:
                return False

        _ = wait_until(known, seconds=READY_S, what=f"{nodes} brokers are known", every=0.1)
        name = f"ready-{uuid.uuid4().hex[:8]}"
        _ = self.create_topic(name, 1)
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "log_level": 2,
            }
        )
        producer.produce(name, b"ready")
        assert producer.flush(REQUEST_S) == 0, "no idempotent producer gets through"
        self._wait_for_groups(name)
        self.delete_topic(name)

    def _check_alive(self) -> None:
        """Raise AssertionError when a node has ended by itself, as with a configuration it does not like."""

    def _wait_for_groups(self, topic: str) -> None:
        """Wait until the coordinator of groups answers, which the console consumer gives little time."""
        member = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "penstock-tests-ready", "log_level": 2})

        def answered() -> bool:
            try:
                return len(member.committed([TopicPartition(topic, 0)], timeout=5)) == 1
            except KafkaException:
                return False

        try:
            _ = wait_until(answered, seconds=READY_S, what="the coordinator of groups answers", every=0.2)
        finally:
            member.close()


class OwnCluster(Cluster):
    """A cluster whose nodes are processes of this test run: it may kill, freeze and restart them."""

    def __init__(
        self,
        version: str,
        *,
        node_count: int = 1,
        java: JavaOptions | None = None,
        settings: Mapping[str, str] | None = None,
        extras: NodeExtras = PLAIN_NODE,
    ) -> None:
        """Start the nodes and wait until they serve. Raise TooLateError or CalledProcessError, with nothing left running.

        `extras` name ports, so that only one node can have them.
        """
        assert node_count == 1 or not extras.listeners
        self.folder = Path(tempfile.mkdtemp(prefix=f"kafka-{version}-"))
        ports = free_ports(2 * node_count)
        addresses = [NodeAddress(n + 1, ports[2 * n], ports[2 * n + 1]) for n in range(node_count)]
        quorum = ",".join(f"{at.number}@127.0.0.1:{at.controller_port}" for at in addresses)
        self.nodes = {
            at.number: KafkaNode(
                version,
                at,
                self.folder / f"node-{at.number}",
                quorum=quorum,
                replicas=node_count,
                java=java or JavaOptions(),
                settings=dict(settings or {}),
                extras=extras,
            )
            for at in addresses
        }
        _ = atexit.register(self.close)
        try:
            # Of base64's url alphabet, but without its hyphen: one in front would be read as an option.
            cluster_id = base64.b64encode(uuid.uuid4().bytes, b"__").decode().rstrip("=")
            for node in self.nodes.values():
                node.format(cluster_id)
                node.start()
            bootstrap = ",".join(f"127.0.0.1:{at.port}" for at in addresses)
            super().__init__(bootstrap, version=version, replicas=node_count)
            self.wait_ready(nodes=node_count)
        except BaseException as failure:
            failure.add_note("\n".join(node.describe() for node in self.nodes.values()))
            self.close()
            raise

    def _check_alive(self) -> None:
        ended = [node.describe() for node in self.nodes.values() if not node.alive]
        assert not ended, "\n".join(ended)

    def restart(self, number: int) -> None:
        """Start a node again that was killed or stopped, and wait until it is back in every in-sync set."""
        node = self.nodes[number]
        node.start()

        def in_sync() -> bool:
            assert node.alive, node.describe()
            # Asked of the node itself: the others may not have noticed its death yet, and it serves clients only once
            # it has been registered anew, with its old places in the in-sync sets taken away.
            view = view_of("127.0.0.1", node.address.port)
            return (
                view is not None
                and len(view.brokers) == len(self.nodes)
                and all(
                    part.leader >= 0 and part.in_sync == part.replicas
                    for topic in view.topics.values()
                    for part in topic.values()
                )
            )

        _ = wait_until(in_sync, seconds=READY_S, what=f"node {number} is back in sync", every=0.1)

    def close(self) -> None:
        """Kill every node and remove its folder. Harmless when done already."""
        atexit.unregister(self.close)
        for node in self.nodes.values():
            if node.alive:
                node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def existing_bootstrap() -> str | None:
    """The cluster that KAFKA_BOOTSTRAP names, or None."""
    return os.environ.get("KAFKA_BOOTSTRAP") or None


def existing_cluster(bootstrap: str, *, brokers: int) -> Cluster:
    """The cluster at `bootstrap`; topics are made with as many replicas as `brokers`. Raise LookupError if it has fewer."""
    cluster = Cluster(bootstrap, version="existing", replicas=brokers)
    there = len(cluster.metadata().brokers)
    if there < brokers:
        raise LookupError(f"KAFKA_BOOTSTRAP names a cluster of {there} brokers, and this test wants {brokers}")
    return cluster


def unique_topic(words: Sequence[str]) -> str:
    """A topic name that no other test has, and that tells whose it is."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in "-".join(words))
    return f"{plain[:80].strip('-')}-{uuid.uuid4().hex[:8]}"
