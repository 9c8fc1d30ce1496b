# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The first pass over a SEND's columns: checks everything, and stores positions and sizes in a scratch area.

Part of the kernel (see `kernel.frames`). The second pass (`kernel.slices`) does not repeat these checks.
"""

import cython

from ...wire.errors import FrameError

if cython.compiled:
    from cython.cimports.penstock.producer.kernel.msgpack import (
        NIL,
        NO_NUMBER,
        NO_SIZE,
        array_head,
        array_size,
        bytes_head,
        bytes_size,
        number,
        number_bytes,
        refuse,
        text_head,
        text_size,
        unexpected,
    )
else:
    from .msgpack import (
        NIL,
        NO_NUMBER,
        NO_SIZE,
        array_head,
        array_size,
        bytes_head,
        bytes_size,
        number,
        number_bytes,
        refuse,
        text_head,
        text_size,
        unexpected,
    )

if not cython.compiled:
    # Columns of the scratch area, one 32-bit number per record. Sizes and partitions are stored plus one: 0 is nil.
    PARTITION = 0
    KEY_AT = 1
    KEY_SIZE = 2
    VALUE_AT = 3
    VALUE_SIZE = 4
    HEADERS_AT = 5
    HEADERS_COUNT = 6
    BODY_BYTES = 7
    ORDER = 8
    COLUMNS = 9


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
@cython.exceptval(-2)
def _enter(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, n: cython.Py_ssize_t, what: str
) -> cython.Py_ssize_t:
    """Position of the first item of a column, which must be an array of `n` items."""
    size: cython.Py_ssize_t = array_size(p, at, end, what)
    if size == NO_SIZE or size == NIL:
        raise unexpected(p, at, f"{what} is not an array")
    if size != n:
        raise FrameError(f"{what} has {size} items for {n} records", code="bad_frame", fatal=False)
    return at + array_head(p[at])


@cython.cfunc
@cython.exceptval(-2)
def count_records(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Number of records, from the first column that is an array: partitions, keys or values."""
    size: cython.Py_ssize_t = array_size(p, at, end, "partitions")
    if size < 0:
        if size == NO_SIZE and number(p, at, end, "partitions") == NO_NUMBER:
            raise unexpected(p, at, "partitions is neither nil, a number nor an array")
        at += number_bytes(p[at])
        size = array_size(p, at, end, "keys")
        if size == NO_SIZE:
            raise unexpected(p, at, "keys is neither nil nor an array")
        if size == NIL:
            size = array_size(p, at + 1, end, "values")
            if size < 0:
                raise unexpected(p, at + 1, "values is not an array")
    if size == 0:
        raise FrameError("a frame holds at least one record", code="bad_frame", fatal=False)
    return size


