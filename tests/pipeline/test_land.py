"""`land` at rest: where each record goes, several topics, deduplication, an orderly end."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock.config.errors import ConfigError
from penstock.config.pipeline import PipelineSettings, validate_pipeline
from penstock.pipeline.land.batches import LandError
from penstock.pipeline.land.land_job import LandJob
from penstock.pipeline.land.topic import topics_of
from penstock.pipeline.tables import open_tables
from penstock.wire.errors import FrameError
from penstock.wire.record_ids import HEADER, RecordId
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.harness.land_driver import run_until
from tests.harness.rate_source import INCARNATION, kind_of, rate_source
from tests.pipeline.land_rig import assert_exact, landed
from tests.pipeline.test_id_header import GOOD, NOON, SOURCE

DDL: Final = "id long, name string"
SIZE_MAX: Final = 60
READ_SCHEMA: Final = """
import sys
from pathlib import Path
from penstock.config.pipeline import load_pipeline
from penstock.pipeline.land.topic import topics_of
assert not sys.flags.utf8_mode
print(ascii(topics_of(load_pipeline(Path(sys.argv[1])))[0].rules.schema))
"""


def settings_of(folder: Path | str, topics: dict[str, Any], **land: Any) -> PipelineSettings:
    return validate_pipeline(
        {
            "tables": f"{folder}/tables",
            "checkpoints": f"{folder}/checkpoints",
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "land": {"trigger": "0s", **land},
            "topics": topics,
        },
        "tests",
    )


def identities() -> st.SearchStrategy[list[tuple[str, bytes | None]] | None]:
    packed = GOOD.pack()
    value = st.one_of(
        st.just(packed),
        st.none(),
        st.binary(max_size=26),
        st.integers(0, 23).map(lambda size: packed[:size]),
        st.integers(0, 255).map(lambda version: bytes([version]) + packed[1:]),
    )
    key = st.sampled_from([HEADER, HEADER, "a", "Penstock", ""])
    return st.none() | st.lists(st.tuples(key, value), max_size=3)


def values() -> st.SearchStrategy[bytes | None]:
    thing = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
    fields = st.dictionaries(st.sampled_from(["id", "name", "more"]), thing, max_size=3)
    as_json = (fields | thing | st.lists(fields, max_size=2)).map(lambda each: json.dumps(each).encode())
    small = st.dictionaries(
        st.sampled_from(["id", "name"]), st.none() | st.integers(-5, 5) | st.text(max_size=4), max_size=2
    )
    return st.none() | as_json | small.map(msgpack.packb) | st.binary(max_size=80)


Records = list[tuple[bytes | None, list[tuple[str, bytes | None]] | None]]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.tuples(values(), identities()), min_size=20, max_size=60))
@pytest.mark.parametrize("kind", ["raw", "json", "msgpack"])
def test_each_record_is_in_exactly_one_of_both_tables_and_tombstones_are_no_errors(
    spark: SparkSession, kind: str, records: Records
) -> None:
    topic = {"format": kind} | ({} if kind == "raw" else {"schema": DDL})
    read = topics_of(settings_of("/nowhere", {"t": topic}, record_bytes_max=SIZE_MAX, newer_ids="quarantine"))[0].read
    rows = [(b"k", value, "t", 0, offset, NOON, headers) for offset, (value, headers) in enumerate(records)]
    found = read(spark.createDataFrame(rows, SOURCE).coalesce(1)).collect()
    assert sorted(row.offset for row in found) == list(range(len(records)))
    for row in found:
        value, headers = records[row.offset]
        assert (row.error_class is None) == (row.error is None)
        ids = [each for key, each in headers or () if key == HEADER]
        known = is_id(ids[0]) if len(ids) == 1 else not ids
        assert (row.error_class == "header") == (not known)
        if known and value is None:
            assert (row.error_class, row.value) == (None, None)
        if known and value is not None:
            assert (row.error_class == "too_large") == (len(value) > SIZE_MAX)
        assert row.raw == (value if row.error_class else None)
        assert (row.incarnation is not None) == bool(ids and known)
        if kind == "raw" and row.error_class is None:
            assert row.value == value


def is_id(value: bytes | None) -> bool:
    """By the daemon's own reader."""
    try:
        found = RecordId.unpack(value or b"")
    except FrameError:
        return False
    return bool(found.incarnation) and found.accept_ms < 253_402_300_800_000


