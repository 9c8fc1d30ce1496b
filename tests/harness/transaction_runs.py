"""Runs transactional clients, kills them and starts the next, and reads back what Kafka's own consumer sees."""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from .kafka_cluster import Cluster, OwnCluster
from .kafka_node import VERSIONS, kafka_libs
from .processes import PATIENCE, REPOSITORY, Deadline, end, start_tied, tail
from .transaction_job import Job
from .transaction_judge import Transaction, read_transactions

SOURCE: Final = REPOSITORY / "tests/java/ReadCommitted.java"
STATE_TOPIC: Final = "__transaction_state"


class Client:
    """One transactional id: a process at a time, each going on behind the last transaction that its ledger names."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.path = Path(job.ledger)
        self.errors = folder / f"{job.transactional_id}.errors"
        self.kills = 0
        self.reached = job.first
        """Transactions below this have ended, or were under way when their process was killed."""
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def start(self) -> None:
        """A process that goes on behind everything the ledger names."""
        told = self.transactions()
        first = max(told, default=self.job.first - 1) + 1
        with self.errors.open("ab") as errors:
            self._process = start_tied(
                [
                    sys.executable,
                    "-m",
                    "tests.harness.transaction_client",
                    json.dumps(self.job._replace(first=first)._asdict()),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._rest = b""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The present one."""
        assert self._process is not None
        return self._process

    def transactions(self) -> dict[int, Transaction]:
        """What the ledger tells."""
        return read_transactions(self.path) if self.path.exists() else {}

    def kill(self) -> None:
        """`kill -9`, and the next process."""
        self.process.kill()
        _ = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.kills += 1
        self.start()

    def take(self, data: bytes) -> None:
        """Lines of its standard output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.isdigit():
                self.reached = max(self.reached, int(line))

    def close(self) -> None:
        """End the process."""
        _ = end(self.process, seconds=5)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Clients:
    """Several side by side."""

    def __init__(self, jobs: list[Job], folder: Path) -> None:
        self.all = [Client(job, folder) for job in jobs]
        for client in self.all:
            client.start()

    @property
    def reached(self) -> int:
        """Transactions that ended, of all."""
        return sum(client.reached - client.job.first for client in self.all)

    def wait_reached(self, count: int, *, seconds: float) -> None:
        """Follow them until so many transactions have ended, or all processes. Raise TooLateError."""
        deadline = Deadline(seconds, f"{count} transactions")
        while self.reached < count and self._read(deadline):
            deadline.what = f"{count} transactions ({self.reached} now)"

    def wait_ended(self, *, seconds: float) -> list[int]:
        """Wait for the end of all processes; their exit statuses. Raise TooLateError."""
        deadline = Deadline(seconds, "the clients are done")
        while self._read(deadline):
            deadline.what = f"the clients are done ({self.reached} transactions now)"
        return [client.process.wait(30) for client in self.all]

    def _read(self, deadline: Deadline) -> bool:
        """Wait for news of any. False: all have ended."""
        with selectors.DefaultSelector() as selector:
            for client in self.all:
                assert client.process.stdout is not None
                if client.process.poll() is None or not client.process.stdout.closed:
                    _ = selector.register(client.process.stdout, selectors.EVENT_READ, client)
            for key, _ in selector.select(min(1.0, deadline.left())):
                client = key.data
                assert isinstance(client, Client)
                data = os.read(key.fd, 1 << 16)
                client.take(data)
                if not data:
                    _ = client.process.wait(20)
                    assert client.process.stdout is not None
                    client.process.stdout.close()
        return any(client.process.stdout is not None and not client.process.stdout.closed for client in self.all)

    def told(self) -> dict[str, dict[int, Transaction]]:
        """What every client was told, by transactional id."""
        return {client.job.transactional_id: client.transactions() for client in self.all}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        for client in self.all:
            client.close()
            if raised is not None and client.errors.exists() and client.errors.stat().st_size:
                raised.add_note(f"{client.job.transactional_id} said:\n{tail(client.errors)}")


def read_committed_by_java(cluster: Cluster, topic: str, *, seconds: float = 120) -> Iterator[tuple[int, str]]:
    """(partition, value) of what Kafka's own consumer sees under read_committed. Raise CalledProcessError, TimeoutExpired."""
    version = cluster.version if isinstance(cluster, OwnCluster) else VERSIONS[0]
    told = subprocess.run(
        [
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-cp",
            f"{kafka_libs(version)}/*",
            str(SOURCE),
            cluster.bootstrap,
            topic,
        ],
        check=True,
        capture_output=True,
        timeout=seconds * PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    for line in told.stdout.decode().splitlines():
        partition, _, value = line.split("\t")
        yield int(partition), value


def coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    """The node that coordinates a transactional id: it leads the partition of the state topic that the id's hash names."""
    value = 0
    for unit in transactional_id.encode("utf-16-be").hex(" ", 2).split():
        value = (31 * value + int(unit, 16)) & 0xFFFFFFFF
    leaders = cluster.leaders(STATE_TOPIC)
    return leaders[(value & 0x7FFFFFFF) % len(cluster.metadata(STATE_TOPIC).topics[STATE_TOPIC].partitions)]


def set_transaction_version(cluster: Cluster, level: int) -> None:
    """Make the cluster finalise another version of transactions. Raise CalledProcessError."""
    assert isinstance(cluster, OwnCluster)
    _ = subprocess.run(
        [
            *("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_libs(cluster.version)}/*"),
            *("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", cluster.bootstrap),
            *("upgrade" if level > 1 else "downgrade", "--feature", f"transaction.version={level}"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def end_hanging_transactions(cluster: Cluster, topic: str) -> list[int]:
    """Do what an operator does with transactions that no coordinator knows of any more, once nobody writes: abort them by
    Kafka's own command. Returns the partitions that had one. Raise CalledProcessError."""
    assert isinstance(cluster, OwnCluster)
    found: list[int] = []
    while hanging := _held_back(cluster, topic):
        for partition, offset in hanging.items():
            found.append(partition)
            _ = subprocess.run(
                [
                    *("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_libs(cluster.version)}/*"),
                    *("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap, "abort"),
                    *("--topic", topic, "--partition", str(partition), "--start-offset", str(offset)),
                ],
                check=True,
                capture_output=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
            )
    return found


def _held_back(cluster: Cluster, topic: str) -> dict[int, int]:
    """Partitions whose last stable offset lies before their end, and where."""
    parts = [TopicPartition(topic, number) for number in cluster.leaders(topic)]
    ends = dict.fromkeys(parts, OffsetSpec.latest())
    stable = cluster.admin.list_offsets(ends, isolation_level=IsolationLevel.READ_COMMITTED)
    final = cluster.admin.list_offsets(ends, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    told = {part.partition: (stable[part].result(30).offset, final[part].result(30).offset) for part in parts}
    return {number: at for number, (at, behind) in told.items() if at < behind}
