"""`penstock-pipeline` as operators run it: processes with a settings file, waited for by what they finish, killed whole.

A driver is a Python process, a JVM, and pyspark's workers, whose daemon has a process group of its own: killing a group would
leave them. So all are found by a mark in their environment, and killed by their ids.
"""

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from .processes import PATIENCE, REPOSITORY, Deadline, TooLateError, end, start_tied, tail, wait_until

MARK: Final = "PENSTOCK_TEST_DRIVER"
WITHOUT_SPARK: Final = ("retire", "check")
START_S: Final = 120.0
VERB_S: Final = 300.0
WRITER: Final = os.environ.get("PENSTOCK_WRITER", "delta-rs")
"""`delta-jvm` where tests run under the Spark that Delta's connector is made for (tools/soak.sh)."""
LIVING: Final["set[Pipeline]"] = set()
"""Pipelines that are not closed yet: a failed test shows their logs."""

Value = str | int | float | bool


def marked(mark: str) -> list[int]:
    """The living processes whose environment has this mark."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def kill_all(mark: str, *, seconds: float = 20) -> int:
    """`kill -9` of all processes with this mark, until there is none; returns how many there were. Raise TooLateError."""
    deadline = Deadline(seconds, f"all processes of {mark} are gone")
    killed: set[int] = set()
    while pids := marked(mark):
        # Whoever forks meanwhile is found by the next look.
        _kill(pids, deadline)
        killed |= set(pids)
    return len(killed)


def _kill(pids: Iterable[int], deadline: Deadline) -> None:
    ends: list[int] = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                ends.append(os.pidfd_open(pid))
        for descriptor in ends:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in ends:
            while not select.select([descriptor], [], [], deadline.left())[0]:
                pass
    finally:
        for descriptor in ends:
            os.close(descriptor)


class Ended(NamedTuple):
    """What a verb that ran to its end left."""

    status: int
    output: str
    """Standard output."""
    log: str
    """The end of standard error."""


class Driver:
    """One run of one verb."""

    def __init__(self, pipeline: "Pipeline", verb: str, options: Iterable[str]) -> None:
        """Start it."""
        self.mark = uuid.uuid4().hex
        self._pipeline = pipeline
        self._output = pipeline.folder / f"{verb}-{self.mark[:8]}.out"
        self.log_path = self._output.with_suffix(".err")
        with self._output.open("wb") as out, self.log_path.open("wb") as log:
            self.process = start_tied(
                [
                    *(sys.executable, "-I", "-m", "penstock.pipeline.cli", verb),
                    *("--config", str(pipeline.config_path)),
                    *(() if verb in WITHOUT_SPARK else ("--master", pipeline.master)),
                    *options,
                ],
                env=os.environ | {MARK: self.mark},
                cwd=pipeline.folder,
                stdout=out,
                stderr=log,
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def wait_batch(self, topic: str, batch: int, *, begun: bool = False, seconds: float = START_S) -> None:
        """Wait until `land` has finished batch `batch` of a topic, or only `begun` it. Raise TooLateError, or AssertionError
        when the driver ended."""
        which = "offsets" if begun else "commits"

        def look() -> bool:
            there = self._pipeline.last_batch(topic, which) >= batch
            assert there or self.running, f"land ended with {self.process.returncode}:\n{tail(self.log_path)}"
            return there

        _ = wait_until(look, seconds=seconds, what=f"land has {batch} in {which} of {topic}", every=0.02)

    def kill(self) -> int:
        """`kill -9` of the driver with all it started; returns how many processes that were."""
        count = kill_all(self.mark)
        _ = self.process.wait(20 * PATIENCE)
        return count

    def stop(self, *, seconds: float = 60) -> int:
        """SIGTERM, as an operator's tool sends it; returns the exit status. Raise TooLateError."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise TooLateError(f"land did not stop within {seconds * PATIENCE} s:\n{tail(self.log_path)}") from None

    def wait(self, *, seconds: float = VERB_S) -> Ended:
        """Wait for the end by itself. Raise TooLateError."""
        try:
            status = self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise TooLateError(f"not done within {seconds * PATIENCE} s:\n{tail(self.log_path)}") from None
        return Ended(status, self._output.read_text(errors="replace"), tail(self.log_path))

    def close(self) -> None:
        """Leave nothing behind."""
        if self.running:
            _ = end(self.process, seconds=5)
        _ = kill_all(self.mark)


