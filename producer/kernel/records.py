# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot path over batches: encodes the rows of a slice as Kafka records (format v2), and checks records strictly.

Part of the kernel (`kernel.frames` exports these functions): Cython in pure Python mode, the same bytes uncompiled.
Nothing is read or written outside the given bounds, even if the rows are corrupt.
"""

from typing import NamedTuple

import cython

from ...wire.errors import FrameError

if cython.compiled:
    from cython.cimports.libc.string import memcpy

DELTA_MAX = cython.declare(cython.longlong, (1 << 31) - 1)
# Layout in `wire/record_ids.py`: the header with the varints of its sizes, and the position of its ordinal.
ID_BYTES = cython.declare(cython.Py_ssize_t, 33)
ID_ORDINAL_AT = cython.declare(cython.Py_ssize_t, 20)
ID_ORDINAL_BYTES = cython.declare(cython.Py_ssize_t, 7)


class AppendedRows(NamedTuple):
    """Result of `append_rows`: `records` rows, up to `position` in the slice, up to `out_position` in the batch.

    `max_ts` is the largest timestamp of these records, -1 without records; `largest` the size of the largest one, or 0.
    """

    records: int
    position: int
    out_position: int
    base_ts: int
    max_ts: int
    largest: int


class RecordsWalk(NamedTuple):
    """Result of `walk_records`: largest timestamp delta, and index of the first record without a key (-1: none)."""

    max_ts_delta: int
    first_keyless: int


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_bytes(value: cython.ulonglong) -> cython.Py_ssize_t:
    """Size of an already zig-zagged number."""
    size: cython.Py_ssize_t = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    """Write an already zig-zagged number."""
    while value >= 0x80:
        out[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _zigzag(value: cython.longlong) -> cython.ulonglong:
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    return ((value << 1) ^ (value >> 63)) & mask


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _body_size(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, own: cython.bint
) -> cython.Py_ssize_t:
    """Size of the body of the row at `at`. Checks that the body ends before `end`."""
    if own:
        at += 8
    if end - at < 4:
        raise FrameError("the rows end inside a row's head")
    high: cython.Py_ssize_t = (p[at + 3] << 8) | p[at + 2]
    size: cython.Py_ssize_t = (high << 16) | (p[at + 1] << 8) | p[at]
    if size > end - at - 4:
        raise FrameError("the rows end inside a row's body")
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _timestamp(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    if p[at + 7] >= 0x80:
        raise FrameError("a row's timestamp is negative")
    for i in range(8):
        value = (value << 8) | p[at + 7 - i]
    return value


@cython.cfunc
def _check_range(length: cython.Py_ssize_t, start: cython.Py_ssize_t, end: cython.Py_ssize_t):
    if start < 0 or end < start or length < end:
        raise FrameError(f"bytes {start} to {end} do not lie in a buffer of {length}")


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _headers_at(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, record: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Position of the header count in the body from `at` to `end`."""
    return _skip_field(p, _skip_field(p, at, end, record, True), end, record, True)


