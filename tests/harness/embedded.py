"""Penstock's own broker as real processes: nodes that share a catalogue, with logs in folders or in memory."""

import json
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Producer
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from .kafka_cluster import Cluster
from .ports import free_ports
from .processes import Deadline, end, start_tied, tail

READY_S: Final = 20.0
ANSWER_S: Final = 20.0


class BrokerProcess:
    """One node; it can be killed and started again."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        """Start with these arguments and wait until it says that it is ready."""
        self._argv = argv
        self._log = log
        self._buffer = b""
        self.address = ("", 0)
        self.addresses: list[str] = []
        """Of all nodes in the process, as `host:port`."""

        self.start()

    def start(self) -> None:
        """Start, and wait until it is ready."""
        self._buffer = b""
        with self._log.open("ab") as stderr:
            self.process = start_tied(
                [sys.executable, "-I", "-m", "penstock.broker.server", "--control", *self._argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        word, _, told = self._line().partition(" ")
        assert word == "ready", (word, tail(self._log))
        self.addresses = told.split(",")
        address = self.addresses[0]
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        _ = self.process.wait(ANSWER_S)
        self._close_pipes()

    def stop(self) -> int:
        """SIGTERM; return the exit status."""
        status = end(self.process)
        self._close_pipes()
        return status

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def command(self, **fields: object) -> dict[str, object]:
        """Give a command of `penstock.broker.control` and return the answer."""
        assert self.process.stdin is not None
        _ = self.process.stdin.write(json.dumps(fields).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, object] = json.loads(self._line())
        return answer

    def said(self) -> str:
        """All that it wrote to standard error, over all its lives."""
        return self._log.read_text()

    def _line(self) -> str:
        deadline = Deadline(READY_S, "a line from the broker")
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([descriptor], [], [], deadline.left())
            if readable:
                data = self.process.stdout.read1(65536)  # type: ignore[attr-defined]
                assert data, f"the broker ended: {tail(self._log)}"
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


class EmbeddedCluster(Cluster):
    """One to n nodes."""

    def __init__(self, nodes: int = 1, *, folders: bool = False, arguments: Sequence[str] = ()) -> None:
        """Start them; with `folders` each keeps its log in a folder."""
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-broker-"))
        ports = free_ports(nodes)
        listed = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports))
        super().__init__(",".join(f"127.0.0.1:{port}" for port in ports), version="embedded", replicas=1)
        self.nodes: list[BrokerProcess] = []
        for number, port in enumerate(ports):
            argv = ["--node-id", str(number), "--listen", f"127.0.0.1:{port}", "--nodes", listed]
            argv += ["--catalogue-dir", str(self.folder / "catalogue"), *arguments]
            if folders:
                argv += ["--log-dir", str(self.folder / f"node-{number}")]
            self.nodes.append(BrokerProcess(argv, self.folder / f"node-{number}.stderr"))

    def __enter__(self) -> Self:
        """The cluster is up."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all nodes and remove their folders."""
        for node in self.nodes:
            if node.process.poll() is None:
                _ = node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def leader(self, topic: str, partition: int) -> BrokerProcess:
        """The process that leads a partition."""
        return self.nodes[self.leaders(topic)[partition]]

    def call(self, node: int = 0) -> "Caller":
        """A new raw connection to a node."""
        return Caller(self.nodes[node].address)


class Caller:
    """A connection that sends single requests and has no opinion about the answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Connect."""
        self.sock = socket.create_connection(address, timeout=ANSWER_S)
        self._correlation = 0
        self._asked: dict[int, ApiMessage] = {}

    def __enter__(self) -> Self:
        """The connection is open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.sock.close()

    def send(self, request: ApiMessage, version: int) -> int:
        """Send a request and return its correlation id."""
        self._correlation += 1
        request.API_VERSION = version
        request.with_header(self._correlation, "caller")
        self.sock.sendall(request.encode(header=True, framed=True))
        self._asked[self._correlation] = request
        return self._correlation

    def receive(self) -> tuple[int, ApiMessage]:
        """The next answer. Raise EOFError when the broker hangs up."""
        size = self._exactly(4)
        data = self._exactly(struct.unpack(">i", size)[0])
        (correlation,) = struct.unpack_from(">i", data)
        request = self._asked.pop(correlation)
        kind = ResponseClassRegistry.get_response_class(request.header)
        return correlation, kind.decode(size + data, version=request.API_VERSION, header=True, framed=True)

    def ask(self, request: ApiMessage, version: int) -> ApiMessage:
        """Send a request and return its answer, which must be the next one."""
        sent = self.send(request, version)
        correlation, answer = self.receive()
        assert correlation == sent
        return answer

    def hung_up(self) -> bool:
        """Whether the broker closes the connection without another byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def reset(self) -> None:
        """Close with a reset, so that nothing more is delivered."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def produce_request(topic: str, data: bytes, partition: int = 0, acks: int = -1) -> ProduceRequest:
    part = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=data)
    entry = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=5000, topic_data=[entry])


def produce(caller: Caller, topic: str, data: bytes, partition: int = 0) -> tuple[int, int]:
    """Error and base offset of one batch."""
    answer = caller.ask(produce_request(topic, data, partition), 9)
    assert isinstance(answer, ProduceResponse)
    (part,) = answer.responses[0].partition_responses
    return part.error_code, part.base_offset


def confluent(cluster: EmbeddedCluster, **more: object) -> Producer:
    settings: dict[str, object] = {
        "bootstrap.servers": cluster.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 5,
        "log_level": 0,
        "message.timeout.ms": 60_000,
    }
    return Producer(settings | more)


class ReplicatedCluster(Cluster):
    """Three nodes with replicas in one process; they end and come back by command."""

    def __init__(self, *, nodes: int = 3, arguments: Sequence[str] = ()) -> None:
        """Start the process."""
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-broker-"))
        argv = ["--node-id", "1", "--cluster", str(nodes), "--listen", "127.0.0.1:0", *arguments]
        self.process = BrokerProcess(argv, self.folder / "stderr")
        super().__init__(",".join(self.process.addresses), version="embedded", replicas=nodes)

    def __enter__(self) -> Self:
        """The cluster is up."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        _ = self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, op: str, **fields: object) -> dict[str, object]:
        """Give a command that must succeed."""
        answer = self.process.command(op=op, **fields)
        assert answer["ok"] is True, answer
        return answer

    def call(self, node: int) -> Caller:
        """A new raw connection to a node."""
        host, _, port = self.process.addresses[node - 1].rpartition(":")
        return Caller((host, int(port)))

    def state(self, topic: str, partition: int = 0) -> dict[str, object]:
        """Leader, epoch, replicas and those in sync."""
        return self.do("state", topic=topic, partition=partition)