@cython.cfunc
@cython.exceptval(-2)
def _walk_partitions(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    partition_count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store the partitions that the client chose; returns the position of the next column."""
    i: cython.Py_ssize_t
    value: cython.longlong
    if at < end and p[at] == 0xC0:
        return at + 1
    one: cython.bint = array_size(p, at, end, "partitions") == NO_SIZE
    if not one:
        at = _enter(p, at, end, n, "partitions")
    for i in range(1 if one else n):
        value = number(p, at, end, "partitions")
        if value == NO_NUMBER:
            if p[at] != 0xC0:
                raise unexpected(p, at, f"record {i}: partition is neither a number nor nil")
            at += 1
            continue
        if value < 0 or value >= partition_count:
            raise refuse(i, f"the topic has partitions 0 to {partition_count - 1}", "bad_partition")
        items[PARTITION * n + i] = value + 1
        at += number_bytes(p[at])
    if one:
        for i in range(1, n):
            items[PARTITION * n + i] = items[PARTITION * n]
    return at


@cython.cfunc
@cython.exceptval(-2)
def _walk_bytes(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    column: cython.Py_ssize_t,
    what: str,
) -> cython.Py_ssize_t:
    """Store position and size of each key or value; returns the position of the next column."""
    starts: cython.Py_ssize_t = column * n
    sizes: cython.Py_ssize_t = starts + n
    i: cython.Py_ssize_t
    size: cython.Py_ssize_t
    at = _enter(p, at, end, n, what)
    for i in range(n):
        size = bytes_size(p, at, end, what)
        if size == NO_SIZE:
            raise unexpected(p, at, f"record {i}: {what.rstrip('s')} is neither bytes nor nil")
        at += bytes_head(p[at])
        if size >= 0:
            items[starts + i] = at
            items[sizes + i] = size + 1
            at += size
    return at


@cython.cfunc
@cython.exceptval(-2)
def _walk_timestamps(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    stamps: cython.p_longlong,
    now_ms: cython.longlong,
) -> cython.Py_ssize_t:
    """Store the timestamps (only the first if one is for all records); returns where the message must end."""
    i: cython.Py_ssize_t
    value: cython.longlong
    stamps[0] = now_ms
    if at < end and p[at] == 0xC0:
        return at + 1
    size: cython.Py_ssize_t = array_size(p, at, end, "timestamps")
    count: cython.Py_ssize_t = 1
    if size != NO_SIZE:
        at = _enter(p, at, end, n, "timestamps")
        count = n
    for i in range(count):
        value = number(p, at, end, "timestamps")
        if value == NO_NUMBER:
            if p[at] != 0xC0:
                raise unexpected(p, at, f"record {i}: timestamp is neither a number nor nil")
            stamps[i] = now_ms
            at += 1
            continue
        if value < 0:
            raise refuse(i, "timestamp is not between 0 and 2^63 - 1", "bad_timestamp")
        stamps[i] = value
        at += number_bytes(p[at])
    return at


@cython.cfunc
@cython.exceptval(-2)
def _walk_headers(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    header_count_max: cython.Py_ssize_t,
    reserved: tuple[bytes, ...],
) -> cython.Py_ssize_t:
    """Store position, count and encoded size (in Kafka's format) of the headers; returns the next column's position."""
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total: cython.Py_ssize_t
    if at < end and p[at] == 0xC0:
        return at + 1
    at = _enter(p, at, end, n, "headers")
    for i in range(n):
        size = array_size(p, at, end, "headers")
        if size == NO_SIZE or size & 1 and size != NIL:
            raise unexpected(p, at, f"record {i}: headers are neither nil nor pairs of name and value")
        at += array_head(p[at])
        if size <= 0:
            continue
        if size > 2 * header_count_max:
            raise refuse(i, f"{size // 2} headers are over the limit of {header_count_max}", "bad_frame")
        items[HEADERS_AT * n + i] = at
        items[HEADERS_COUNT * n + i] = size // 2
        total = 0
        for j in range(size // 2):
            size = text_size(p, at, end, "headers")
            if size == NO_SIZE:
                raise unexpected(p, at, f"record {i}: a header's name is not text")
            at += text_head(p[at])
            _check_name(p, at, size, i, reserved)
            total += _varint_bytes(2 * size) + size
            at += size
            size = bytes_size(p, at, end, "headers")
            if size == NO_SIZE:
                raise unexpected(p, at, f"record {i}: a header's value is neither bytes nor nil")
            at += bytes_head(p[at])
            total += 1 if size == NIL else _varint_bytes(2 * size) + size
            at += 0 if size == NIL else size
        items[BODY_BYTES * n + i] = total
    return at


@cython.cfunc
@cython.exceptval(-2)
def _check_name(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    record: cython.Py_ssize_t,
    reserved: tuple[bytes, ...],
) -> cython.int:
    """Reject a header name that is not UTF-8, or is reserved."""
    seen: cython.uint = 0
    i: cython.Py_ssize_t
    for i in range(at, at + size):
        seen |= p[i]
    if seen < 0x80 and not reserved:
        return 0
    name = bytes(p[at : at + size])
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        raise FrameError(f"record {record}: a header's name is not UTF-8", code="bad_frame", fatal=False) from None
    if name in reserved:
        raise refuse(record, f"the header {name.decode()} is reserved", "reserved_header")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def walk(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    stamps: cython.p_longlong,
    now_ms: cython.longlong,
    partition_count: cython.Py_ssize_t,
    header_count_max: cython.Py_ssize_t,
    reserved: tuple[bytes, ...],
) -> cython.int:
    """Check and store all five columns; returns whether each record has its own timestamp."""
    at = _walk_partitions(p, at, end, n, items, partition_count)
    if at < end and p[at] == 0xC0:
        at += 1
    else:
        at = _walk_bytes(p, at, end, n, items, KEY_AT, "keys")
    at = _walk_bytes(p, at, end, n, items, VALUE_AT, "values")
    at = _walk_headers(p, at, end, n, items, header_count_max, reserved)
    own: cython.bint = at < end and p[at] != 0xC0 and array_size(p, at, end, "timestamps") >= 0
    at = _walk_timestamps(p, at, end, n, stamps, now_ms)
    if at != end:
        raise FrameError(f"{end - at} bytes follow the message")
    return own
