"""Builds the command that runs a job by spark-submit, complete and quoted for a shell. It contains no secrets."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyspark

from ..config.errors import ConfigError
from ..config.pipeline import PipelineSettings
from . import session

SUBMITTED: Final = "--submitted"
"""Option of the job: spark-submit has set the master."""
_APPLICATION: Final = Path(__file__).resolve().parent / "submitted" / "job.py"
_SECRET: Final = re.compile(session.REDACTED)
_MODE: Final = "spark.submit.deployMode"
_PYTHON: Final = "spark.pyspark.python"
_ARCHIVES: Final = "spark.archives"


def spark_submit_command(settings: PipelineSettings, config: Path, words: Sequence[str], *, master: str) -> str:
    """Return the command for `penstock-pipeline <words>` with this settings file.

    Executors unpack a packed Python environment (`spark.archives = "/path/env.tar.gz#environment"` with
    `spark.pyspark.python = "./environment/bin/python"` under [spark]). Drivers in client mode run on this machine,
    where a symbolic link provides the same path.

    Raises:
        ConfigError: jars are missing, or a cluster's driver could not see the settings.
    """
    spark = settings.spark
    in_cluster = spark.get(_MODE, "client") == "cluster"
    if in_cluster and any((config.parent / f"{config.stem}.conf.d").glob("*.toml")):
        raise ConfigError([f"{config}: the driver in a cluster is given this file only: put the drop-ins into it"])
    confs = {_PYTHON: sys.executable, **session.conf(settings, submitted=True)}
    # The job reads secrets from its settings when it starts its session.
    confs = {name: value for name, value in confs.items() if not _SECRET.search(name) or name in session.ALWAYS}
    parts = [_executable(), "--master", master, "--name", f"penstock-pipeline {words[0]}"]
    jars = session.jars_of(settings)
    if jars:
        parts += ["--jars", ",".join(str(path) for path in jars)]
    if in_cluster:
        parts += ["--files", str(config.absolute())]
    for name, value in sorted(confs.items()):
        parts += ["--conf", f"{name}={value}"]
    given = config.name if in_cluster else str(config.absolute())
    parts += [str(_APPLICATION), *words, "--config", given, SUBMITTED]
    quoted = " ".join(shlex.quote(part) for part in parts)
    return _command_prefix(confs, in_cluster=in_cluster) + quoted


def _command_prefix(confs: Mapping[str, str], *, in_cluster: bool) -> str:
    """Return the start of the command: variables, and a link to the interpreter where the executors' path does not
    exist on this machine."""
    python = Path(confs[_PYTHON])
    if in_cluster or python.is_absolute() or _ARCHIVES not in confs:
        return f"PYSPARK_DRIVER_PYTHON={shlex.quote(sys.executable)} "
    here = shlex.quote(sys.prefix)
    return f"ln -sfn {here} {shlex.quote(python.parts[0])} && PYSPARK_DRIVER_PYTHON={shlex.quote(sys.executable)} "


def _executable() -> str:
    """Return spark-submit of the Spark in SPARK_HOME, otherwise that of the Python package."""
    home = os.environ.get("SPARK_HOME")
    return str((Path(home) if home else Path(pyspark.__file__).parent) / "bin" / "spark-submit")
