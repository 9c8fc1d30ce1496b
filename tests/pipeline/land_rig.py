"""What the tests of `land` share: drivers as processes, and what lies in the tables, read without Spark."""

import os
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow.dataset as ds
from deltalake import DeltaTable
from penstock.pipeline.names import QUARANTINE, bronze_table

from tests.harness.land_driver import Plan
from tests.harness.processes import REPOSITORY, start_tied, tail
from tests.harness.rate_source import INCARNATION, PARTITIONS, kind_of
from tests.harness.spark_driver import MARK, kill_all, marked

DRIVER_S = 480.0


class RateDriver:
    """One process of `tests.harness.land_driver`."""

    def __init__(self, plan: Plan) -> None:
        self.mark = uuid.uuid4().hex
        self.log_path = Path(plan.folder) / f"driver-{self.mark[:8]}.err"
        self._output = self.log_path.with_suffix(".out")
        with self._output.open("wb") as out, self.log_path.open("wb") as log:
            self.process = start_tied(
                [sys.executable, "-m", "tests.harness.land_driver", plan.encode()],
                env=os.environ | {MARK: self.mark, "PYTHONPATH": str(REPOSITORY)},
                cwd=REPOSITORY,
                stdout=out,
                stderr=log,
            )

    def wait(self, *, seconds: float = DRIVER_S) -> int:
        """Its status, negative for a signal. What it leaves running ends too."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end:\n{tail(self.log_path)}") from None
        finally:
            _ = kill_all(self.mark)

    @property
    def said(self) -> str:
        return self._output.read_text() + tail(self.log_path)

    @property
    def processes(self) -> list[int]:
        return marked(self.mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _ = kill_all(self.mark)


def run(plan: Plan) -> tuple[int, str]:
    """One driver to its end: status and what it said."""
    with RateDriver(plan) as driver:
        status = driver.wait()
        return status, driver.said


class Landed(NamedTuple):
    """All rows of a topic."""

    bronze: list[dict[str, Any]]
    quarantine: list[dict[str, Any]]
    orphans: int
    """Data files that no version of the tables names."""


def landed(folder: str | Path, topic: str) -> Landed:
    """What lies in the tables of this topic, by deltalake and Arrow."""
    tables = Path(folder) / "tables"
    orphans = 0
    found: list[list[dict[str, Any]]] = []
    for name in (bronze_table(topic), QUARANTINE):
        if not (tables / name / "_delta_log").is_dir():
            found.append([])
            continue
        table = DeltaTable(str(tables / name))
        paths = table.file_uris()
        orphans += len(list((tables / name).rglob("*.parquet"))) - len(paths)
        rows = (
            ds.dataset(paths, partitioning="hive", partition_base_dir=str(tables / name)).to_table() if paths else None
        )
        found.append([row for row in (rows.to_pylist() if rows is not None else []) if row["topic"] == topic])
    return Landed(found[0], found[1], orphans)


def assert_exact(rows: Landed, records: int) -> None:
    """The first `records` records of the rate source are in one row each, each where it belongs and as it was."""
    seen = Counter(row["offset"] * PARTITIONS + row["partition"] for row in [*rows.bronze, *rows.quarantine])
    doubled = [number for number, times in seen.items() if times > 1]
    lost = [number for number in range(records) if number not in seen]
    assert (lost[:5], doubled[:5], len(seen)) == ([], [], records)
    of_kind = {"header": "header", "broken": "decode", "misfit": "schema"}
    for row in rows.quarantine:
        number = row["offset"] * PARTITIONS + row["partition"]
        assert row["error_class"] == of_kind[kind_of(number)], number
        assert row["error"]
        assert row["raw"] is not None
    for row in rows.bronze:
        number = row["offset"] * PARTITIONS + row["partition"]
        kind = kind_of(number)
        assert kind in ("good", "foreign", "tombstone"), number
        assert (row["value"] or {}).get("id") == (None if kind == "tombstone" else number)
        expected = (None, None, None) if kind == "foreign" else (INCARNATION, number % PARTITIONS, number // PARTITIONS)
        assert (row["incarnation"], row["origin"], row["ordinal"]) == expected
