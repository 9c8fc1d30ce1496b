from typing import NamedTuple

class AppendedRows(NamedTuple):
    records: int
    position: int
    out_position: int
    base_ts: int
    max_ts: int
    largest: int

class RecordsWalk(NamedTuple):
    max_ts_delta: int
    first_keyless: int

def append_rows(
    rows: bytes | bytearray | memoryview,
    position: int,
    end: int,
    records_left: int,
    out: bytearray,
    out_position: int,
    out_limit: int,
    *,
    base_ts: int,
    first_delta: int,
    has_base: bool,
    own_timestamps: bool,
    slice_ts: int,
    id_header: bytes = b"",
    ordinal: int = 0,
) -> AppendedRows: ...
def row_record_bytes(
    rows: bytes | bytearray | memoryview,
    position: int,
    end: int,
    *,
    base_ts: int,
    first_delta: int,
    has_base: bool,
    own_timestamps: bool,
    slice_ts: int,
    with_id: bool = False,
) -> int: ...
def walk_records(data: bytes | bytearray | memoryview, count: int) -> RecordsWalk: ...
