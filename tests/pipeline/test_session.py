"""What every job's session has that Spark's own defaults have not."""

from penstock.config.pipeline import validate_pipeline
from penstock.pipeline import session
from pyspark.sql import SparkSession

SHUFFLE_PARTITIONS = 50


def test_a_kept_frame_of_few_rows_has_few_partitions_however_many_a_shuffle_may_have(spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.adaptive.enabled", "true")
    own.conf.set("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
    kept = own.range(1_000).groupBy("id").count().persist()
    try:
        assert kept.count() == 1_000
        used = kept.selectExpr("spark_partition_id() AS part").distinct().count()
    finally:
        _ = kept.unpersist()
    assert used < SHUFFLE_PARTITIONS / 10


def test_a_job_draws_no_bars_into_its_log_unless_the_settings_want_them() -> None:
    given: dict[str, object] = {
        "tables": "/t",
        "checkpoints": "/c",
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "topics": {"any": {}},
    }
    bars = "spark.ui.showConsoleProgress"
    assert session.conf(validate_pipeline(given, "tests"), submitted=True)[bars] == "false"
    wanted = validate_pipeline(given | {"spark": {bars: True}}, "tests")
    assert session.conf(wanted, submitted=True)[bars] == "true"