def test_of_several_topics_one_that_fails_stops_the_job_after_the_others_finished_their_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Fails:
        def reached(self, step: str, topic: str, batch: int) -> None:
            if (topic, batch, step) == ("broken", 1, "good"):
                raise OSError("the disk is on fire")

    made = settings_of(tmp_path, {name: {"format": "json", "schema": "id long"} for name in ("whole", "broken")})
    source = partial(rate_source, rows=200)
    land = LandJob(spark, made, open_tables(made, spark), source=source, steps=Fails())
    queries = land.start()
    assert [query.name for query in queries] == ["land/whole", "land/broken"]
    with pytest.raises(LandError, match="broken: batch 1: the disk is on fire"):
        _ = land.wait()
    assert not any(query.isActive for query in queries)
    # Nothing was cut off: what the table has, the checkpoint counts as landed.
    rows = landed(tmp_path, "whole")
    batches = max((row["batch"] for row in rows.bronze), default=-1) + 1
    assert_exact(rows, batches * 200)
    commits = tmp_path / "checkpoints" / "land" / "whole" / "commits"
    assert {int(path.name) for path in commits.iterdir() if path.name.isdigit()} == set(range(batches))
    # Quarantine is one table; each topic has its rows there.
    again = LandJob(spark, made, open_tables(made, spark), source=source)
    _ = again.start()
    run_until(again, 2)
    for name in ("whole", "broken"):
        rows = landed(tmp_path, name)
        assert_exact(rows, (max(row["batch"] for row in rows.bronze) + 1) * 200)


def test_what_is_counted_in_each_batch_is_what_lies_in_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    made = settings_of(tmp_path, {"t": {"format": "json", "schema": "id long"}})
    land = LandJob(spark, made, open_tables(made, spark), source=partial(rate_source, rows=300))
    query = land.start()[0]
    run_until(land, 1)
    rows = landed(tmp_path, "t")
    progress = query.recentProgress[1]
    assert progress["batchId"] == 1
    observed = progress["observedMetrics"]["land"]
    bad = [row for row in rows.quarantine if row["batch"] == 1]
    foreign = [row for row in rows.bronze if row["batch"] == 1 and row["incarnation"] is None]
    assert (observed["rows"], observed["bad"], observed["foreign"]) == (300, len(bad), len(foreign))
    assert len(foreign) == sum(kind_of(number) == "foreign" for number in range(300, 600)) > 0


def doubling(spark: SparkSession, topic: str) -> DataFrame:
    """The rate source with every id twice, in one batch and in the next one, but at other offsets."""
    frame = rate_source(spark, topic, rows=200).where(F.col("headers").isNotNull())
    twice = frame.withColumn("copy", F.explode(F.sequence(F.lit(0), F.lit(1))))
    return twice.withColumn("offset", F.col("offset") + F.col("copy") * 1_000_000).drop("copy")


def test_with_dedupe_a_second_record_of_an_id_is_left_out_and_foreign_ones_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    def source(spark: SparkSession, topic: str) -> DataFrame:
        return doubling(spark, topic).unionByName(rate_source(spark, topic, rows=200).where(F.col("headers").isNull()))

    made = settings_of(tmp_path, {"t": {"format": "raw"}}, dedupe="watermark", dedupe_window="1h")
    land = LandJob(spark, made, open_tables(made, spark), source=source)
    _ = land.start()
    run_until(land, 1)
    rows = landed(tmp_path, "t").bronze
    ids = [(row["origin"], row["ordinal"]) for row in rows if row["incarnation"] == INCARNATION]
    assert ids
    assert len(ids) == len(set(ids))
    batches = max(row["batch"] for row in rows) + 1
    wanted = [number for number in range(200 * batches) if kind_of(number) not in ("foreign", "header")]
    assert len(ids) == len(wanted)
    assert len(rows) - len(ids) == sum(kind_of(number) == "foreign" for number in range(200 * batches))


def test_settings_that_cannot_be_landed_are_all_told_before_anything_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = settings_of(
        tmp_path,
        {
            "a.b": {"format": "json", "schema": "nonsense here it is"},
            "a-b": {"format": "avro", "schema": "{}"},
            "c": {"format": "json", "schema_file": str(tmp_path / "missing.ddl")},
        },
    )
    with pytest.raises(ConfigError) as raised:
        _ = LandJob(spark, made, open_tables(made, spark)).start()
    begins = [problem.split(":")[0] for problem in raised.value.problems]
    assert begins == [
        "topics.a.b",
        "topics.a-b",
        "topics.c",
        "topics 'a.b' and 'a-b' would both be landed in the table bronze_a_b; land one of them apart, with tables of its own",
    ]
    assert not (tmp_path / "tables").exists()


def test_a_schema_file_is_read_as_utf8_in_the_c_locale(tmp_path: Path) -> None:
    schema = '{"doc":"Zähler","fields":[{"name":"id","type":"long"}],"name":"r","type":"record"}'
    _ = (tmp_path / "r.avsc").write_text(schema, encoding="utf-8")
    _ = (tmp_path / "pipeline.toml").write_text(
        f'tables = "{tmp_path}/t"\ncheckpoints = "{tmp_path}/c"\nkafka.bootstrap.servers = "127.0.0.1:1"\n'
        f'topics.a = {{ format = "avro", schema_file = "{tmp_path}/r.avsc" }}\n'
    )
    command = [sys.executable, "-c", READ_SCHEMA, str(tmp_path / "pipeline.toml")]
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert r"Z\\u00e4hler" in done.stdout
