"""Tables: the interface, and the engines that write them."""

from .interface import (
    Constant,
    FileInfo,
    Noted,
    Part,
    Parts,
    PartsWriter,
    Table,
    TableConflictError,
    TableError,
    TableProtocolError,
    Tables,
    TableSchemaError,
    Transaction,
)
from .opening import Location, open_tables, register

__all__ = [
    "Constant",
    "FileInfo",
    "Location",
    "Noted",
    "Part",
    "Parts",
    "PartsWriter",
    "Table",
    "TableConflictError",
    "TableError",
    "TableProtocolError",
    "TableSchemaError",
    "Tables",
    "Transaction",
    "open_tables",
    "register",
]
