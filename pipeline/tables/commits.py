"""Commits of delta-rs. Each `CommitSpec` becomes one commit, checked against concurrent commits.

This module relies on the table's own conflict check only for this: two commits never get the same number. A writer that
loses that race reads the table again and decides again by the rules below.
"""

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast
from urllib.parse import unquote

import pyarrow as pa

from .data_files import AddedFile, sync_folder
from .interface import TableConflictError, TableError, TableProtocolError
from .partitions import Value, partition_text

if TYPE_CHECKING:
    from deltalake import DeltaTable

COMMIT_TIMEOUT_S: Final = 120.0
"""How long a commit is retried while other writers win the race."""
PAUSE_S: Final = (0.005, 0.25)
"""Shortest and longest pause between two attempts; random each time, so that two writers do not stay in step."""
VACUUM_HOURS_MIN: Final = 24.0
UPSERTS_MAX: Final = 50
"""How often an upsert or an overwrite is tried while the table changes."""
PROPERTIES: Final = {
    # Readers work from lists of files, which support neither feature.
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
}
HISTORY: Final = (32, 1024, None)
"""Numbers of commits searched for one of ours: first the newest, as the most likely ones; all of them as a last
resort."""

# The supported part of Delta's protocol. Nothing else would detect an unsupported feature, because tables are read by
# lists of files.
READER_VERSIONS: Final = (1, 2, 3)
WRITER_VERSIONS: Final = (1, 2, 3, 4, 5, 6, 7)
READER_FEATURES: Final = frozenset({"timestampNtz", "vacuumProtocolCheck", "columnMapping", "deletionVectors"})
SETTINGS_REFUSED: Final = {"delta.columnMapping.mode": ("", "none"), "delta.enableDeletionVectors": ("", "false")}
"""Features that a table may list but must not use."""


class CommitSpec(NamedTuple):
    """One commit for files that are already written."""

    table: str
    """The table's folder."""
    kind: str
    """`append`, `replace` or `overwrite`."""
    id: str
    """Unique. Finds the commit again when its result was lost."""
    app: str | None = None
    version: int | None = None
    """Transaction version of the application."""
    where: dict[str, Value] | None = None
    """`replace`: the partitions whose files are removed."""
    read_version: int | None = None
    """`replace`: the version in which those partitions must have the same files."""
    rows: int | None = None
    """Number of rows the files must have; otherwise nothing is committed."""
    metadata: dict[str, str] | None = None


def commit_notes(commit: str, app: str | None, version: int | None, metadata: Mapping[str, str]) -> str:
    """The JSON that every commit of ours carries, from either engine."""
    return json.dumps(
        {"v": 1, "id": commit, "app": app, "version": version, "metadata": dict(metadata)}, sort_keys=True
    )


class TransactionLog(Protocol):
    """What both engines know of a table's transactions."""

    def transaction_version(self, app: str) -> int | None:
        """Version of the application's last transaction."""
        ...


def is_committed(log: TransactionLog, app: str | None, version: int | None) -> bool:
    """Whether the table has this transaction, or a later one of the application."""
    if app is None or version is None:
        if app is not None or version is not None:
            raise ValueError("app and version belong together")
        return False
    there = log.transaction_version(app)
    return there is not None and there >= version


def check_vacuum_age(hours: float) -> None:
    """Raise TableError when vacuum could delete the files of an active writer, which are in no commit yet."""
    if hours < VACUUM_HOURS_MIN:
        raise TableError(
            f"vacuum of files younger than {VACUUM_HOURS_MIN:.0f} hours could take those of a writer at work"
        )


def read_notes(written: object) -> dict[str, Any]:
    """Parse the notes of a commit; empty for a commit that is not ours."""
    try:
        notes = json.loads(written) if isinstance(written, str) else None
    except ValueError:
        return {}
    return cast(dict[str, Any], notes) if isinstance(notes, dict) and notes.get("v") == 1 else {}


def open_table(path: str, *, version: int | None = None) -> "DeltaTable":
    """Open the table at its newest version or at `version`. Raise TableProtocolError when it uses unsupported
    features."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(path, version=version)
    except DeltaError as error:
        if "nsupported" in str(error):
            raise TableProtocolError(f"the table {path}: {error}: this is newer than what is known here") from error
        raise
    check_protocol(table)
    return table


def check_protocol(table: "DeltaTable") -> None:
    """Raise TableProtocolError for a table that a reader by lists of files would misread."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    settings = table.metadata().configuration
    used = [f"{name}={settings[name]}" for name, fine in SETTINGS_REFUSED.items() if settings.get(name, "") not in fine]
    if (
        protocol.min_reader_version not in READER_VERSIONS
        or protocol.min_writer_version not in WRITER_VERSIONS
        or features - READER_FEATURES
        or used
    ):
        raise TableProtocolError(
            f"the table {table.table_uri} needs a reader of version {protocol.min_reader_version} and a writer of version "
            f"{protocol.min_writer_version}, features {sorted(features)}, {used}: this is newer than what is known here"
        )


def live_files(table: "DeltaTable", where: Mapping[str, Value] | None = None) -> list[dict[str, Any]]:
    """List path (as in the file system), size, rows and partition of this version's files; with `where`, of these
    partitions only."""
    actions = pa.table(cast(Any, table.get_add_actions(flatten=True)))
    wanted = ["path", "size_bytes", "num_records", *(n for n in actions.column_names if n.startswith("partition."))]
    rows = actions.select([name for name in wanted if name in actions.column_names]).to_pylist()
    found: list[dict[str, Any]] = []
    for row in rows:
        partition = {name.removeprefix("partition."): row[name] for name in row if name.startswith("partition.")}
        if all(partition_text(partition.get(name)) == value for name, value in (where or {}).items()):
            # The log stores paths as URIs.
            found.append(
                {
                    "path": unquote(row["path"]),
                    "bytes": row["size_bytes"],
                    "rows": row.get("num_records"),
                    "partition": partition,
                }
            )
    return found


