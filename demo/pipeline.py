"""`make pipeline-demo`: from Kafka into a table, a loss and a duplicate planted behind everybody's back, and both found by name.

`KAFKA_BOOTSTRAP=host:port` uses that cluster, with topics of its own; `DEMO_RECORDS` says how many records are sent.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from penstock.client import Producer
from rich.console import Console

from . import planted
from .kafka_node import kafka, make_topic, tail
from .running import DemoError, await_ready, free_ports

RECORDS: Final = int(os.environ.get("DEMO_RECORDS", "60000"))
PARTITIONS: Final = 4
LOST: Final = 3
DOUBLED: Final = 2
VERB_S: Final = 900
END_S: Final = 60
REPORT: Final = Path(os.environ.get("PENSTOCK_BUILD", "build")) / "pipeline-demo" / "audit.html"
MEANING: Final = {0: "complete", 10: "late", 11: "unknown", 12: "duplicated", 13: "lost"}

console = Console(highlight=False, width=110)


class Demo:
    """Where everything of one run is."""

    def __init__(self, folder: Path, address: str) -> None:
        """Names of topics are its own, also on somebody's cluster."""
        suffix = "" if "KAFKA_BOOTSTRAP" not in os.environ else f"-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.address = address
        self.topic = f"clicks{suffix}"
        self.audit_topic = f"penstock.audit{suffix}"
        self.tables = folder / "tables"
        self.bronze = self.tables / f"bronze_{self.topic.replace('-', '_')}"
        self.daemon_settings = folder / "penstock.toml"
        self.pipeline_settings = folder / "pipeline.toml"
        self.runtime = folder / "run"
        self.steps = 0

    def write_settings(self) -> None:
        """Both settings files, as short as they can be."""
        self.daemon_settings.write_text(
            f"data_dir = {json.dumps(str(self.folder / 'data'))}\nruntime_dir = {json.dumps(str(self.runtime))}\nshards = 2\n"
            f"[kafka]\nbootstrap.servers = {json.dumps(self.address)}\n"
            f"[audit]\ntopic = {json.dumps(self.audit_topic)}\ninterval_s = 1\n"
            f'[exporter]\nlisten = "127.0.0.1:{free_ports(1)[0]}"\n'
        )
        self.pipeline_settings.write_text(
            f"tables = {json.dumps(str(self.tables))}\ncheckpoints = {json.dumps(str(self.folder / 'checkpoints'))}\n"
            f"[kafka]\nbootstrap.servers = {json.dumps(self.address)}\n"
            f'[topics.{json.dumps(self.topic)}]\nformat = "json"\nschema = "user STRING, page STRING, number BIGINT"\n'
            f"[audit]\ntopic = {json.dumps(self.audit_topic)}\nreport = {json.dumps(str(REPORT.absolute()))}\n"
            '[seal]\ngrace = "0s"\n'
            "# Small, for a demo; leave it out and Spark takes what it finds.\n"
            '[spark]\n"driver.memory" = "1g"\n"ui.enabled" = "false"\n"sql.shuffle.partitions" = "2"\n'
        )

    def step(self, done: str, outcome: str = "") -> None:
        """Tell one step."""
        self.steps += 1
        console.print(f"[bold cyan]{self.steps:2}[/bold cyan]  {done:<52} {outcome}".rstrip())


