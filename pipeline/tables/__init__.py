"""Tables: the interface, and the engines that write them."""

from .interface import (
    Constant,
    FileInfo,
    Parts,
    PartsWriter,
    Table,
    TableCommitInfo,
    TableConflictError,
    TableError,
    TablePart,
    TableProtocolError,
    Tables,
    TableSchemaError,
    TableTransaction,
)
from .opening import TableSettings, open_tables, register

__all__ = [
    "Constant",
    "FileInfo",
    "Parts",
    "PartsWriter",
    "Table",
    "TableCommitInfo",
    "TableConflictError",
    "TableError",
    "TablePart",
    "TableProtocolError",
    "TableSchemaError",
    "TableSettings",
    "TableTransaction",
    "Tables",
    "open_tables",
    "register",
]
