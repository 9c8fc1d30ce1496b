"""Spark's progress events about a query, parsed from their JSON."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

_BEHIND: Final = {"minOffsetsBehindLatest": "min", "avgOffsetsBehindLatest": "avg", "maxOffsetsBehindLatest": "max"}


class QueryStarted(NamedTuple):
    query: str


class QueryProgressed(NamedTuple):
    """A query finished a batch, or a trigger without new data."""

    query: str
    batch: int
    executed: bool
    """Whether a batch was run; if so, everything below `next_offsets` is done."""
    input_rows: int
    input_rows_per_second: float
    processed_rows_per_second: float
    durations_ms: Mapping[str, int]
    """By step of the trigger, with Spark's names."""
    offsets_behind: Mapping[str, float]
    """Offsets behind the latest ones: min, avg and max over the partitions."""
    observed: Mapping[str, int]
    """Counts that `observe` made in the batch: `<name>.<column>`."""
    next_offsets: Mapping[str, Mapping[int, int]]
    """By topic and partition, the offset to read next."""


class QueryIdle(NamedTuple):
    """A trigger of a query found nothing to do."""

    query: str


class QueryTerminated(NamedTuple):
    """A query ended. `error` is the class of the exception that ended it; empty without one."""

    query: str
    error: str


QueryEvent = QueryStarted | QueryProgressed | QueryIdle | QueryTerminated


def parse_progress(text: str) -> QueryProgressed:
    """Parse `StreamingQueryProgress.json`. Fields that sources other than Kafka lack are left empty.

    Raises:
        ValueError: the text is not a JSON object.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("a progress is a JSON object")  # noqa: TRY004 - about the text
    table = cast("dict[str, Any]", found)
    durations = {name: int(value) for name, value in table.get("durationMs", {}).items()}
    sources = cast("list[dict[str, Any]]", table.get("sources", []))
    return QueryProgressed(
        query=str(table.get("name") or table.get("id") or ""),
        batch=int(table.get("batchId", -1)),
        executed="addBatch" in durations,
        input_rows=int(table.get("numInputRows", 0)),
        input_rows_per_second=_rate(table.get("inputRowsPerSecond")),
        processed_rows_per_second=_rate(table.get("processedRowsPerSecond")),
        durations_ms=durations,
        offsets_behind=_behind(sources),
        observed=_observed(table.get("observedMetrics", {})),
        next_offsets=_ends(sources),
    )


def _rate(value: object) -> float:
    """Spark omits an unknown rate, or writes it as a text (`NaN`)."""
    return float(value) if isinstance(value, int | float) else 0.0


def _behind(sources: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for source in sources:
        for name, value in (source.get("metrics") or {}).items():
            if name in _BEHIND:
                found[_BEHIND[name]] = float(value)
    return found


def _observed(metrics: Mapping[str, Mapping[str, object]]) -> dict[str, int]:
    return {
        f"{name}.{column}": value
        for name, row in metrics.items()
        for column, value in row.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }


def _ends(sources: list[dict[str, Any]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for source in sources:
        end = source.get("endOffset")
        if not isinstance(end, dict):
            continue
        for topic, partitions in cast("dict[str, Any]", end).items():
            if isinstance(partitions, dict):
                for partition, offset in cast("dict[str, int]", partitions).items():
                    found.setdefault(topic, {})[int(partition)] = int(offset)
    return found
