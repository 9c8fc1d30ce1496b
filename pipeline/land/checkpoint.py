"""Reads Spark's checkpoint of a query: the query's id, and the records of each batch.

Uses Hadoop's file systems, as Spark does: a checkpoint may be anywhere that Spark can reach.
"""

import json
from typing import Any, Final, cast

from pyspark.sql import SparkSession

_HEAD_LINES: Final = 2
"""Lines before the sources in a file of the offset log: its version, and the batch's settings. One line per source
follows."""


class Checkpoint:
    """The checkpoint folder of one query."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        inside: Any = spark
        # pyspark has no public access to Hadoop's file systems. Each name on the way to a class is a call to the JVM,
        # so look them up once.
        jvm: Any = inside._jvm  # noqa: SLF001
        self._path_of: Any = jvm.org.apache.hadoop.fs.Path
        self._text_of: Any = jvm.org.apache.commons.io.IOUtils.toString
        self._files: Any = self._path_of(path).getFileSystem(inside._jsc.hadoopConfiguration())  # noqa: SLF001

    def query_id(self) -> str | None:
        """The id that all runs of the query share; None before its first start."""
        text = self._text("metadata")
        return None if text is None else cast("str", json.loads(text)["id"])

    def offsets(self, batch: int) -> str | None:
        """The end of the batch in each partition, as its source writes it; None when the batch is not in the log."""
        text = self._text(f"offsets/{batch}")
        return None if text is None else "\n".join(text.splitlines()[_HEAD_LINES:])

    def last_finished(self) -> int | None:
        """The newest batch that Spark has recorded as fully written; None before the first."""
        place = self._path_of(f"{self.path}/commits")
        if not self._files.exists(place):
            return None
        names: list[str] = [each.getPath().getName() for each in self._files.listStatus(place)]
        # Temporary files and checksum files have other names.
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def _text(self, name: str) -> str | None:
        place = self._path_of(f"{self.path}/{name}")
        if not self._files.exists(place):
            return None
        stream = self._files.open(place)
        try:
            return cast("str", self._text_of(stream, "UTF-8"))
        finally:
            stream.close()
