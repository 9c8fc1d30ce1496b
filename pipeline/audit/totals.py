"""Folds the audit topic to the newest total of every key, whatever the order of the records.

`wire.audit_records` declares the records. Any other record is counted and then ignored, as if it were lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users call it

from ...wire import audit_records
from ..hours import MINUTE_MAX
from . import schemas
from .columns import hour_of_minute

RANGE_MAX: Final = 1 << 32
"""No minute has so many ordinals of one origin. A longer range is damaged, and would be split into too many buckets."""
_SENT_AT_MAX: Final = (MINUTE_MAX + 1) * 60_000
_UNREAD: Final = "?"
_VALUE: Final = """v int, kind string, incarnation string, host string, shard int, version bigint, sent_at bigint, era int,
    topic string, minute bigint, ids boolean, accepted bigint, bytes bigint, refused map<string, bigint>,
    ranges array<array<bigint>>, holes array<array<string>>, delivered bigint, batches bigint, resent bigint,
    closed_before bigint, settled_before bigint, state string, interval_s double"""
_KEY: Final = ("kind", "incarnation", "shard", "topic", "minute", "era")
_TOTALS: Final = (
    *("host", "version", "sent_at", "ids", "accepted", "bytes", "refused", "ranges", "holes"),
    *("delivered", "batches", "resent", "closed_before", "settled_before", "state", "interval_s"),
)


class AuditVersionError(Exception):
    """The audit topic has records of a version that this program does not know."""


@dataclass(frozen=True, slots=True)
class AuditTotals:
    """The audit topic, folded. All frames read `newest`."""

    newest: DataFrame
    intakes: DataFrame
    """`schemas.COUNTS` of shard -1, with `hour`, and Σ `given` (ordinals in its ranges), `unsettled`, `holed`."""
    outcomes: DataFrame
    """`schemas.COUNTS` of the shards."""
    ranges: DataFrame
    """`schemas.RANGES` with `hour`, `ids`, and `sent_at` of the record."""
    holes: DataFrame
    """`schemas.HOLES` with `hour`."""
    heartbeats: DataFrame
    """`schemas.HEARTBEATS`."""

    def cached(self, keep: Callable[[DataFrame], DataFrame]) -> "AuditTotals":
        """Return the same frames, each computed once."""
        frames = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "newest"}
        return replace(self, **{name: keep(frame) for name, frame in frames.items()})

    def counts(self) -> DataFrame:
        """All of `audit_counts`."""
        return self.intakes.select(*schemas.COUNTS.names).unionByName(self.outcomes.select(*schemas.COUNTS.names))


def fold(records: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> tuple[AuditTotals, int]:
    """Return the totals, and the number of records that could not be read.

    `records` has the binary columns `key` and `value`; records without a value (deletions) are ignored. `keep` computes
    a frame once.

    Raises:
        AuditVersionError: there are records of a newer version.
    """
    newest = keep(_newest(records))
    unread = newest.where(F.col("kind") == _UNREAD).select("records", "v").first()
    if unread is not None and (unread.v or 0) > audit_records.VERSION:
        raise AuditVersionError(
            f"the audit topic has records of version {unread.v}; this program knows version {audit_records.VERSION}: "
            "nothing was judged, update it"
        )
    return _audit_totals(newest), 0 if unread is None else int(unread.records)


def _newest(records: DataFrame) -> DataFrame:
    """Return the newest record of each key, and one row of kind `?` for all records that cannot be read."""
    given = records.where(F.col("value").isNotNull()).select(
        "key", F.from_json(F.col("value").cast("string"), _VALUE).alias("_")
    )
    checked = given.select(F.col("_.*"), _readable("_").alias("readable"))
    kept = [F.when(F.col("readable"), F.col(name)).alias(name) for name in _KEY[1:]]
    kind = F.when(F.col("readable"), F.col("kind")).otherwise(_UNREAD).alias("kind")
    totals = F.struct(*_TOTALS)
    return (
        checked.select(kind, *kept, totals.alias("totals"), "v", "version")
        .groupBy(*_KEY)
        .agg(F.max_by("totals", "version").alias("totals"), F.count("*").alias("records"), F.max("v").alias("v"))
        .select(*_KEY, "totals.*", "records", "v")
    )


def _readable(value: str) -> Column:
    """Whether `audit_records.decode` would accept the parsed record."""

    def field(name: str) -> Column:
        return F.col(f"{value}.{name}")

    router = field("shard") == audit_records.ROUTER
    placed = (
        (F.length(field("topic")) > 0)
        & field("minute").between(0, MINUTE_MAX)
        & (F.col("key").cast("string") == _key(field))
    )
    intake = (
        router
        & placed
        & field("ids").isNotNull()
        & _all_non_negative(field("accepted"), field("bytes"))
        & field("refused").isNotNull()
        & F.forall(field("ranges"), _range_good)
        & F.forall(field("holes"), _hole_good)
    )
    outcome = (
        (field("shard") >= 0)
        & placed
        & _all_non_negative(field("delivered"), field("bytes"), field("batches"), field("resent"))
    )
    heartbeat = (
        router
        & field("state").isin(audit_records.RUNNING, audit_records.CLOSED)
        & _all_non_negative(field("closed_before"), field("settled_before"))
        & (field("interval_s") >= 0)
        & (F.col("key").cast("string") == F.concat(field("incarnation"), F.lit(f"|{audit_records.ROUTER}||")))
    )
    common = (
        (field("v") == audit_records.VERSION)
        & field("incarnation").rlike("^[0-9a-f]{12}$")
        & field("host").isNotNull()
        & _all_non_negative(field("version"), field("era"))
        & field("sent_at").between(0, _SENT_AT_MAX)
    )
    by_kind = (
        F.when(field("kind") == audit_records.AuditIntake.kind, intake)
        .when(field("kind") == audit_records.AuditOutcome.kind, outcome)
        .when(field("kind") == audit_records.AuditHeartbeat.kind, heartbeat)
    )
    return F.coalesce(common & by_kind, F.lit(False))


def _key(field: Callable[[str], Column]) -> Column:
    parts = [field(name).cast("string") for name in ("incarnation", "shard", "topic", "minute")]
    era = F.when(field("era") > 0, F.concat(F.lit("|"), field("era").cast("string"))).otherwise("")
    return F.concat(F.concat_ws("|", *parts), era)


def _all_non_negative(*columns: Column) -> Column:
    found = F.lit(True)
    for column in columns:
        found &= column >= 0
    return found


def _range_good(item: Column) -> Column:
    origin, first, end, settled_end, offset_end = (F.get(item, F.lit(place)) for place in range(5))
    return (
        (F.size(item) == 5)
        & origin.between(0, (1 << 31) - 1)
        & (first >= 0)
        & settled_end.between(first, end)
        & (first < end)
        & (end - first <= RANGE_MAX)
        & (offset_end >= -1)
    )


def _hole_good(item: Column) -> Column:
    origin, first, end = (F.get(item, F.lit(place)).try_cast("bigint") for place in range(3))
    return (
        (F.size(item) == 4)
        & origin.between(0, (1 << 31) - 1)
        & (first >= 0)
        & (first < end)
        & (end - first <= RANGE_MAX)
        & F.get(item, F.lit(3)).isNotNull()
    )


def _audit_totals(newest: DataFrame) -> AuditTotals:
    intakes = newest.where(F.col("kind") == audit_records.AuditIntake.kind).withColumn(
        "hour", hour_of_minute(F.col("minute"))
    )
    keys = ("incarnation", "topic", "minute", "era", "hour", "ids", "sent_at")
    ranges = intakes.select(*keys, F.explode("ranges").alias("_")).select(
        *keys,
        F.get("_", F.lit(0)).cast("int").alias("origin"),
        *(F.get("_", F.lit(place)).alias(name) for place, name in enumerate(schemas.RANGES.names[5:], start=1)),
    )
    holes = intakes.select(*keys, F.explode("holes").alias("_")).select(
        *keys,
        F.get("_", F.lit(0)).cast("int").alias("origin"),
        F.get("_", F.lit(1)).cast("bigint").alias("first"),
        F.get("_", F.lit(2)).cast("bigint").alias("end"),
        F.get("_", F.lit(3)).alias("reason"),
    )
    unsettled = _sum("ranges", lambda item: _at(item, 2) - _at(item, 3))
    return AuditTotals(
        newest=newest,
        intakes=intakes.select(
            "*",
            (unsettled == 0).alias("settled"),
            unsettled.alias("unsettled"),
            _sum("ranges", lambda item: _at(item, 2) - _at(item, 1)).alias("given"),
            _sum("holes", lambda item: _at(item, 2) - _at(item, 1)).alias("holed"),
        ),
        outcomes=newest.where(F.col("kind") == audit_records.AuditOutcome.kind).withColumn(
            "settled", F.lit(None).cast("boolean")
        ),
        ranges=ranges,
        holes=holes,
        heartbeats=newest.where(F.col("kind") == audit_records.AuditHeartbeat.kind)
        # A heartbeat's key has no era.
        .groupBy("incarnation")
        .agg(F.max_by(F.struct(*schemas.HEARTBEATS.names[1:]), "version").alias("_"))
        .select("incarnation", "_.*"),
    )


def _at(item: Column, place: int) -> Column:
    return F.get(item, F.lit(place)).cast("bigint")


def _sum(column: str, of: Callable[[Column], Column]) -> Column:
    return F.aggregate(column, F.lit(0).cast("bigint"), lambda total, item: total + of(item))
