"""A real Kafka of one node for the demo, broker and controller in one JVM, from the jars that `make` puts in place."""

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from .running import DemoError, free_ports

VERSION: Final = "4.3.1"
JARS: Final = Path(os.environ.get("PENSTOCK_BUILD", "build")) / "kafka" / VERSION / "libs"
READY_S: Final = 60.0
END_S: Final = 20.0
LOG_SETTINGS: Final = """\
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1} %m%n
"""


@contextmanager
def kafka(folder: Path) -> Iterator[str]:
    """Run it in `folder`; yields its address. Raises DemoError."""
    if not JARS.is_dir():
        raise DemoError(f"{JARS} is missing: start the demo by `make pipeline-demo`, which fetches Kafka")
    folder.mkdir()
    port, controller_port = free_ports(2)
    properties = folder / "server.properties"
    properties.write_text(_properties(folder, port, controller_port))
    (folder / "log4j2.properties").write_text(LOG_SETTINGS)
    java = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java += [f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", "-cp", f"{JARS.absolute()}/*"]
    # The letter in front: an id that begins with a hyphen would be taken for an option.
    cluster = "p" + uuid.uuid4().hex[:21]
    with (folder / "kafka.log").open("ab") as log:
        form = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
        if subprocess.run(form, stdout=log, stderr=log, start_new_session=True, check=False).returncode != 0:
            raise DemoError(f"Kafka's folder could not be made:\n{tail(folder / 'kafka.log')}")
        node = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        address = f"127.0.0.1:{port}"
        _await(node, address, folder / "kafka.log")
        yield address
    finally:
        node.terminate()
        try:
            node.wait(END_S)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait(END_S)


def make_topic(address: str, name: str, partitions: int) -> None:
    """Make a topic. Raises DemoError."""
    # Held in a name: its answers die with it.
    admin = AdminClient(_quiet(address))
    try:
        admin.create_topics([NewTopic(name, partitions, -1)])[name].result(30)
    except KafkaException as error:
        raise DemoError(f"the topic {name} could not be made: {error}") from error


def tail(path: Path, lines: int = 20) -> str:
    """The end of a log."""
    return "".join(path.read_text(errors="replace").splitlines(keepends=True)[-lines:]) if path.exists() else ""


def _quiet(address: str) -> dict[str, str | int]:
    return {"bootstrap.servers": address, "log_level": 0}


def _await(node: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    admin = AdminClient(_quiet(address))
    while time.monotonic() < deadline:
        if node.poll() is not None:
            raise DemoError(f"Kafka ended at its start:\n{tail(log)}")
        try:
            if admin.list_topics(timeout=1).brokers:
                return
        except KafkaException:
            time.sleep(0.1)
    raise DemoError(f"Kafka was not ready within {READY_S:.0f} s:\n{tail(log)}")


def _properties(folder: Path, port: int, controller_port: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "logs"),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
