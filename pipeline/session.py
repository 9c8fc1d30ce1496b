"""The Spark session of every job: jars, time zone, interpreter, redaction; all of it known before the JVM starts."""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from ..config.errors import ConfigError
from ..config.pipeline import PipelineSettings

_TREE: Final = Path(__file__).resolve().parents[1]
REDACTED: Final = "(?i)secret|password|passphrase|token|access[.]?key|jaas|keystore[.]key"
_DELTA_JVM: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_PYTHON: Final = "spark.pyspark.python"
_PLACES_OF_JARS: Final = ("spark.jars", "spark.jars.packages")
_LOCAL_IP: Final = "SPARK_LOCAL_IP"
_DEFAULTS: Final = {
    # A frame that is kept gets as many partitions as its rows fill, and not as many as a shuffle may have: an audit of few rows
    # would run two hundred tasks in place of one, at every step.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # Tasks do not wait for the kernel's clock.
    "spark.python.daemon.module": "penstock.pipeline.worker_daemon",
    # Standard error has lines of JSON, and no bars between them.
    "spark.ui.showConsoleProgress": "false",
}
"""Unless the settings say otherwise."""

ALWAYS: Final = {
    # Hours are UTC's, and delta-rs takes no other name of it.
    "spark.sql.session.timeZone": "UTC",
    # Right with it as well, but every copy of a task would write its files.
    "spark.speculation": "false",
    "spark.redaction.regex": REDACTED,
    "spark.sql.redaction.options.regex": REDACTED,
}
"""Set for every job, whatever the settings say."""


def start(settings: PipelineSettings, app_name: str, *, master: str | None = "local[*]") -> SparkSession:
    """The session of this process, started if there is none.

    `master` is None under spark-submit, which has said where to run.

    Raises:
        ConfigError: the jars are not there.
    """
    chosen = conf(settings, submitted=master is None)
    # Spark asks the PATH for an interpreter, and would find one without our packages.
    if _PYTHON in chosen:
        os.environ["PYSPARK_PYTHON"] = chosen[_PYTHON]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master is not None and master.startswith("local"):
        # Everything is in this process: Spark's ports, its web page among them, ask nobody who they are.
        os.environ.setdefault(_LOCAL_IP, "127.0.0.1")
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with _relative_interpreter_folder(os.environ["PYSPARK_PYTHON"]):
        return builder.getOrCreate()


@contextlib.contextmanager
def _relative_interpreter_folder(python: str) -> Generator[None]:
    """Executors unpack their Python where they run, and its path is relative; the driver plans data sources by the same path. So
    its JVM is started in a folder where this interpreter is found by it."""
    path = Path(python)
    if path.is_absolute() or len(path.parts) == 1 or path.exists():
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-driver-"))
    _ = atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / path.parts[0]).symlink_to(sys.prefix)
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


def conf(settings: PipelineSettings, *, submitted: bool = False) -> dict[str, str]:
    """Settings of Spark for these settings. Under spark-submit the jars are on its line, and the JVM has them by now.

    Raises:
        ConfigError: the jars are not there.
    """
    found = dict(_DEFAULTS)
    if settings.writer == "delta-jvm":
        found |= _DELTA_JVM
    if not submitted:
        found[_PYTHON] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        listed = jars_of(settings)
        if listed:
            found["spark.jars"] = ",".join(str(path) for path in listed)
    return {**found, **settings.spark, **ALWAYS}


def jars_of(settings: PipelineSettings) -> list[Path]:
    """The jars that the settings need; none where they name Spark's own settings of jars.

    Raises:
        ConfigError: a folder of them is not there or empty, with how to fill it.
    """
    if any(name in settings.spark for name in _PLACES_OF_JARS):
        return []
    folders = [("jars", settings.jars or _TREE / "build/jars", "kafka")]
    if settings.writer == "delta-jvm":
        folders.append(("jars_delta", settings.jars_delta or _TREE / "build/jars-delta", "delta"))
    found: list[Path] = []
    problems: list[str] = []
    for name, folder, kind in folders:
        there = sorted(folder.absolute().glob("*.jar"))
        found += there
        if not there:
            fetch = Path(__file__).resolve().parent / "jars" / "fetch.sh"
            problems.append(f"{name}: no jars in {folder}: run {fetch} {kind}, and name the folder it fills")
    if problems:
        raise ConfigError(problems)
    return found
