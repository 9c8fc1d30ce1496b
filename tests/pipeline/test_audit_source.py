"""How far `land` has read, as the audit takes it: by checkpoints, and by the group where there is none."""

import json
from pathlib import Path

from penstock.config.pipeline import PipelineSettings, validate_pipeline
from penstock.pipeline.audit.source import KafkaAuditSource
from penstock.pipeline.kafka_admin import Offsets
from pyspark.sql import SparkSession

AHEAD = {"clicks": {0: 900, 1: 900, 2: 900}, "views": {0: 70}, "others": {0: 5}}
"""Of a group that another pipeline shares, which has read more."""


def settings(folder: Path, *topics: str) -> PipelineSettings:
    return validate_pipeline(
        {
            "tables": "/nowhere/tables",
            "checkpoints": str(folder),
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "topics": {topic: {} for topic in topics},
        },
        "tests",
    )


def checkpoint(folder: Path, topic: str, batches: list[dict[str, int]], *, finished: int) -> None:
    """As Spark leaves it when it is at the last of these batches."""
    place = folder / "land" / topic
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True)
    _ = (place / "metadata").write_text(json.dumps({"id": "0123"}))
    for number, ends in enumerate(batches):
        text = f"v1\n{json.dumps({'batchWatermarkMs': 0})}\n{json.dumps({topic: ends})}"
        _ = (place / "offsets" / str(number)).write_text(text)
    for number in range(finished):
        _ = (place / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        _ = (place / "commits" / f".{number}.crc").write_bytes(b"crc")
        _ = (place / "commits" / f".{number + 1}.00ff.tmp").write_bytes(b"")


def landed_to(spark: SparkSession, told: PipelineSettings, group: Offsets = AHEAD) -> Offsets:
    return KafkaAuditSource(spark, told, group=lambda _: group).landed_offsets()


def test_a_group_that_another_pipeline_has_moved_on_says_nothing_where_there_is_a_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    # More than ten: numbers are not compared as texts are.
    batches = [{"0": number * 10, "1": number} for number in range(12)]
    checkpoint(tmp_path, "clicks", batches, finished=11)
    assert landed_to(spark, settings(tmp_path, "clicks")) == {"clicks": {0: 100, 1: 10}}


def test_a_checkpoint_without_a_whole_batch_says_that_nothing_was_read(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint(tmp_path, "clicks", [{"0": 10}], finished=0)
    assert landed_to(spark, settings(tmp_path, "clicks")) == {"clicks": {}}


def test_the_group_counts_for_topics_without_a_checkpoint_and_for_no_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint(tmp_path, "clicks", [{"0": 10}], finished=1)
    assert landed_to(spark, settings(tmp_path, "clicks", "views")) == {"clicks": {0: 10}, "views": {0: 70}}
    assert landed_to(spark, settings(tmp_path, "views"), {}) == {"views": {}}
