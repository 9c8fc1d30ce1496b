"""The jobs in the session of the tests, and what the audit's tables say of a run, read without Spark."""

import time
from typing import Any, Final, NamedTuple

from penstock.config.pipeline import load_pipeline
from penstock.pipeline.audit import audit_job
from penstock.pipeline.land.land_job import LandJob
from penstock.pipeline.seal import seal_job
from penstock.pipeline.tables import open_tables
from pyspark.sql import SparkSession

from tests.harness import bronze
from tests.harness.land_driver import land_available
from tests.harness.spark_driver import Pipeline

COMPLETE: Final = 0
LATE: Final = 10
UNKNOWN: Final = 11
DUPLICATED: Final = 12
LOST: Final = 13
HOUR_S: Final = 3_600
Name = tuple[str, str]
"""A topic, and a record's id in its text form."""


class Verdict(NamedTuple):
    """What one run of the audit wrote."""

    exit_code: int
    rows: list[dict[str, Any]]
    """`audit_report`, but for those of foreign rows."""
    classes: dict[Name, str]
    """Missing ids with their class."""
    doubled: dict[Name, int]
    """Doubled ids, and how often they are there."""

    def of_class(self, word: str) -> set[Name]:
        """The missing ids of a class."""
        return {name for name, each in self.classes.items() if each == word}

    def total(self, column: str) -> int:
        """Sum of a column of the report."""
        return sum(row[column] for row in self.rows)

    @property
    def statuses(self) -> set[str]:
        """Of the report's rows."""
        return {row["status"] for row in self.rows}

    @property
    def doubts(self) -> list[str]:
        """Why rows are unknown."""
        return [doubt for row in self.rows for doubt in row["doubts"] or ()]


def land_once(spark: SparkSession, pipeline: Pipeline) -> None:
    """Land what is in the topics now. Raise LandError."""
    settings = load_pipeline(pipeline.config_path)
    land_available(LandJob(spark, settings, open_tables(settings, spark)))


def run_audit(spark: SparkSession, pipeline: Pipeline, *, topic: str | None = None, ahead_s: float = 0.0) -> Verdict:
    """One audit, of the books in another `topic` if one is named, at a time `ahead_s` from now."""
    settings = load_pipeline(pipeline.config_path)
    if topic is not None:
        settings = settings.model_copy(update={"audit": settings.audit.model_copy(update={"topic": topic})})
    result = audit_job.run(spark, settings, open_tables(settings, spark), hours=None, now_ms=now_ms(ahead_s))
    return verdict(pipeline, result.exit_code, result.run_id)


def run_seal(spark: SparkSession, pipeline: Pipeline, *, ahead_s: float = 0.0) -> list[dict[str, Any]]:
    """Seal what can be sealed, at a time `ahead_s` from now, and return the rows of `seals`."""
    settings = load_pipeline(pipeline.config_path)
    _ = seal_job.run(spark, settings, open_tables(settings, spark), now_ms=now_ms(ahead_s))
    return seals(pipeline)


def now_ms(ahead_s: float) -> int:
    """Wall time in ms since 1970, or `ahead_s` later."""
    return round((time.time() + ahead_s) * 1_000)


def seals(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The rows of `seals`."""
    found = bronze.rows_of(pipeline.tables / "seals")
    return [] if found is None else found.to_pylist()


def verdict(pipeline: Pipeline, exit_code: int, run: str) -> Verdict:
    """What the tables have of a run."""
    report = [row for row in _rows(pipeline, "audit_report", run) if row["incarnation"]]
    classes = {
        (row["topic"], f"{row['incarnation']}-{row['origin']}-{ordinal}"): row["class"]
        for row in _rows(pipeline, "audit_missing", run)
        for ordinal in range(row["first"], row["end"])
    }
    doubled = {
        (row["topic"], f"{row['incarnation']}-{row['origin']}-{row['ordinal']}"): row["copies"]
        for row in _rows(pipeline, "audit_duplicates", run)
    }
    return Verdict(exit_code, report, classes, doubled)


def last_verdict(pipeline: Pipeline, exit_code: int) -> Verdict:
    """What the tables have of the newest run."""
    found = bronze.rows_of(pipeline.tables / "audit_report")
    assert found is not None, "no audit has written its report"
    newest = max(found.select(["run", "run_at"]).to_pylist(), key=lambda row: row["run_at"])
    return verdict(pipeline, exit_code, newest["run"])


def _rows(pipeline: Pipeline, table: str, run: str) -> list[dict[str, Any]]:
    found = bronze.rows_of(pipeline.tables / table)
    return [] if found is None else [row for row in found.to_pylist() if row["run"] == run]
