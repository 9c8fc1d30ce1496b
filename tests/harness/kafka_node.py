"""One node of a real Kafka cluster: broker and controller in one JVM, from the jars that tests/java/fetch.sh puts in place."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from .processes import REPOSITORY, end, start_tied, tail

VERSIONS: Final = ("4.3.1", "3.9.2")

LOG4J2: Final = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1} %m%n
"""

LOG4J1: Final = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1} %m%n
"""


def kafka_libs(version: str) -> Path:
    """The folder with the jars of a version, fetched by Maven if they are not there yet. Raise CalledProcessError."""
    libs = REPOSITORY / "build" / "kafka" / version / "libs"
    if not libs.is_dir():
        _ = subprocess.run(
            [str(REPOSITORY / "tests" / "java" / "fetch.sh"), version],
            check=True,
            timeout=600,
        )
    return libs


def rack_of(number: int) -> str:
    """Each node stands in a rack of its own."""
    return f"rack-{number}"


@dataclass(frozen=True, slots=True)
class JavaOptions:
    """How the JVM of a node is started."""

    heap_mb: int = 384
    quick_start: bool = True
    """Compile little: up sooner, slower in the long run. A benchmark sets it to False."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """System properties, without -D."""
    classes: Path | None = None
    """A folder of classes of our own, beside Kafka's."""

    def arguments(self) -> list[str]:
        """The options for the command line."""
        options = [
            f"-Xmx{self.heap_mb}m",
            f"-Xms{self.heap_mb // 2}m",
            "-XX:+UseSerialGC",
        ]
        if self.quick_start:
            options += ["-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return [*options, *(f"-D{name}={value}" for name, value in self.properties.items())]


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node listens, on the loopback."""

    number: int
    port: int
    controller_port: int


class Listener(NamedTuple):
    """One more address of a node."""

    name: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeExtras:
    """What a node has beyond its plaintext listener."""

    listeners: Sequence[Listener] = ()
    """Advertised as `localhost`."""
    users: Sequence[str] = ()
    """SCRAM's, made when the node is formatted: as StorageTool's --add-scram takes them."""


PLAIN_NODE: Final = NodeExtras()


class KafkaNode:
    """A node with its folder; its process may die and be started again."""

    def __init__(
        self,
        version: str,
        address: NodeAddress,
        folder: Path,
        *,
        quorum: str,
        replicas: int,
        java: JavaOptions,
        settings: dict[str, str],
        extras: NodeExtras = PLAIN_NODE,
    ) -> None:
        """Write the node's configuration. Nothing is started yet."""
        self.version = version
        self.address = address
        self.log_path = folder / "node.log"
        self.data_folder = folder / "logs"
        self._folder = folder
        self._java = java
        self._extras = extras
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        log_settings = folder / "log4j.properties"
        _ = log_settings.write_text(LOG4J1 if version.startswith("3.") else LOG4J2)
        which = "log4j.configuration=file:" if version.startswith("3.") else "log4j2.configurationFile="
        self._java_command = [
            "java",
            *java.arguments(),
            f"-D{which}{log_settings}",
            "-cp",
            f"{kafka_libs(version)}/*" + ("" if java.classes is None else f":{java.classes}"),
        ]
        self._properties = folder / "server.properties"
        lines = self._base_settings(quorum, replicas) | settings
        _ = self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def _base_settings(self, quorum: str, replicas: int) -> dict[str, str]:
        address = self.address
        replicas_text = str(replicas)
        more = self._extras.listeners
        bound = "".join(f",{each.name}://127.0.0.1:{each.port}" for each in more)
        advertised = "".join(f",{each.name}://localhost:{each.port}" for each in more)
        protocols = "".join(f",{each.name}:{each.protocol}" for each in more)
        return {
            "broker.rack": rack_of(self.address.number),
            "process.roles": "broker,controller",
            "node.id": str(address.number),
            "controller.quorum.voters": quorum,
            "listeners": f"PLAINTEXT://127.0.0.1:{address.port},CONTROLLER://127.0.0.1:{address.controller_port}{bound}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{address.port}{advertised}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}",
            "log.dirs": str(self.data_folder),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": replicas_text,
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas_text,
            "transaction.state.log.min.isr": str(max(1, replicas - 1)),
            "share.coordinator.state.topic.replication.factor": replicas_text,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # The tests move leaders themselves; the cluster's own balancing would add moves at random times.
            "auto.leader.rebalance.enable": "false",
            # A node that was killed may not register again before its old session has ended: 9 s by default.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "log.cleaner.dedupe.buffer.size": "16777216",
        }

    @property
    def pid(self) -> int:
        """The process id of the running node."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def format(self, cluster_id: str) -> None:
        """Give the empty folder its cluster id. Raise CalledProcessError."""
        with self.log_path.open("ab") as log:
            _ = subprocess.run(
                [
                    *self._java_command,
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    cluster_id,
                    "-c",
                    str(self._properties),
                    *(part for user in self._extras.users for part in ("--add-scram", user)),
                ],
                check=True,
                timeout=120,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def start(self) -> None:
        """Start the process. It is not ready when this returns: ask the cluster."""
        assert not self.alive
        with self.log_path.open("ab") as log:
            self._process = start_tied(
                [*self._java_command, "kafka.Kafka", str(self._properties)],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )

    def kill(self) -> None:
        """`kill -9`; returns when the process has been reaped."""
        assert self._process is not None
        self._process.kill()
        _ = self._process.wait(20)

    def stop(self, *, seconds: float = 30) -> None:
        """SIGTERM, a controlled shutdown; killed when it takes longer than `seconds`."""
        if self._process is not None:
            _ = end(self._process, seconds=seconds)

    def freeze(self) -> None:
        """SIGSTOP: the process keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def describe(self) -> str:
        """The end of the node's log, for a failure's message."""
        return f"node {self.address.number} ({self.version}):\n{tail(self.log_path)}"
