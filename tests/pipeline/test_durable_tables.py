"""What a table's first write, and one with new columns, makes durable besides its rows: the library that commits syncs nothing."""

import json
import subprocess
import sys
from pathlib import Path

from tests.harness.processes import REPOSITORY

_WRITE = """
import json, os, sys
import pyarrow as pa
from pyspark.sql.types import StructType
from penstock.pipeline.tables.delta_rs import DeltaRsTables

place, found = sys.argv[1], []
def hook(event, arguments):
    if event == "open" and str(arguments[0]).startswith(os.path.dirname(place)):
        found.append(str(arguments[0]))

columns = StructType().add("id", "long").add("hour", "string")
for schema in (columns, StructType([*columns]).add("more", "long")):
    table = DeltaRsTables(place, None).table("orders", schema, ("hour",))
    content = pa.table({field.name: pa.array([1], pa.int64()) if field.name != "hour" else pa.array(["h0"]) for field in schema})
    sys.addaudithook(hook) if not found else None
    table.put(content)
print(json.dumps(found))
"""


def test_commits_that_the_library_makes_by_itself_are_synced_and_the_names_above_a_new_table(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    asked = [sys.executable, "-c", _WRITE, str(lake)]
    done = subprocess.run(asked, capture_output=True, check=True, text=True, cwd=REPOSITORY, timeout=180)
    opened: list[str] = json.loads(done.stdout)
    log = lake / "orders/_delta_log"
    # Python opens a commit, or a folder, only to sync it.
    commits = [Path(each).name for each in opened if each.endswith(".json")]
    assert commits == [f"{version:020}.json" for version in range(4)]
    assert sorted(path.name for path in log.glob("*.json")) == commits
    first_rows = opened.index(next(each for each in opened if each.endswith(".parquet")))
    made = opened[:first_rows]
    assert made == [str(log / f"{0:020}.json"), str(log), str(lake / "orders"), str(lake), str(tmp_path)]
