"""The demo. `KAFKA_BOOTSTRAP=host:port` uses that cluster and kills no broker; `DEMO_SECONDS` changes how long it sends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import xmlrpc.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from penstock.daemon.processes.control_client import ControlError, ask
from rich.console import Console
from rich.table import Table
from supervisor.xmlrpc import SupervisorTransport

from .reading import Found, end_offsets, read_back
from .running import DemoError, await_ready, free_ports

SECONDS = float(os.environ.get("DEMO_SECONDS", "20"))
RATE = 2_000
PARTITIONS = 12
LEVELS = ("accepted", "spooled", "delivered")
DRAIN_S = 120

console = Console(highlight=False, width=110)


def main() -> int:
    bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "")
    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    topic = "demo" if not bootstrap else f"penstock-demo-{uuid.uuid4().hex[:8]}"
    console.rule("Penstock demo")
    try:
        with daemon(directory, bootstrap, topic) as (runtime, servers):
            begin = _begin(servers, topic)
            applications = _start_applications(runtime / "penstock.sock", topic)
            _kill_in_the_middle(runtime, brokers=not bootstrap)
            outcomes = {name: _outcome(process) for name, process in applications.items()}
            _drain(runtime)
            console.print("reading everything back with confluent-kafka …")
            found = read_back(servers, topic, begin)
        return _judge(outcomes, found)
    except DemoError as error:
        console.print(f"[red]{error}[/red]")
        log = directory / "penstock.log"
        if log.exists():
            console.print("".join(log.read_text().splitlines(keepends=True)[-30:]), markup=False)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def daemon(directory: Path, bootstrap: str, topic: str) -> Iterator[tuple[Path, str]]:
    """A daemon with two shards, and three embedded brokers unless there is a cluster. Yields runtime directory and brokers."""
    runtime = directory / "run"
    ports = free_ports(4)
    settings = directory / "penstock.toml"
    settings.write_text(
        f'data_dir = "{directory / "data"}"\nruntime_dir = "{runtime}"\nshards = 2\n'
        f'[kafka]\nbootstrap.servers = "{bootstrap or "127.0.0.1:1"}"\ncompression.type = "lz4"\n'
        f'[spool]\nbytes_max = "1GiB"\n[exporter]\nlisten = "127.0.0.1:{ports[0]}"\n'
    )
    command = [sys.executable, "-I", "-m", "penstock.cli.main", "run", "--config", str(settings)]
    servers = bootstrap
    if bootstrap:
        AdminClient({"bootstrap.servers": bootstrap}).create_topics([NewTopic(topic, PARTITIONS, -1)])[topic].result(30)
        console.print(f"cluster: {bootstrap}, topic {topic}")
    else:
        first = ports[1]
        servers = ",".join(f"127.0.0.1:{first + number}" for number in range(3))
        command += [
            "--embedded-broker",
            "--broker-nodes",
            "3",
            "--broker-port",
            str(first),
            "--topic",
            f"{topic}:{PARTITIONS}",
        ]
        console.print(f"three embedded brokers: {servers}")
    with (directory / "penstock.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        await_ready(process, runtime)
        console.print("daemon: router and two shards are up")
        yield runtime, servers
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _begin(servers: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "penstock-demo"})
    try:
        return end_offsets(consumer, topic)
    finally:
        consumer.close()


def _start_applications(path: Path, topic: str) -> dict[str, subprocess.Popen[bytes]]:
    console.print(f"three applications send {RATE} records a second each for {SECONDS:.0f} s")
    return {
        level: subprocess.Popen(
            [
                sys.executable, "-m", "demo.application", "--socket", str(path), "--topic", topic,
                "--name", f"app-{level}", "--level", level, "--seconds", str(SECONDS), "--rate", str(RATE),
            ],
            stdout=subprocess.PIPE,
        )
        for level in LEVELS
    }  # fmt: skip


def _kill_in_the_middle(runtime: Path, *, brokers: bool) -> None:
    began = time.monotonic()
    victims = ["shard:shard-0", "router"] + (["broker-1"] if brokers else [])
    server = xmlrpc.client.ServerProxy(
        "http://localhost", transport=SupervisorTransport(None, None, f"unix://{runtime / 'supervisor.sock'}")
    )
    for place, victim in enumerate(victims, start=1):
        time.sleep(max(0.0, began + SECONDS * place / (len(victims) + 1) - time.monotonic()))
        pid = int(server.supervisor.getProcessInfo(victim)["pid"])  # type: ignore[call-overload,index,arg-type]
        os.kill(pid, signal.SIGKILL)
        console.print(f"[bold]{time.monotonic() - began:5.1f} s  kill -9 {victim.split(':')[-1]} (pid {pid})[/bold]")


def _outcome(process: subprocess.Popen[bytes]) -> dict[str, object]:
    output, _ = process.communicate(timeout=SECONDS + 180)
    if process.returncode != 0:
        raise DemoError(f"an application ended with exit code {process.returncode}")
    outcome: dict[str, object] = json.loads(output)
    return outcome


def _drain(runtime: Path) -> None:
    """Wait until nothing is pending: what was acknowledged at a lower level may still be on its way."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        try:
            if ask(runtime / "control.sock", "stats")["records"]["pending"] == 0:
                return
        except ControlError:
            pass
        time.sleep(0.1)
    raise DemoError(f"records were still pending after {DRAIN_S} s")


def _judge(outcomes: dict[str, dict[str, object]], found: Found) -> int:
    table = Table(title="what was sent, and what Kafka has")
    for column in ("level", "sent", "acknowledged", "found", "lost", "doubled", "out of order", "longest wait"):
        table.add_column(column, justify="left" if column == "level" else "right")
    bad = 0
    for level, outcome in outcomes.items():
        times = found.times[f"app-{level}"]
        acknowledged = outcome["acknowledged"]
        assert isinstance(acknowledged, list)
        lost = sum(1 for number in acknowledged if times[number] == 0)
        doubled = sum(1 for count in times.values() if count > 1)
        disorder = found.out_of_order[f"app-{level}"]
        bad += lost + doubled + disorder
        figures = [outcome["sent"], len(acknowledged), sum(times.values()), lost, doubled, disorder]
        table.add_row(level, *[f"{figure:,}" for figure in figures], f"{outcome['wait_max_s']:.2f} s")
    console.print(table)
    console.print(
        "[green]lost = doubled = out of order = 0[/green]"
        if bad == 0
        else "[red]records were lost, doubled or moved[/red]"
    )
    return 0 if bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