@cython.cfunc
@cython.exceptval(-1)
def _headers_end(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, record: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Position after the header count at `at`."""
    after: cython.Py_ssize_t = _varint_end(p, at, end, 5)
    if after < 0 or _varint(p, at, after) < 0:
        raise FrameError(f"record {record}: the number of headers does not end")
    return after


def append_rows(
    rows: bytes | bytearray | memoryview,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    records_left: cython.Py_ssize_t,
    out: bytearray,
    out_position: cython.Py_ssize_t,
    out_limit: cython.Py_ssize_t,
    *,
    base_ts: cython.longlong,
    first_delta: cython.longlong,
    has_base: cython.bint,
    own_timestamps: cython.bint,
    slice_ts: cython.longlong,
    id_header: bytes = b"",
    ordinal: cython.longlong = 0,
) -> AppendedRows:
    """Encode rows from `position` on as records with offset deltas from `first_delta` on, as many as fit below
    `out_limit`.

    Without a base (`has_base`) the first record's timestamp becomes it. `slice_ts`: every row's timestamp if rows have
    none. `id_header`: the encoded last header of every record; the record's ordinal, from `ordinal` on, is written into
    it.

    Raises:
        FrameError: the rows do not follow the layout, or the batch would get more than 2^31 - 1 records.
    """
    view: cython.const[cython.uchar][::1] = rows
    p: cython.p_const_uchar
    o: cython.p_uchar
    h: cython.p_const_uchar = id_header
    with_id: cython.bint = len(id_header) != 0
    records: cython.Py_ssize_t = 0
    body: cython.Py_ssize_t
    size: cython.Py_ssize_t
    before: cython.Py_ssize_t
    headers_at: cython.Py_ssize_t = 0
    headers_end: cython.Py_ssize_t = 0
    headers: cython.longlong = 0
    largest: cython.Py_ssize_t = 0
    stamp: cython.longlong = slice_ts
    max_ts: cython.longlong = -1
    delta: cython.ulonglong
    _check_range(len(rows), position, end)
    _check_range(len(out), out_position, out_limit)
    if first_delta < 0 or records_left > DELTA_MAX - first_delta or slice_ts < 0:
        raise FrameError("a batch holds at most 2^31 - 1 records, none of them before 1970")
    if with_id and (len(id_header) != ID_BYTES or ordinal < 0):
        raise FrameError(f"an id header of {len(id_header)} bytes, from ordinal {ordinal} on")
    if position == end or out_position == out_limit:
        if records_left > 0 and position == end:
            raise FrameError("the rows end inside a row's head")
        return AppendedRows(0, position, out_position, base_ts, -1, 0)
    if cython.compiled:
        p = cython.address(view[0])
        o = cython.cast(cython.p_uchar, out)
    else:
        p = memoryview(view)
        o = memoryview(out)
    while records < records_left:
        body = _body_size(p, position, end, own_timestamps)
        if own_timestamps:
            stamp = _timestamp(p, position)
        if not has_base and records == 0:
            base_ts = stamp
        delta = _zigzag(stamp - base_ts)
        size = body + 1 + _varint_bytes(delta) + _varint_bytes(2 * (first_delta + records))
        if with_id:
            before = position + (12 if own_timestamps else 4)
            headers_at = _headers_at(p, before, before + body, records)
            headers_end = _headers_end(p, headers_at, before + body, records)
            headers = _varint(p, headers_at, headers_end) + 1
            size += ID_BYTES + _varint_bytes(2 * headers) - (headers_end - headers_at)
        if size + _varint_bytes(2 * size) > out_limit - out_position:
            break
        before = out_position
        out_position = _put_varint(o, out_position, 2 * size)
        position += 12 if own_timestamps else 4
        o[out_position] = 0
        out_position = _put_varint(o, out_position + 1, delta)
        out_position = _put_varint(o, out_position, 2 * (first_delta + records))
        if with_id:
            body += position
            _copy(o, out_position, p, position, headers_at - position)
            out_position = _put_varint(o, out_position + headers_at - position, 2 * headers)
            _copy(o, out_position, p, headers_end, body - headers_end)
            out_position += body - headers_end
            _copy(o, out_position, h, 0, ID_BYTES)
            _put_ordinal(o, out_position + ID_ORDINAL_AT, ordinal + records)
            out_position += ID_BYTES
            position = body
        else:
            _copy(o, out_position, p, position, body)
            out_position += body
            position += body
        largest = max(largest, out_position - before)
        records += 1
        max_ts = max(max_ts, stamp)
    return AppendedRows(records, position, out_position, base_ts, max_ts, largest)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_ordinal(out: cython.p_uchar, at: cython.Py_ssize_t, ordinal: cython.longlong) -> cython.void:
    """Write the lowest 56 bits, big-endian."""
    i: cython.Py_ssize_t
    for i in range(ID_ORDINAL_BYTES):
        out[at + i] = (ordinal >> (8 * (ID_ORDINAL_BYTES - 1 - i))) & 0xFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        memcpy(out + at, p + start, size)
    else:
        out[at : at + size] = p[start : start + size]


def row_record_bytes(
    rows: bytes | bytearray | memoryview,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    *,
    base_ts: cython.longlong,
    first_delta: cython.longlong,
    has_base: cython.bint,
    own_timestamps: cython.bint,
    slice_ts: cython.longlong,
    with_id: cython.bint = False,
) -> int:
    """Size in bytes of the record that `append_rows` makes of the row at `position`. `with_id`: with an id header.

    Raises:
        FrameError: the row is incomplete.
    """
    view: cython.const[cython.uchar][::1] = rows
    p: cython.p_const_uchar
    _check_range(len(rows), position, end)
    if position == end:
        raise FrameError("the rows end inside a row's head")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    size: cython.Py_ssize_t = _body_size(p, position, end, own_timestamps)
    stamp: cython.longlong = _timestamp(p, position) if own_timestamps else slice_ts
    at: cython.Py_ssize_t = position + (12 if own_timestamps else 4)
    after: cython.Py_ssize_t
    if with_id:
        after = at + size
        at = _headers_at(p, at, after, 0)
        after = _headers_end(p, at, after, 0)
        size += ID_BYTES + _varint_bytes(2 * _varint(p, at, after) + 2) - (after - at)
    size += 1 + _varint_bytes(_zigzag(stamp - base_ts if has_base else 0)) + _varint_bytes(2 * first_delta)
    return size + _varint_bytes(2 * size)


# --- the strict walk -------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_end(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, most: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Position after the varint at `at`; -1 if it does not end within `most` bytes or before `end`."""
    limit: cython.Py_ssize_t = min(end, at + most)
    while at < limit:
        if p[at] < 0x80:
            return at + 1
        at += 1
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Decode the zig-zag varint in the bytes from `at` to `end`."""
    value: cython.ulonglong = 0
    septet: cython.ulonglong
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    shift: cython.int = 0
    while at < end:
        septet = p[at] & 0x7F
        value |= (septet << shift) & mask
        shift += 7
        at += 1
    half: cython.longlong = value >> 1
    return -half - 1 if value & 1 else half


@cython.cfunc
@cython.exceptval(-1)
def _skip_field(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    record: cython.Py_ssize_t,
    nullable: cython.bint,
) -> cython.Py_ssize_t:
    """Position after a size varint and that many bytes. Size -1 (null) is allowed if `nullable`."""
    after: cython.Py_ssize_t = _varint_end(p, at, end, 5)
    if after < 0:
        raise FrameError(f"record {record}: a size does not end")
    size: cython.longlong = _varint(p, at, after)
    if size == -1 and nullable:
        return after
    if size < 0 or size > end - after:
        raise FrameError(f"record {record}: a field of {size} bytes does not fit in the record")
    return after + size


@cython.cfunc
@cython.exceptval(-1)
def _skip_fields(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, record: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Position after the key, value and headers of a record."""
    i: cython.longlong
    at = _skip_field(p, at, end, record, True)
    at = _skip_field(p, at, end, record, True)
    after: cython.Py_ssize_t = _varint_end(p, at, end, 5)
    if after < 0:
        raise FrameError(f"record {record}: the number of headers does not end")
    headers: cython.longlong = _varint(p, at, after)
    if headers < 0 or headers > end - after:
        raise FrameError(f"record {record}: {headers} headers do not fit in the record")
    at = after
    for i in range(headers):
        at = _skip_field(p, at, end, record, False)
        at = _skip_field(p, at, end, record, True)
    return at


@cython.cfunc
@cython.exceptval(-1)
def _skip_stamps(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, record: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Check attributes, timestamp delta and offset delta (must be `record`); return the offset delta's position."""
    if p[at] != 0:
        raise FrameError(f"record {record}: attributes are {p[at]}, not 0")
    delta: cython.Py_ssize_t = _varint_end(p, at + 1, end, 10)
    if delta < 0:
        raise FrameError(f"record {record}: its timestamp does not end")
    after: cython.Py_ssize_t = _varint_end(p, delta, end, 5)
    if after < 0 or _varint(p, delta, after) != record:
        raise FrameError(f"record {record}: its offset delta is another")
    return delta


def walk_records(data: bytes | bytearray | memoryview, count: cython.Py_ssize_t) -> RecordsWalk:
    """Check that `data` is exactly `count` records of format v2 with offset deltas 0, 1, 2, … and sizes that add up.

    Raises:
        FrameError: it is not. The text names the record.
    """
    view: cython.const[cython.uchar][::1] = data
    p: cython.p_const_uchar
    at: cython.Py_ssize_t = 0
    body: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(data)
    i: cython.Py_ssize_t
    size: cython.longlong
    delta: cython.longlong
    most: cython.longlong = 0
    first_keyless: cython.Py_ssize_t = -1
    if end == 0 or count < 1:
        raise FrameError("a batch holds at least one record")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    for i in range(count):
        body = _varint_end(p, at, end, 5)
        if body < 0:
            raise FrameError(f"record {i}: its size does not end")
        size = _varint(p, at, body)
        if size < 1 or size > end - body:
            raise FrameError(f"record {i}: {size} bytes do not fit in the batch")
        stop = body + size
        at = _skip_stamps(p, body, stop, i)
        delta = _varint(p, body + 1, at)
        most = delta if i == 0 else max(most, delta)
        at = _varint_end(p, at, stop, 5)
        if first_keyless < 0 and at < stop and p[at] == 1:
            first_keyless = i
        if _skip_fields(p, at, stop, i) != stop:
            raise FrameError(f"record {i}: bytes follow its last header")
        at = stop
    if at != end:
        raise FrameError(f"{end - at} bytes follow the last record")
    return RecordsWalk(most, first_keyless)