class Pipeline:
    """A settings file with tables and checkpoints in a folder of their own, and the drivers that used them."""

    def __init__(
        self,
        bootstrap: str,
        topics: Mapping[str, Mapping[str, Value]],
        *,
        sections: Mapping[str, Mapping[str, Value]] | None = None,
        master: str = "local[2]",
    ) -> None:
        """Write the settings: the topics by name, and more settings by section."""
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pipeline-"))
        self.tables = self.folder / "tables"
        self.checkpoints = self.folder / "checkpoints"
        self.config_path = self.folder / "pipeline.toml"
        self.report = self.folder / "report.html"
        self.master = master
        self._bootstrap = bootstrap
        self._drivers: list[Driver] = []
        self.configure(topics, sections=sections)
        LIVING.add(self)

    def configure(
        self, topics: Mapping[str, Mapping[str, Value]], *, sections: Mapping[str, Mapping[str, Value]] | None = None
    ) -> None:
        """Write the settings anew."""
        given = {name: dict(values) for name, values in (sections or {}).items()}
        tables: dict[str, Mapping[str, Value]] = {
            "kafka": {"bootstrap.servers": self._bootstrap, **given.pop("kafka", {})},
            "land": {"trigger": "1s", "minOffsetsPerTrigger": 1, **given.pop("land", {})},
            "audit": {"report": str(self.report), **given.pop("audit", {})},
            "spark": {**small_spark(), **given.pop("spark", {})},
            **given,
            **{f"topics.{json.dumps(name)}": {"format": "raw", **values} for name, values in topics.items()},
        }
        places = {"tables": str(self.tables), "checkpoints": str(self.checkpoints), "writer": WRITER}
        lines = [f"{name} = {json.dumps(value)}" for name, value in places.items()]
        for table, values in tables.items():
            lines += [
                "",
                f"[{table}]",
                *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items()),
            ]
        _ = self.config_path.write_text("\n".join(lines) + "\n")

    def start(self, verb: str, *options: str) -> Driver:
        """Start a verb."""
        driver = Driver(self, verb, options)
        self._drivers.append(driver)
        return driver

    def run(self, verb: str, *options: str, seconds: float = VERB_S) -> Ended:
        """Run a verb to its end."""
        return self.start(verb, *options).wait(seconds=seconds)

    def last_batch(self, topic: str, which: str = "commits") -> int:
        """The highest batch that the checkpoint of a topic's `land` has in its log of `commits`, or of `offsets`; -1: none."""
        folder = self.checkpoints / "land" / topic / which
        try:
            names = [path.name for path in folder.iterdir()]
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def read_offsets(self, topic: str) -> dict[int, int]:
        """Partition to the offset that the newest finished batch has read up to."""
        batch = self.last_batch(topic)
        if batch < 0:
            return {}
        text = (self.checkpoints / "land" / topic / "offsets" / str(batch)).read_text()
        named = json.loads(text.splitlines()[-1])[topic]
        return {int(partition): int(offset) for partition, offset in named.items()}

    def wait_read(self, driver: Driver, topic: str, wanted: Mapping[int, int], *, seconds: float = START_S) -> None:
        """Wait until a running `land` has finished a batch that reaches these offsets. Raise TooLateError, or AssertionError."""

        def look() -> bool:
            read = self.read_offsets(topic)
            there = all(read.get(partition, 0) >= offset for partition, offset in wanted.items())
            assert there or driver.running, f"land ended with {driver.process.returncode}:\n{tail(driver.log_path)}"
            return there

        _ = wait_until(look, seconds=seconds, what=f"land has read {topic} up to {dict(wanted)}")

    def describe(self) -> str:
        """What the last drivers logged, for a failure's message."""
        return "\n\n".join(f"{each.log_path.name}:\n{tail(each.log_path, lines=60)}" for each in self._drivers[-3:])

    def close(self) -> None:
        """End what runs and remove the folder, unless PENSTOCK_KEEP is set."""
        LIVING.discard(self)
        for driver in self._drivers:
            driver.close()
        if "PENSTOCK_KEEP" not in os.environ:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """For `with`; nothing is started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close. A failure is told what the drivers logged."""
        if raised is not None:
            raised.add_note(self.describe())
        self.close()


JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Compile little: up sooner, slower in the long run. An archive of classes holds for one kind of collector only."""
JAVA: Final = "spark.driver.extraJavaOptions"


FEW_ROWS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For plans of a few thousand rows: planned once and interpreted. To plan them anew at every stage and to compile them takes many
times what it takes to run them."""


@contextlib.contextmanager
def compiling(spark: SparkSession, *, wanted: bool = True) -> Iterator[None]:
    """While it lasts, Spark computes expressions by code that it compiles, or by interpreting them."""
    changed = {
        "spark.sql.codegen.wholeStage": str(wanted).lower(),
        "spark.sql.codegen.factoryMode": "CODEGEN_ONLY" if wanted else "NO_CODEGEN",
    }
    before = {name: spark.conf.get(name) for name in changed}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            assert value is not None
            spark.conf.set(name, value)


def small_spark() -> dict[str, str]:
    """Spark's settings for tests: little memory, quick to start."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        **class_archive(),
    }


def class_archive(*, make: Path | None = None) -> dict[str, str]:
    """The setting of a JVM that begins with the classes that an earlier one had loaded, where there is such an archive.

    Where there is none yet, the JVM leaves one in the file to `make` when it ends by itself.
    """
    options = list(JAVA_OPTIONS)
    archive = archive_path()
    quiet = ("-Xlog:cds=off", "-Xlog:class+path=off")
    if archive.exists():
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *quiet]
    elif make is not None:
        options += [f"-XX:ArchiveClassesAtExit={make}", *quiet]
    return {JAVA: " ".join(options)}


def keep_archive(made: Path) -> None:
    """End this process's JVM, and have others use the archive that it leaves in `made`, if it does."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    _ = gateway.proc.wait(120)
    SparkContext._gateway = SparkContext._jvm = None
    if made.exists():
        archive_path().parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: other JVMs may be starting.
        partial = archive_path().with_suffix(f".{os.getpid()}")
        _ = shutil.copyfile(made, partial)
        _ = partial.rename(archive_path())


@cache
def archive_path() -> Path:
    """Where the archive for this Spark, these jars and this JVM is kept; one that does not fit is never looked at."""
    java = subprocess.run(["java", "-version"], check=True, capture_output=True, timeout=60).stderr
    jars = sorted(path.name for path in (REPOSITORY / "build" / "jars").glob("*.jar"))
    known = repr((pyspark.__version__, pyspark.__file__, java, jars, JAVA_OPTIONS))
    return REPOSITORY / "build" / "spark" / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"
