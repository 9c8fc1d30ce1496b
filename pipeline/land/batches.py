"""One micro-batch of `land`: good rows in one commit, bad rows in another, with checks before each.

After a crash, the next run continues according to the step reached:

* before the first commit: nothing is written; it writes the batch;
* between the commits: it recognises the good rows' commit by its transaction, skips it, and writes the bad rows;
* after both, before Spark's own log: it recognises both commits and skips them.

This requires that the batch is read by the same rules and from the same records as before. Therefore each commit stores
both, and the first batch of a run compares them.
"""

import datetime as dt
import threading
from typing import Final, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ...runtime import logs
from .. import schemas
from ..failures import failure_message
from ..names import QUARANTINE, bronze_table
from ..tables import Constant, Table, TablePart, Tables, TableTransaction
from .checkpoint import Checkpoint
from .topic import LandTopic

RULES: Final = "penstock.parse"
"""Key in a commit's metadata: digest of the rules by which its batch was read."""
OFFSETS: Final = "penstock.offsets"
"""Key in a commit's metadata: the end of its batch in each partition, as in Spark's offset log."""


_GOOD, _BAD = range(2)


class LandError(Exception):
    """`land` stopped, or does not start. The message gives the reason and the remedy."""


class LandStoppingError(Exception):
    """A batch is not started because the job is stopping; the next run starts it."""


class BatchObserver(Protocol):
    """Called after each step of a batch. An exception it raises stops the query at that step. Tests use this to kill
    the driver."""

    def reached(self, step: str, topic: str, batch: int) -> None:
        """`step`: `started`, `good` (the good rows are committed) or `bad` (the bad rows too)."""
        ...


class NullBatchObserver:
    """Ignores all steps."""

    def reached(self, step: str, topic: str, batch: int) -> None:
        """Do nothing."""


class MicroBatchWriter:
    """Writes the micro-batches of one query, in order of their ids. Spark calls it from its own thread."""

    def __init__(self, topic: LandTopic, tables: Tables, checkpoint: Checkpoint, steps: BatchObserver) -> None:
        self._topic = topic
        self._checkpoint = checkpoint
        self._observer = steps
        self._rules = topic.rules.digest()
        self._query: str | None = None
        self._tables_checked = False
        schema = schemas.bronze(topic.format.value_type)
        self._bronze = tables.table(bronze_table(topic.name), schema, schemas.PARTITION_BY)
        self._quarantine = tables.table(QUARANTINE, schemas.QUARANTINE, schemas.PARTITION_BY)
        wrong = F.col("error_class")
        self._parts = tables.parts(
            [TablePart(self._bronze, wrong.isNull()), TablePart(self._quarantine, wrong.isNotNull())]
        )
        self._closed = threading.Event()
        self.failure: LandError | None = None
        """The error with which this writer stopped the query, if it did."""

    def close(self) -> None:
        """Start no more batches. Callable from any thread."""
        self._closed.set()

    def write(self, frame: DataFrame, batch: int) -> None:
        """Write a batch, or its missing commits. Raise LandError, LandStoppingError."""
        if self._closed.is_set():
            raise LandStoppingError(f"{self._topic.name}: batch {batch} is not begun, the job ends")
        try:
            self._write(frame, batch)
        except LandError as error:
            self.failure = error
            raise
        except Exception as error:  # noqa: BLE001 - Spark's regexes overflow the stack on JVM error messages
            self.failure = LandError(f"{self._topic.name}: batch {batch}: {failure_message(error)}")
            _ = logs.get().debug("batch_failed", topic=self._topic.name, batch=batch, exc_info=True)
            raise self.failure from None

    def _write(self, frame: DataFrame, batch: int) -> None:
        good_app, bad_app = self._transaction_apps()
        offsets = self._checkpoint.offsets(batch) or ""
        metadata = {RULES: self._rules, OFFSETS: offsets}
        if not self._tables_checked:
            self._check_table(good_app, self._bronze, batch, offsets, follows=True)
            self._check_table(bad_app, self._quarantine, batch, offsets, follows=False)
            self._tables_checked = True
        self._observer.reached("started", self._topic.name, batch)
        with self._parts.write(frame, self._constants(batch)) as parts:
            # Commit even without rows: the commit records for later runs how this batch was read.
            if not parts.append(_GOOD, app=good_app, version=batch, metadata=metadata):
                self._check_commit(self._bronze.transaction(good_app), batch, offsets)
            self._observer.reached("good", self._topic.name, batch)
            if not parts.is_empty(_BAD):
                _ = parts.append(_BAD, app=bad_app, version=batch, metadata=metadata)
            self._observer.reached("bad", self._topic.name, batch)

    def _transaction_apps(self) -> tuple[str, str]:
        if self._query is None:
            self._query = self._checkpoint.query_id()
        if self._query is None:
            raise LandError(
                f"{self._checkpoint.path} has lost its metadata; without the query's id nothing can be written once"
            )
        return transaction_apps(self._query)

    def _constants(self, batch: int) -> dict[str, Constant]:
        return {
            "format": self._topic.rules.format,
            "schema_version": self._topic.rules.schema_version,
            "batch": batch,
            # The time of writing: `current_timestamp` in a stream is the time at which the batch was planned.
            "landed_at": dt.datetime.now(tz=dt.UTC),
        }

    def _check_table(self, app: str, table: Table, batch: int, offsets: str, *, follows: bool) -> None:
        """Before the first batch of a run, check that the table matches the checkpoint. `follows`: every batch has a
        commit in this table."""
        found = table.transaction(app)
        newest = -1 if found is None else found.version
        if newest > batch:
            raise LandError(
                f"{self._topic.name}: the table {table.name} has batch {newest} already, and the checkpoint {self._checkpoint.path} is "
                f"only at batch {batch}: it is an older copy, and going on from it would lose records. Give the query the newer checkpoint"
            )
        if follows and newest < batch - 1:
            missing = f"batch {newest + 1}" if newest + 2 == batch else f"batches {newest + 1} to {batch - 1}"
            raise LandError(
                f"{self._topic.name}: the table {table.name} does not have {missing}, which the checkpoint {self._checkpoint.path} "
                "counts as landed: the table was restored or replaced. Restore the checkpoint of the same time, or begin anew with both"
            )
        self._check_commit(found, batch, offsets)

    def _check_commit(self, found: TableTransaction | None, batch: int, offsets: str) -> None:
        """Check that a commit which is about to be skipped has the same rules and the same records."""
        if found is not None and found.version > batch:
            # The newer commit hides the records of this batch's commit.
            raise LandError(
                f"{self._topic.name}: this driver is at batch {batch}, and batch {found.version} is in the table already: another "
                "driver lands the topic with a copy of this checkpoint. End one of them"
            )
        if found is None or found.version != batch or RULES not in found.metadata:
            return
        if found.metadata[RULES] != self._rules:
            raise LandError(
                f"{self._topic.name}: batch {batch} was half written under another schema; start once with the old one"
            )
        if found.metadata.get(OFFSETS, "") != offsets:
            raise LandError(
                f"{self._topic.name}: batch {batch} in the table is of other records than batch {batch} of the checkpoint "
                f"{self._checkpoint.path}: it is not the checkpoint that wrote the table"
            )


def transaction_apps(query: str) -> tuple[str, str]:
    """Transaction names of a query: for its topic's table, and for quarantine."""
    return f"{query}/good", f"{query}/bad"
