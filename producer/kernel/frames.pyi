from typing import Final, NamedTuple

from .records import AppendedRows as AppendedRows
from .records import RecordsWalk as RecordsWalk
from .records import append_rows as append_rows
from .records import row_record_bytes as row_record_bytes
from .records import walk_records as walk_records

COMPILED: Final[bool]
MESSAGE_BYTES_MAX: Final[int]

class SendHead(NamedTuple):
    seq: int
    level: int
    topic: str
    position: int

class SliceRows(NamedTuple):
    index: int  # type: ignore[assignment]
    count: int  # type: ignore[assignment]
    flags: int
    base_ts: int
    max_ts: int
    data: bytearray

class ScatteredFrame(NamedTuple):
    count: int  # type: ignore[assignment]
    slices: list[SliceRows]
    partitions: bytes | None
    keyless: int
    record_bytes: int

def murmur2(key: bytes | bytearray | memoryview) -> int: ...
def find_messages(
    buffer: bytes | bytearray | memoryview, start: int, end: int, frame_bytes_max: int
) -> tuple[list[tuple[int, int]], int]: ...
def message_type(buffer: bytes | bytearray | memoryview, start: int, end: int) -> int: ...
def read_head(buffer: bytes | bytearray | memoryview, start: int, end: int) -> SendHead: ...
def scatter(
    buffer: bytes | bytearray | memoryview,
    start: int,
    end: int,
    position: int,
    *,
    partition_count: int,
    sticky: int,
    ignore_keys: bool,
    now_ms: int,
    header_count_max: int,
    record_bytes_max: int,
    reserved_headers: tuple[bytes, ...],
    want_partitions: bool,
) -> ScatteredFrame: ...