def main() -> int:
    """The exit code: 0 when the audit named what was planted, no more and no less."""
    signal.signal(signal.SIGTERM, _ended)
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    console.rule("Penstock pipeline demo")
    try:
        with ExitStack() as running:
            began = time.monotonic()
            own = os.environ.get("KAFKA_BOOTSTRAP", "")
            address = own or running.enter_context(kafka(folder / "kafka"))
            demo = Demo(folder, address)
            demo.step(
                "Kafka, one node" if not own else f"your Kafka at {own}", f"up after {time.monotonic() - began:.1f} s"
            )
            return _run(demo)
    except DemoError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("\nstopped; everything that was started has ended")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ended(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(demo: Demo) -> int:
    demo.write_settings()
    make_topic(demo.address, demo.topic, PARTITIONS)
    _penstock(demo, "audit", "create-topic")
    with _daemon(demo):
        demo.step("the daemon: a router, two shards", "its clock is in the last hour, which can be sealed")
        began = time.monotonic()
        _send(demo)
        spent = time.monotonic() - began
        demo.step(f"{RECORDS:,} clicks sent through it", f"all acknowledged by Kafka after {spent:.1f} s")
    demo.step("the daemon stopped", "its books are closed")
    _land(demo)
    if _audit(demo) != 0:
        raise DemoError("this should have been complete")

    console.print("\n    Now things go wrong that nobody tells the pipeline about.\n")
    rows = planted.some_rows(demo.bronze, LOST + DOUBLED)
    gone, again = rows[:LOST], rows[LOST:]
    planted.delete_rows(demo.bronze, gone)
    demo.step(f"{LOST} rows deleted from the table by another program")
    planted.write_again(demo.address, demo.topic, again)
    demo.step(f"{DOUBLED} records written to Kafka again, header and all")
    _land(demo)
    code = _audit(demo)
    exact = _compare(demo, gone, again)
    _seal(demo)
    console.print(f"\n    The report: [bold]{REPORT}[/bold]")
    console.rule()
    return 0 if exact and code == 13 else 1


@contextmanager
def _daemon(demo: Demo) -> Iterator[None]:
    command = [sys.executable, "-I", "-m", "penstock.cli.main", "run", "--config", str(demo.daemon_settings)]
    environment = os.environ | _earlier(demo.folder)
    with (demo.folder / "penstock.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
        )
    try:
        try:
            await_ready(process, demo.runtime)
        except DemoError as error:
            raise DemoError(f"{error}\n{tail(demo.folder / 'penstock.log')}") from error
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _earlier(folder: Path) -> dict[str, str]:
    """An environment in which it is ten to the last full hour: an hour is sealed when it is over. Raises DemoError."""
    library = folder / "earlier.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(Path(__file__).with_name("earlier.c"))]
    if subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode != 0:
        raise DemoError("gcc could not compile demo/earlier.c")
    return {"LD_PRELOAD": str(library), "DEMO_SECONDS_AGO": str(int(time.time()) % 3_600 + 600)}


def _send(demo: Demo) -> None:
    """Through the client library, as an application does; returns when Kafka has acknowledged every record."""
    with Producer(str(demo.runtime / "penstock.sock"), client_id="demo", level="delivered") as producer:
        futures = [
            producer.send(demo.topic, planted.value_of(number), key=b"user-%d" % (number % 997))
            for number in range(RECORDS)
        ]
        producer.flush(timeout=120)
        for future in futures:
            future.result(timeout=60)


def _land(demo: Demo) -> None:
    code, spent, output = _pipeline(demo, "land", "--once")
    if code != 0:
        raise DemoError(f"land ended with exit code {code}:\n{output}")
    demo.step(
        "penstock-pipeline land --once",
        f"{planted.count_rows(demo.bronze):,} rows in {demo.bronze.name}, {spent:.0f} s",
    )


def _audit(demo: Demo) -> int:
    code, spent, output = _pipeline(demo, "audit")
    if code not in MEANING:
        raise DemoError(f"audit ended with exit code {code}:\n{output}")
    colour = "green" if code == 0 else "red"
    demo.step("penstock-pipeline audit", f"exit code {code}: [{colour}]{MEANING[code]}[/{colour}], {spent:.0f} s")
    return code


def _compare(demo: Demo, gone: list[dict[str, object]], again: list[dict[str, object]]) -> bool:
    """Whether the audit named exactly what was planted; tells what it named."""
    lost, doubled = planted.named(demo.tables)
    for name in lost:
        console.print(f"      [red]lost[/red]   {name}")
    for name, places in doubled.items():
        where = ", ".join(f"partition {partition} offset {offset:,}" for partition, offset in places)
        console.print(f"      [blue]twice[/blue]  {name}  at {where}")
    exact = lost == sorted(map(planted.text_of, gone)) and sorted(doubled) == sorted(map(planted.text_of, again))
    if exact:
        console.print("      These are the records that were planted, each of them and no other.")
    else:
        console.print("      [red]This is not what was planted.[/red]")
    return exact


def _seal(demo: Demo) -> None:
    code, spent, output = _pipeline(demo, "seal")
    if code != 0:
        raise DemoError(f"seal ended with exit code {code}:\n{output}")
    sealed = planted.last_seals(demo.tables)
    if not sealed:
        raise DemoError(f"nothing was sealed:\n{output}")
    for row in sealed:
        told = f"{row['status']}: {row['duplicates_removed']} doubled rows removed, {row['lost']} lost, {spent:.0f} s"
        demo.step("penstock-pipeline seal", told)


def _penstock(demo: Demo, *words: str) -> None:
    command = [sys.executable, "-I", "-m", "penstock.cli.main", *words, "--config", str(demo.daemon_settings)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=False, timeout=60)
    if done.returncode != 0:
        raise DemoError(
            f"penstock {' '.join(words)} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def _pipeline(demo: Demo, verb: str, *options: str) -> tuple[int, float, str]:
    """One run of `penstock-pipeline`: exit code, seconds, the end of what it said."""
    command = [
        *(sys.executable, "-I", "-m", "penstock.pipeline.cli", verb, *options),
        *("--config", str(demo.pipeline_settings), "--master", "local[2]"),
    ]
    # Spark would take the address of the host's name, and warn where it is the loopback's.
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    began = time.monotonic()
    log = demo.folder / f"{verb}.log"
    with log.open("wb") as out, console.status(f"penstock-pipeline {verb} …"):
        # A session of its own: ^C comes here first, and ends it in order.
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
        )
        try:
            code = process.wait(VERB_S)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"{verb} did not end within {VERB_S} s:\n{tail(log)}") from error
        finally:
            _end(process)
    return code, time.monotonic() - began, tail(log)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


if __name__ == "__main__":
    sys.exit(main())
