"""A standalone Spark cluster on this machine: a master and two workers of one core each, from pyspark's own scripts.

Executors run Python from a packed environment that is shipped with the job, as on a cluster where nothing is installed: in it are this
project's files as the wheel has them, and nothing of the tree is on its path. Only what others made is looked for in the tests' own
environment, because packing it takes longer than the tests.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from .processes import PATIENCE, REPOSITORY, end, start_tied, tail, wait_until
from .spark_driver import JAVA, MARK, class_archive, kill_all

WORKERS: Final = 2
ENVIRONMENT: Final = "environment"
START_S: Final = 60.0
_URL: Final = re.compile(r"Starting Spark master at (spark://\S+)")


class SparkCluster:
    """Runs from its making to its close."""

    def __init__(self) -> None:
        """Start master and workers; wait until the master knows the workers."""
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
        self.mark = uuid.uuid4().hex
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            master = self._start("master.Master", "--port", "0")
            found = wait_until(
                lambda: _URL.search(master.read_text()), seconds=START_S, what=f"the master is up:\n{tail(master)}"
            )
            self.url = found[1]
            for number in range(WORKERS):
                _ = self._start(
                    "worker.Worker",
                    *("--cores", "1", "--memory", "1g", "--work-dir", str(self.work(number)), self.url),
                    name=f"worker-{number}",
                )
            _ = wait_until(
                lambda: master.read_text().count("Registering worker") >= WORKERS,
                seconds=START_S,
                what="the workers are known",
            )
        except BaseException:
            self.close()
            raise

    def work(self, number: int) -> Path:
        """Where a worker runs executors."""
        return self.folder / f"work-{number}"

    def unpacked(self) -> list[Path]:
        """The environments that executors were given and unpacked, each on its worker."""
        return sorted(self.folder.glob(f"work-*/app-*/*/{ENVIRONMENT}"))

    def executor_logs(self) -> str:
        """What executors wrote on standard error."""
        return "\n".join(tail(path) for path in sorted(self.folder.glob("work-*/app-*/*/stderr")))

    def _start(self, what: str, *options: str, name: str = "master") -> Path:
        log = self.folder / f"{name}.log"
        spark = Path(pyspark.__file__).parent
        environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")
        }
        environment |= {
            MARK: self.mark,
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": class_archive()[JAVA],
        }
        with log.open("wb") as out:
            self._processes.append(
                start_tied(
                    [
                        *(str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"),
                        *("--host", "127.0.0.1", "--webui-port", "0", *options),
                    ],
                    env=environment,
                    cwd=self.folder,
                    stdout=out,
                    stderr=out,
                )
            )
        return log

    def close(self) -> None:
        """End all of it and remove the folder."""
        for process in reversed(self._processes):
            _ = end(process, seconds=5)
        _ = kill_all(self.mark)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close. A failure is told what executors logged."""
        if raised is not None:
            raised.add_note(self.executor_logs())
        self.close()


def pack_environment(folder: Path) -> Path:
    """A packed environment of Python, as `spark.archives` takes it."""
    prefix = folder / "packed"
    _run(sys.executable, "-m", "venv", "--without-pip", str(prefix))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = prefix / "lib" / version / "site-packages"
    # The files that the wheel would have; the tree's folders are found by pyproject.toml only.
    _run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(packages))
    _ = (packages / "of-the-tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(prefix, arcname=".")
    return archive


def _run(*words: str) -> None:
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def shell(line: str, *, folder: Path, mark: str, seconds: float = 150) -> "subprocess.CompletedProcess[str]":
    """Run a line as an operator would paste it, and leave nothing of it behind."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    try:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=bare | {MARK: mark},
            capture_output=True,
            text=True,
            timeout=seconds * PATIENCE,
            check=False,
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            _ = kill_all(mark)
