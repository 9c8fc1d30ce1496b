"""Selects the hours and topics of a run."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ..hours import HourRange
from ..report.data import LeftOut
from ..seal.decisions import SealStatus
from ..seal.rows import SEALS_TABLE, read_seals
from ..tables import Tables
from .totals import AuditTotals

Hours = Mapping[str, Iterable[str]]
"""Hours by topic."""


class Scope(NamedTuple):
    """The hours that a run looks at."""

    hours: dict[str, list[str]]
    """By topic, sorted."""
    sealed: int
    """Number of hours of topics that were skipped because they are sealed."""
    left_out: tuple[LeftOut, ...]

    def all_hours(self) -> list[str]:
        """Hours of any topic, sorted."""
        return sorted({hour for hours in self.hours.values() for hour in hours})

    def frame(self, spark: SparkSession) -> DataFrame:
        """One row of `topic` and `hour` for each."""
        rows = [(topic, hour) for topic, hours in self.hours.items() for hour in hours]
        columns = [pa.array([row[place] for row in rows], pa.string()) for place in (0, 1)]
        return spark.createDataFrame(pa.table(columns, names=["topic", "hour"]))


def audit_topic_hours(books: AuditTotals, topics: Iterable[str]) -> dict[str, set[str]]:
    """Hours in the audit topic, by topic."""
    found: dict[str, set[str]] = {}
    for topic, hour in books.intakes.where(F.col("topic").isin(*topics)).select("topic", "hour").distinct().collect():
        found.setdefault(topic, set()).add(hour)
    return found


def sealed_hours(tables: Tables) -> dict[str, set[str]]:
    """Hours that are sealed according to their newest seal, by topic."""
    found: dict[str, set[str]] = {}
    for (topic, hour), seal in (read_seals(tables) if tables.exists(SEALS_TABLE) else {}).items():
        if seal.status is not SealStatus.REOPENED:
            found.setdefault(topic, set()).add(hour)
    return found


def scope(there: Hours, sealed: Mapping[str, set[str]], asked: HourRange | None, hours_max: int) -> Scope:
    """Select the hours of a run: those in `asked`, sealed or not; without `asked` the unsealed ones, for each topic the
    newest `hours_max`."""
    hours: dict[str, list[str]] = {}
    left: list[LeftOut] = []
    skipped = 0
    for topic, found in there.items():
        if asked is not None:
            hours[topic] = asked.select(found)
            continue
        open_yet = sorted(set(found) - sealed.get(topic, set()))
        skipped += len(set(found)) - len(open_yet)
        hours[topic] = open_yet[-hours_max:]
        if len(open_yet) > hours_max:
            left.append(LeftOut(f"unsealed hours of topic {topic}", hours_max, len(open_yet)))
    return Scope(hours, skipped, tuple(left))
