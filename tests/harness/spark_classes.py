"""An archive of the classes that jobs load, for the JVMs of the tests to begin with: `python -m tests.harness.spark_classes`.

A JVM lands a little and leaves the archive when it ends. Without one each start of a driver takes 8 CPU seconds more, and tests start
some twenty.
"""

import contextlib
import tempfile
from pathlib import Path
from typing import Final

from penstock.pipeline import session
from py4j.protocol import Py4JJavaError

from .land_driver import Plan, drive
from .spark_driver import archive_path, class_archive, keep_archive, small_spark

NOWHERE: Final = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.default.api.timeout.ms": "300",
    "kafka.request.timeout.ms": "300",
    "fetchOffset.numRetries": "1",
    "subscribe": "none",
}


def make(folder: Path) -> None:
    """Do what the jobs do in a session of this process, and keep what its JVM has loaded."""
    made = folder / "spark.jsa"
    plan = Plan(folder=str(folder), last_batch=1, rows=60)
    settings = plan.settings().model_copy(update={"spark": small_spark() | class_archive(make=made)})
    spark = session.start(settings, "penstock-classes", master="local[2]")
    spark.sparkContext.setLogLevel("OFF")
    drive(spark, plan)
    # Of the connector what asks brokers, which are not there.
    with contextlib.suppress(Py4JJavaError):
        _ = spark.read.format("kafka").options(**NOWHERE).load().collect()
    spark.stop()
    keep_archive(made)


if __name__ == "__main__" and not archive_path().exists():
    with tempfile.TemporaryDirectory(prefix="penstock-classes-") as place:
        make(Path(place))
