"""A process that has read small tables on the driver's side ends with its own status: libraries that it loaded do not abort it."""

import subprocess
import sys
from pathlib import Path

UPSERTS = """
import sys
from pathlib import Path
from pyspark.sql.types import LongType, StringType, StructField, StructType
from penstock.pipeline.tables.delta_rs import DeltaRsTable

schema = StructType([StructField("key", StringType()), StructField("value", LongType())])
table = DeltaRsTable(None, Path(sys.argv[1]), "small", schema, ())
for value in range(2):
    table.upsert([{"key": str(number), "value": value} for number in range(10)], ("key",))
print(sorted(row["value"] for row in table._rows(table._existing())))
sys.exit(13)
"""


def test_a_process_that_has_merged_rows_into_a_table_ends_with_its_own_status(tmp_path: Path) -> None:
    # One in three would abort.
    running = [
        subprocess.Popen(
            [sys.executable, "-I", "-c", UPSERTS, str(tmp_path / str(number))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(8)
    ]
    for each in running:
        said, _ = each.communicate(timeout=120)
        assert (each.returncode, said) == (13, f"{[1] * 10}\n")
