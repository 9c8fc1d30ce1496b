"""`penstock send` and `penstock loadgen`: send records through the real socket."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from .common import (
    ConfigOption,
    JsonOption,
    RuntimeOption,
    fail,
    running_settings,
    runtime_directory,
    socket_path,
    write_json,
)

if TYPE_CHECKING:
    from ..client.arguments import LevelName

LEVELS: Final[dict[str, "LevelName"]] = {"accepted": "accepted", "spooled": "spooled", "delivered": "delivered"}
LevelOption = Annotated[str, typer.Option(help="Acknowledgement level: accepted, spooled or delivered.")]
_PERCENTILES = (50, 90, 99, 100)


def send(
    topic: Annotated[str, typer.Argument(help="Topic to send to.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(help="Values of the records; if none is given, one record per line of standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of every record.")] = None,
    level: LevelOption = "delivered",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the acknowledgements.")] = 60.0,
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send records from the arguments or from standard input, and wait for their acknowledgements."""
    from ..client import Producer, WaitTimeoutError

    known = _level(level)
    path = socket_path(runtime_dir, config)
    _must_listen(path)
    lines = iter(values) if values else (line.rstrip("\n") for line in sys.stdin)
    producer = Producer(str(path), level=known)
    futures = [producer.send(topic, line.encode(), key=None if key is None else key.encode()) for line in lines]
    try:
        producer.flush(timeout=timeout)
    except WaitTimeoutError:
        waiting = sum(1 for future in futures if not future.done())
        fail(f"{waiting} of {len(futures)} records have no answer after {timeout} s: see `penstock status`")
    finally:
        # Frames without an answer were reported above; waiting longer would only hide them.
        producer.close(timeout=0)
    errors = [str(error) for future in futures if (error := future.exception()) is not None]
    outcome = {"sent": len(futures), "level": level, "acknowledged": len(futures) - len(errors), "errors": errors[:10]}
    if as_json:
        write_json(outcome)
    else:
        sys.stdout.write(f"{outcome['acknowledged']} of {outcome['sent']} records {level}\n")
    if errors:
        fail(f"{len(errors)} records failed; the first: {errors[0]}")


def loadgen(
    topic: Annotated[str, typer.Argument(help="Topic to send to; it must exist.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to send for.")] = 10.0,
    sessions: Annotated[int, typer.Option(min=1, max=256, help="Number of sessions, each in its own process.")] = 1,
    rate: Annotated[int, typer.Option(min=0, help="Records per second over all sessions; 0: as fast as possible.")] = 0,
    value_bytes: Annotated[int, typer.Option(min=2, max=900_000, help="Size of each value in bytes.")] = 100,
    key_bytes: Annotated[int, typer.Option(min=0, max=10_000, help="Size of each key in bytes; 0: no keys.")] = 16,
    frame_records: Annotated[int, typer.Option(min=1, max=100_000, help="Records per frame.")] = 1000,
    unanswered_frames: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum unacknowledged frames per session before it waits. Lower values reduce latency.",
        ),
    ] = 64,
    level: LevelOption = "delivered",
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put load on the running daemon; print rate, CPU per record, latencies, and arrivals by end offset."""
    from ..daemon.processes.control_client import ask

    _ = _level(level)
    runtime = runtime_directory(runtime_dir, config)
    settings = running_settings(runtime)
    orders: list[dict[str, object]] = [
        {
            "socket": str(runtime / "penstock.sock"),
            "topic": topic,
            "seconds": seconds,
            "rate": rate // sessions if rate else 0,
            "value_bytes": value_bytes,
            "key_bytes": key_bytes,
            "frame_records": frame_records,
            "level": level,
            "unanswered_frames": unanswered_frames,
            "seed": seed,
        }
        for seed in range(sessions)
    ]
    with _offsets(settings.kafka.bootstrap_servers, topic) as end_offset:
        arrived = end_offset()
        before = cast("dict[str, Any]", ask(runtime / "control.sock", "stats"))
        results = _drive(orders, seconds, quiet=as_json)
        after = cast("dict[str, Any]", ask(runtime / "control.sock", "stats"))
        arrived = end_offset() - arrived
    report = _report(results, before, after, arrived, level)
    if as_json:
        write_json(report)
    else:
        _print(report)
    if report["failed"]:
        fail(f"{report['failed']} records failed; the first: {report['first_error']}")


def _must_listen(path: Path) -> None:
    """Fail at once if the path is wrong, instead of after a timeout."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            fail(
                f"nobody listens at {path} ({error.strerror}): is the daemon running? --runtime-dir or PENSTOCK_SOCKET names another"
            )


