"""A driver of `land` on the rate source, as a process that ends itself where a test says: `python -m tests.harness.land_driver PLAN`.

PLAN is the JSON of `Plan`. The status is 0 when the last batch is behind it, 3 when `land` stopped, whose sentence is then on standard
output.
"""

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.config.pipeline import PipelineSettings, validate_pipeline
from penstock.pipeline import session
from penstock.pipeline.land.batches import LandError
from penstock.pipeline.land.land_job import LandJob
from penstock.pipeline.tables import open_tables
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.harness.processes import wait_until
from tests.harness.rate_source import rate_source
from tests.harness.spark_driver import small_spark

STOPPED: Final = 3
WAIT_S: Final = 360.0
ASKED_FOR: Final = "a failure was asked for here"
Place = tuple[str, int]
"""A step, and a batch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a driver does."""

    folder: str
    last_batch: int
    rows: int = 500
    schema: str = "id long"
    topic: str = "rate"
    fail_every: int = 0
    kill_at: list[Any] | None = None
    """Here the JVM and this process end by SIGKILL."""
    raise_at: list[list[Any]] = field(default_factory=list[list[Any]])
    """At each of these something raises, once; then the query is started again."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    def settings(self) -> PipelineSettings:
        return validate_pipeline(
            {
                "tables": f"{self.folder}/tables",
                "checkpoints": f"{self.folder}/checkpoints",
                "kafka": {"bootstrap.servers": "127.0.0.1:1"},
                "land": {"trigger": "0s"},
                "topics": {self.topic: {"format": "json", "schema": self.schema}},
                "spark": small_spark(),
            },
            "plan",
        )


class Ends:
    """Ends this process, or the query, at the places of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._kill_at = tuple(plan.kill_at or ())
        self._raise_at = {(step, batch) for step, batch in plan.raise_at}

    def reached(self, step: str, topic: str, batch: int) -> None:
        if (step, batch) == self._kill_at:
            gateway = SparkContext._gateway
            assert gateway is not None
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if (step, batch) in self._raise_at:
            self._raise_at.remove((step, batch))
            raise ConnectionError(ASKED_FOR)

    @property
    def left(self) -> bool:
        """Whether something is still to raise."""
        return bool(self._raise_at)


def land_available(land: LandJob) -> None:
    """Land the records that the topics hold now."""
    _ = land.start(once=True)
    _ = land.wait()


def run_until(land: LandJob, batch: int, *, seconds: float = WAIT_S) -> None:
    """Wait until all queries have this batch behind them, then stop in order. Raise what `land` raises, or TooLateError."""

    def look() -> bool:
        if land.wait(seconds=0.05):
            return True
        done = [query.lastProgress for query in land.queries]
        return all(each is not None and each["batchId"] >= batch for each in done)

    _ = wait_until(look, seconds=seconds, what=f"batch {batch} is landed")
    land.stop()


def drive(spark: SparkSession, plan: Plan) -> None:
    """Run a plan in this session: again after each failure that it asks for. Raise LandError for any other."""
    settings = plan.settings()
    ends = Ends(plan)
    source = partial(rate_source, rows=plan.rows, fail_every=plan.fail_every)
    while True:
        land = LandJob(spark, settings, open_tables(settings, spark), source=source, steps=ends)
        try:
            _ = land.start()
            run_until(land, plan.last_batch)
        except LandError as error:
            if ASKED_FOR not in str(error):
                raise
        else:
            assert not ends.left, "not every failure was met"
            return


def main(text: str) -> int:
    """Run a plan in a session of its own."""
    plan = Plan(**json.loads(text))
    spark = session.start(plan.settings(), "land-driver", master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    try:
        drive(spark, plan)
    except LandError as error:
        print(error)
        return STOPPED
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.exit(main(sys.argv[1]))
