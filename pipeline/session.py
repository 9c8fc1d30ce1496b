"""The Spark session of every job: jars, time zone, interpreter and redaction, all set before the JVM starts."""

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
    # A cached frame gets as many partitions as its rows fill, not as many as a shuffle may have. Otherwise an audit of
    # few rows would run two hundred tasks instead of one at every step.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # Tasks do not wait for delayed TCP acknowledgements.
    "spark.python.daemon.module": "penstock.pipeline.worker_daemon",
    # Standard error has only JSON lines, no progress bars.
    "spark.ui.showConsoleProgress": "false",
}
"""Defaults that the settings may override."""

ALWAYS: Final = {
    # Hours are in UTC, and delta-rs accepts no other name for it.
    "spark.sql.session.timeZone": "UTC",
    # Results would be correct with speculation, but every copy of a task would write its files.
    "spark.speculation": "false",
    "spark.redaction.regex": REDACTED,
    "spark.sql.redaction.options.regex": REDACTED,
}
"""Set for every job, overriding the settings."""


def start(settings: PipelineSettings, app_name: str, *, master: str | None = "local[*]") -> SparkSession:
    """Return the session of this process; start it if needed.

    `master` is None under spark-submit, which sets the master.

    Raises:
        ConfigError: jars are missing.
    """
    chosen = conf(settings, submitted=master is None)
    # By default Spark takes an interpreter from the PATH, which may lack our packages.
    if _PYTHON in chosen:
        os.environ["PYSPARK_PYTHON"] = chosen[_PYTHON]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master is not None and master.startswith("local"):
        # Everything runs in this process, and Spark's ports, including its web page, have no authentication.
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
    """Inside the block, work in a folder where the relative path `python` leads to this interpreter. Executors unpack
    their Python into their working folder, so its path is relative, and the driver's JVM looks up Python data
    sources with the same path."""
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
    """Return Spark's settings. Under spark-submit the jars are on its command line, and the JVM has loaded them
    already.

    Raises:
        ConfigError: jars are missing.
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
    """Return the jars that the settings need; none if they use Spark's own jar settings.

    Raises:
        ConfigError: a folder of jars is missing or empty; the message explains how to fill it.
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