def _level(level: str) -> "LevelName":
    return LEVELS.get(level) or fail(f"--level {level}: one of {', '.join(LEVELS)}")


@contextmanager
def _offsets(servers: str, topic: str) -> Generator[Callable[[], int]]:
    """Return a function that sums the end offsets of the topic's partitions."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import TopicPartition

    try:
        consumer = KafkaConsumer(bootstrap_servers=servers.split(","))
    except KafkaError as error:
        fail(f"no broker of {servers} answers: {error}")
    try:
        indexes = consumer.partitions_for_topic(topic)
        if not indexes:
            fail(f"topic {topic} does not exist: create it first")
        places = [TopicPartition(topic, index) for index in indexes]
        yield lambda: sum(consumer.end_offsets(places).values())
    finally:
        consumer.close()


def _drive(orders: list[dict[str, object]], seconds: float, *, quiet: bool) -> list[dict[str, Any]]:
    """Run the sessions in parallel, with a progress bar on a terminal, and return their results."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    processes = [
        subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-I", "-m", "penstock.cli.load_session", json.dumps(order)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for order in orders
    ]
    columns = (TextColumn("{task.fields[told]} records acknowledged"), BarColumn(), TimeRemainingColumn())
    told = [0] * len(processes)
    results: list[dict[str, Any]] = []
    try:
        with Progress(*columns, disable=quiet or not sys.stderr.isatty(), transient=True) as progress:
            task = progress.add_task("load", total=seconds, told=0)
            for place, line in _lines(processes):
                item: dict[str, Any] = json.loads(line)
                told[place] = item["acknowledged"]
                progress.update(task, completed=progress.tasks[0].elapsed or 0, told=f"{sum(told):,}")
                if "seconds" in item:
                    results.append(item)
    finally:
        for process in processes:
            process.kill() if process.poll() is None and len(results) < len(processes) else None
            process.wait()
    if len(results) < len(processes):
        fail("a session ended before its time: is the daemon running, and may this user connect?")
    return results


def _lines(processes: "list[subprocess.Popen[str]]") -> Iterator[tuple[int, str]]:
    """Yield the output lines of all processes as they arrive, each with the index of its process."""
    import selectors

    with selectors.DefaultSelector() as selector:
        for place, process in enumerate(processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, place)
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if line:
                    yield key.data, line
                else:
                    selector.unregister(key.fileobj)


def _report(
    results: list[dict[str, Any]], before: dict[str, Any], after: dict[str, Any], arrived: int, level: str
) -> dict[str, Any]:
    sent = sum(item["sent"] for item in results)
    seconds = max(item["seconds"] for item in results)
    cpu = {"client": sum(item["cpu_us"] for item in results), **_daemon_cpu(before, after)}
    latencies = sorted(latency for item in results for latency in item["latencies_ms"])
    return {
        "level": level,
        "sent": sent,
        "acknowledged": sum(item["acknowledged"] for item in results),
        "failed": sum(item["failed"] for item in results),
        "first_error": next((item["first_error"] for item in results if item["first_error"]), ""),
        "arrived_by_end_offsets": arrived,
        "seconds": round(seconds, 3),
        "records_per_second": round(sent / seconds),
        "cpu_us_per_record": {name: round(used / max(1, sent), 4) for name, used in cpu.items()},
        "cpu_us_per_record_all": round(sum(cpu.values()) / max(1, sent), 4),
        "latency_ms": {f"p{rank}": round(_percentile(latencies, rank), 2) for rank in _PERCENTILES}
        if latencies
        else {},
    }


def _daemon_cpu(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """Return the CPU time in µs that router and shards used in between; a replaced process counts from its start."""
    earlier = {item["pid"]: item["cpu_us"] for item in before["processes"]}
    used: dict[str, int] = {"router": 0, "shards": 0}
    for item in after["processes"]:
        group = "router" if item["name"] == "router" else "shards"
        used[group] += item["cpu_us"] - earlier.get(item["pid"], 0)
    return used


def _percentile(ordered: list[float], rank: int) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * rank / 100))]


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_row("sent, acknowledged", f"{report['sent']:,}, {report['acknowledged']:,} at {report['level']}")
    table.add_row("arrived (end offsets)", f"{report['arrived_by_end_offsets']:,}")
    table.add_row("records/s", f"{report['records_per_second']:,}")
    parts = ", ".join(f"{name} {value:.3f}" for name, value in report["cpu_us_per_record"].items())
    table.add_row("CPU µs a record", f"{report['cpu_us_per_record_all']:.3f} ({parts})")
    table.add_row(
        "ms from hand-over to answer", ", ".join(f"{name} {value}" for name, value in report["latency_ms"].items())
    )
    Console().print(table)
