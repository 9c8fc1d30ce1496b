"""Delta's log in the JVM, through internal classes of its connector.

The public interface can neither commit against a given version nor return the last version of a transaction. This
module contains every use of the internal classes, tested with connector 4.4.0 under Spark 4.2.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from .commits import READER_FEATURES, READER_VERSIONS, SETTINGS_REFUSED, WRITER_VERSIONS, read_notes
from .interface import TableConflictError, TableError, TableProtocolError
from .partitions import Value, partition_text

Java = Any
"""An object of the JVM or of Scala's library. py4j resolves its methods when they are called."""

NEWEST: Final = 64
HISTORY: Final = 1024
VARIANT: Final = frozenset({"variantType", "variantType-preview", "variantShredding-preview"})
CONFLICT_ERRORS: Final = (
    "io.delta.exceptions.Concurrent",
    "io.delta.exceptions.MetadataChanged",
    "org.apache.spark.sql.delta.Concurrent",
)
"""Names of exceptions that mean that another commit was faster."""


def gateway(spark: SparkSession) -> tuple[Java, Java]:
    """Return the JVM's packages, and its session: pyspark has no public interface for them."""
    inside: Java = spark
    return inside._jvm, inside._jsparkSession  # noqa: SLF001


class LogFile(NamedTuple):
    path: str
    bytes: int
    rows: int
    partition: dict[str, Value]
    action: Java
    """The action in the JVM."""


class JvmLog:
    """The log of one table."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._jvm, session = gateway(spark)
        self._log: Java = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
        self._none: Java = getattr(self._jvm.scala.Option, "empty")()  # noqa: B009

    def version(self) -> int | None:
        """Number of the newest commit; None when there is no table."""
        version = int(self._snapshot().version())
        return None if version < 0 else version

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self._snapshot().schema().json()))

    def partition_columns(self) -> tuple[str, ...]:
        return tuple(self._java(self._snapshot().metadata().partitionColumns()))

    def check_protocol(self) -> None:
        """Raise TableProtocolError for a table that uses features which the other engine would misread."""
        snapshot = self._snapshot()
        protocol = snapshot.protocol()
        settings = snapshot.metadata().configuration()
        used = [
            f"{name}={settings.get(name).get()}"
            for name, fine in SETTINGS_REFUSED.items()
            if settings.contains(name) and settings.get(name).get() not in fine
        ]
        features = (
            set(self._java(protocol.readerFeatures().get())) if protocol.readerFeatures().isDefined() else set[str]()
        )
        reader, writer = int(protocol.minReaderVersion()), int(protocol.minWriterVersion())
        if (
            reader not in READER_VERSIONS
            or writer not in WRITER_VERSIONS
            or features - READER_FEATURES - VARIANT
            or used
        ):
            raise TableProtocolError(
                f"the table {self._path} needs a reader of version {reader} and a writer of version {writer}, "
                f"features {sorted(features)}, {used}: this is newer than what is known here"
            )

    def transaction_version(self, app: str) -> int | None:
        """Version of the application's last transaction."""
        found = self._snapshot().transactions().get(app)
        return int(found.get()) if found.isDefined() else None

    def history(self, limit: int = HISTORY) -> list[tuple[int, dict[str, Any]]]:
        """Version and notes of the newest commits, newest first."""
        table = self._path.replace("`", "``")
        rows = self._spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT {limit}").select("version", "userMetadata")
        return [(row["version"], read_notes(row["userMetadata"])) for row in rows.collect()]

    def find_commit(self, commit: str) -> int | None:
        """Return the version made by the commit with this id; None when no recent commit has it."""
        return next((version for version, notes in self.history(NEWEST) if notes.get("id") == commit), None)

    def files(self, where: Mapping[str, Value] | None = None, *, version: int | None = None) -> list[LogFile]:
        """List the files of the newest version, or of `version`; with `where`, of these partitions only."""
        snapshot = (
            self._snapshot() if version is None else self._log.getSnapshotAt(version, self._none, self._none, False)
        )
        return self._files(snapshot, where or {})

    def replace(
        self,
        df: DataFrame,
        where: Mapping[str, Value],
        *,
        read_version: int,
        rows: int | None,
        notes: str,
        patience: Callable[[], bool],
    ) -> int:
        """Replace the files of these partitions by the rows, in one commit; return its version.

        Raise TableConflictError when those files have changed since `read_version`, or when conflicts continue until
        `patience` returns False.
        """
        then = {file.path for file in self.files(where, version=read_version)}
        added: Java = None
        frame: Java = df
        while True:
            transaction = self._log.startTransaction(self._none, self._jvm.scala.Option.apply(self._snapshot()))
            # Any concurrent commit makes this commit fail; the loop then checks the files again.
            transaction.readWholeTable()
            now = self._files(transaction.snapshot(), where)
            if {file.path for file in now} != then:
                raise TableConflictError(f"{self._path}: {dict(where)} has changed since version {read_version}")
            if added is None:
                added = transaction.writeFiles(frame._jdf)  # noqa: SLF001
                self._check_files(added, where, rows)
            removed = self._scala([file.action.remove() for file in now])
            try:
                return int(transaction.commit(added.appendedAll(removed), self._operation(notes)))
            except Exception as error:
                if not any(name in str(error) for name in CONFLICT_ERRORS) or not patience():
                    raise

    def _check_files(self, added: Java, where: Mapping[str, Value], rows: int | None) -> None:
        written = 0
        for action in self._java(added):
            found = {name: _value(action.partitionValues(), name) for name in where}
            if found != dict(where):
                raise TableError(f"{self._path}: rows of {found} were to replace {dict(where)}")
            written += int(json.loads(action.stats())["numRecords"])
        if rows is not None and written != rows:
            raise TableError(f"{self._path}: {written} rows were written, and {rows} were to be")

    def _operation(self, notes: str) -> Java:
        some = self._jvm.scala.Option.apply
        return getattr(self._jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")(
            self._jvm.org.apache.spark.sql.SaveMode.Overwrite, self._none, self._none, some(notes), *[self._none] * 5
        )

    def _snapshot(self) -> Java:
        return self._log.update(False, self._none, self._none)

    def _files(self, snapshot: Java, where: Mapping[str, Value]) -> list[LogFile]:
        found: list[LogFile] = []
        for action in snapshot.allFiles().collect():
            values = {name: _value(action.partitionValues(), name) for name in where} if where else {}
            if values == dict(where):
                rows = json.loads(action.stats() or "{}").get("numRecords", 0)
                partition = {name: partition_text(value) for name, value in self._map(action.partitionValues()).items()}
                found.append(LogFile(unquote(action.path()), int(action.size()), int(rows), partition, action))
        return found

    def _map(self, scala_map: Java) -> dict[str, Any]:
        return dict(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))

    def _java(self, scala: Java) -> Java:
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala)

    def _scala(self, items: list[Java]) -> Java:
        found = self._jvm.java.util.ArrayList()
        for item in items:
            _ = found.add(item)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()


def _value(values: Java, name: str) -> Value:
    found = values.get(name)
    return partition_text(cast("str | None", found.get())) if found.isDefined() else None
