"""What Spark keeps in a query's checkpoint, as far as `land` reads it: the query's id, and which records a batch is made of.

Read by Hadoop's file systems, as Spark writes it: a checkpoint may be anywhere that Spark can reach.
"""

import json
from typing import Any, Final, cast

from pyspark.sql import SparkSession

_HEAD_LINES: Final = 2
"""Of a file of the offset log: its version, and the batch's own settings; then one line a source."""


class Checkpoint:
    """One query's folder."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        inside: Any = spark
        # Hadoop's file systems have no other way in. Every name on the way to a class is a call to the JVM, so they are looked up once.
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

    def finished(self, batch: int) -> bool:
        """Whether Spark has noted that all of the batch is written."""
        return self._text(f"commits/{batch}") is not None

    def last_finished(self) -> int | None:
        """The newest batch of which Spark has noted that all of it is written; None before the first."""
        place = self._path_of(f"{self.path}/commits")
        if not self._files.exists(place):
            return None
        names: list[str] = [each.getPath().getName() for each in self._files.listStatus(place)]
        # Files that are being written, and those of checksums, have other names.
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