def find_commit(table: "DeltaTable", commit: str) -> int | None:
    """Return the version of the commit with this id; None when no recent commit has it."""
    found = _search_history(table, HISTORY[:2], lambda notes: notes.get("id") == commit)
    return None if found is None else cast(int, found["version"])


def find_transaction(table: "DeltaTable", app: str, version: int) -> dict[str, str]:
    """Return the metadata of the commit that carries this transaction; empty when its entry in the log is gone."""
    found = _search_history(table, HISTORY, lambda notes: (notes.get("app"), notes.get("version")) == (app, version))
    return {} if found is None else dict(read_notes(found["userMetadata"])["metadata"])


def _search_history(
    table: "DeltaTable", limits: Sequence[int | None], is_wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """Return the newest commit with such notes, among these numbers of newest commits."""
    for limit in limits:
        entries = table.history(limit)
        for entry in entries:
            if is_wanted(read_notes(entry.get("userMetadata"))):
                return entry
        if limit is None or len(entries) < limit:
            break
    return None


def commit(order: CommitSpec, files: Sequence[AddedFile], *, seen: "DeltaTable | None" = None) -> int:
    """Make the commit and return its version.

    `seen`: the table as it was a moment ago; saves opening it. If the table has changed since, the commit loses the
    race for the next version and is tried again with the new table.

    Raise TableError when the rows do not match the spec. Raise TableConflictError when the transaction was already
    committed, when the files to be replaced have changed, or when other writers win the race for two minutes
    (`COMMIT_TIMEOUT_S`).
    """
    from deltalake.exceptions import DeltaError

    _check_files(order, files)
    deadline = time.monotonic() + COMMIT_TIMEOUT_S
    while True:
        table, seen = seen or open_table(order.table), None
        if is_committed(cast(TransactionLog, table), order.app, order.version):
            there = table.transaction_version(cast(str, order.app))
            raise TableConflictError(
                f"{order.table}: version {there} of {order.app!r} was committed meanwhile; {order.version} is refused"
            )
        removed = _removed(order, table)
        if order.kind == "append" and not files and order.app is None:
            return table.version()
        try:
            version = _write(order, table, files, removed)
        except DeltaError:
            # The commit may have been made before something after it failed.
            made = find_commit(open_table(order.table), order.id)
            if made is not None:
                return sync_commit(order.table, made)
            if open_table(order.table).version() == table.version():
                raise
        else:
            return sync_commit(order.table, version)
        if time.monotonic() > deadline:
            raise TableConflictError(f"{order.table}: other writers were quicker for {COMMIT_TIMEOUT_S:.0f} s")
        time.sleep(random.uniform(*PAUSE_S))  # noqa: S311


def sync_commit(table: str, version: int) -> int:
    """Make the commit durable. The caller records the commit in its own log, which must not be ahead of the table."""
    entry = Path(table) / "_delta_log" / f"{version:020}.json"
    with entry.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(entry.parent)
    return version


def _check_files(order: CommitSpec, files: Sequence[AddedFile]) -> None:
    strays = {file.path for file in files if any(file.partition[name] != v for name, v in (order.where or {}).items())}
    if strays:
        raise TableError(f"{order.table}: rows outside of {order.where} were to replace it: {sorted(strays)[:3]}")
    written = sum(file.rows for file in files)
    if order.rows is not None and written != order.rows:
        raise TableError(f"{order.table}: {written} rows were written, and {order.rows} were to be")


def _removed(order: CommitSpec, table: "DeltaTable") -> list[dict[str, Any]]:
    if order.kind == "append":
        return []
    if order.kind == "overwrite":
        return live_files(table)
    now = live_files(table, order.where)
    if order.read_version is not None and order.read_version != table.version():
        then = live_files(open_table(order.table, version=order.read_version), order.where)
        if {file["path"] for file in then} != {file["path"] for file in now}:
            raise TableConflictError(
                f"{order.table}: {order.where or 'the table'} has changed between version {order.read_version} and {table.version()}"
            )
    return now


def _write(
    order: CommitSpec, table: "DeltaTable", files: Sequence[AddedFile], removed: Sequence[Mapping[str, Any]]
) -> int:
    from deltalake import CommitProperties, Transaction
    from deltalake._internal import RemoveAction
    from deltalake.transaction import AddAction

    looked_at = table.version()
    now_ms = int(time.time() * 1000)
    added = [
        AddAction(
            path=file.path,
            size=file.bytes,
            partition_values=file.partition,
            modification_time=file.modified_ms,
            data_change=True,
            stats=file.statistics,
        )
        for file in files
    ]
    gone = [
        RemoveAction(
            path=file["path"],
            size=file["bytes"],
            partition_values={name: partition_text(value) for name, value in file["partition"].items()},
            deletion_timestamp=now_ms,
            data_change=True,
        )
        for file in removed
    ]
    notes = commit_notes(order.id, order.app, order.version, order.metadata or {})
    transactions = None if order.app is None or order.version is None else [Transaction(order.app, order.version)]
    table.create_write_transaction(
        [*gone, *added],
        "append",
        table.schema(),
        list(table.metadata().partition_columns) or None,
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": notes}, max_commit_retries=0, app_transactions=transactions
        ),
    )
    # Without retries the commit can only have got this number.
    return looked_at + 1
