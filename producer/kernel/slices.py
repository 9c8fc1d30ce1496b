# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The second pass over a SEND: chooses a partition for every record, and writes one slice per partition.

Part of the kernel (see `kernel.frames`). It relies on the checks and the scratch columns of `kernel.columns`.
"""

from typing import NamedTuple

import cython

if cython.compiled:
    from cython.cimports.penstock.producer.kernel.columns import (
        PARTITION,
        KEY_AT,
        KEY_SIZE,
        VALUE_AT,
        VALUE_SIZE,
        HEADERS_AT,
        HEADERS_COUNT,
        BODY_BYTES,
        ORDER,
    )
else:
    from .columns import PARTITION, KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, HEADERS_COUNT, BODY_BYTES, ORDER
if cython.compiled:
    from cython.cimports.penstock.producer.kernel.msgpack import (
        NIL,
        bytes_head,
        bytes_size,
        refuse,
        text_head,
        text_size,
    )
else:
    from .msgpack import NIL, bytes_head, bytes_size, refuse, text_head, text_size

if cython.compiled:
    from cython.cimports.libc.string import memcpy

HEADER_BYTES = 48


class SliceRows(NamedTuple):
    """The records of one frame for one partition. `data`: a slice header, still all zeros, and then the rows."""

    index: int
    count: int
    flags: int
    base_ts: int
    max_ts: int
    data: bytearray


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def hash31(p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.uint:
    m: cython.uint = 0x5BD1E995
    h: cython.uint = 0x9747B28C
    mask: cython.uint = 0xFFFFFFFF
    k: cython.uint
    b: cython.uint
    left: cython.Py_ssize_t = size
    h ^= size & mask
    while left >= 4:
        b = p[at + 3]
        k = p[at] | (p[at + 1] << 8) | (p[at + 2] << 16) | (b << 24)
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = ((h * m) & mask) ^ k
        at += 4
        left -= 4
    if left >= 3:
        h ^= p[at + 2] << 16
    if left >= 2:
        h ^= p[at + 1] << 8
    if left >= 1:
        h ^= p[at]
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return h & 0x7FFFFFFF


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
def _put_size(out: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Write a non-negative size as zig-zag varint."""
    value: cython.Py_ssize_t = 2 * size
    while value >= 0x80:
        out[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if cython.compiled:
        memcpy(out + at, p + start, size)
    else:
        out[at : at + size] = p[start : start + size]
    return at + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_field(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a key or value with its size; `size` -1 is null."""
    if size < 0:
        out[at] = 1
        return at + 1
    return _copy(out, _put_size(out, at, size), p, start, size)


@cython.cfunc
@cython.exceptval(-1)
def _put_headers(
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write headers that `columns._walk_headers` has checked, without their count."""
    j: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for j in range(count):
        size = text_size(p, at, end, "headers")
        at += text_head(p[at])
        to = _put_field(out, to, p, at, size)
        at += size
        size = bytes_size(p, at, end, "headers")
        at += bytes_head(p[at])
        to = _put_field(out, to, p, at, size)
        at += 0 if size == NIL else size
    return to


@cython.cfunc
@cython.exceptval(-1)
def measure(
    p: cython.p_const_uchar,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    counts: cython.p_int,
    partition_count: cython.Py_ssize_t,
    sticky: cython.Py_ssize_t,
    ignore_keys: cython.bint,
    record_bytes_max: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Choose every record's partition, and sum counts and bytes per partition; returns how many went to `sticky`."""
    i: cython.Py_ssize_t
    index: cython.Py_ssize_t
    key: cython.Py_ssize_t
    value: cython.Py_ssize_t
    size: cython.Py_ssize_t
    count: cython.uint = partition_count
    keyless: cython.Py_ssize_t = 0
    for i in range(n):
        key = items[KEY_SIZE * n + i] - 1
        value = items[VALUE_SIZE * n + i] - 1
        size = items[BODY_BYTES * n + i] + _varint_bytes(2 * items[HEADERS_COUNT * n + i])
        size += 1 if key < 0 else _varint_bytes(2 * key) + key
        size += 1 if value < 0 else _varint_bytes(2 * value) + value
        if size > record_bytes_max:
            raise refuse(i, f"{size} bytes are over the limit of {record_bytes_max}", "too_large")
        index = items[PARTITION * n + i] - 1
        if index < 0:
            if key >= 0 and not ignore_keys:
                index = hash31(p, items[KEY_AT * n + i], key) % count
            else:
                index = sticky
                keyless += 1
        items[PARTITION * n + i] = index
        items[BODY_BYTES * n + i] = size
        counts[index] += 1
        counts[partition_count + index] += size
    return keyless


@cython.cfunc
@cython.exceptval(-1)
def _sort(
    n: cython.Py_ssize_t, items: cython.p_int, counts: cython.p_int, partition_count: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Sort the records by partition, stably; returns how many partitions have records."""
    i: cython.Py_ssize_t
    index: cython.Py_ssize_t
    place: cython.Py_ssize_t = 0
    sticky_bytes: cython.Py_ssize_t = 0
    for index in range(partition_count):
        counts[2 * partition_count + index] = place
        place += counts[index]
        sticky_bytes += counts[index] != 0
    for i in range(n):
        index = items[PARTITION * n + i]
        place = counts[2 * partition_count + index]
        items[ORDER * n + place] = i
        counts[2 * partition_count + index] = place + 1
    return sticky_bytes


@cython.cfunc
@cython.exceptval(check=False)
def _put_number(
    out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a non-negative number, little-endian."""
    i: cython.Py_ssize_t
    for i in range(size):
        out[at + i] = (value >> (8 * i)) & 0xFF
    return at + size


@cython.cfunc
def _slice(
    p: cython.p_const_uchar,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    stamps: cython.p_longlong,
    own: cython.bint,
    index: cython.Py_ssize_t,
    place: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    body_bytes: cython.Py_ssize_t,
):
    """Write the slice of `count` records, from `place` in the sorted order on."""
    data: bytearray = bytearray(HEADER_BYTES + count * (12 if own else 4) + body_bytes)
    out: cython.p_uchar
    if cython.compiled:
        out = cython.cast(cython.p_uchar, data)
    else:
        out = memoryview(data)
    at: cython.Py_ssize_t = HEADER_BYTES
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    stamp: cython.longlong
    base_ts: cython.longlong = stamps[items[ORDER * n + place] if own else 0]
    max_ts: cython.longlong = base_ts
    for j in range(place, place + count):
        i = items[ORDER * n + j]
        if own:
            stamp = stamps[i]
            at = _put_number(out, at, stamp, 8)
            max_ts = max(max_ts, stamp)
        at = _put_number(out, at, items[BODY_BYTES * n + i], 4)
        at = _put_field(out, at, p, items[KEY_AT * n + i], items[KEY_SIZE * n + i] - 1)
        at = _put_field(out, at, p, items[VALUE_AT * n + i], items[VALUE_SIZE * n + i] - 1)
        at = _put_size(out, at, items[HEADERS_COUNT * n + i])
        if items[HEADERS_COUNT * n + i] > 0:
            at = _put_headers(out, at, p, items[HEADERS_AT * n + i], end, items[HEADERS_COUNT * n + i])
    assert at == len(data), "a slice was measured wrong"
    return SliceRows(index, count, 1 if own else 0, base_ts, max_ts, data)


@cython.cfunc
def cut(
    p: cython.p_const_uchar,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    counts: cython.p_int,
    stamps: cython.p_longlong,
    own: cython.bint,
    partition_count: cython.Py_ssize_t,
) -> tuple[list[SliceRows], int]:
    """One slice for each partition with records, in ascending order, and the total size of all record bodies."""
    _sort(n, items, counts, partition_count)
    slices: list[SliceRows] = []
    index: cython.Py_ssize_t
    count: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    for index in range(partition_count):
        count = counts[index]
        if count > 0:
            total += counts[partition_count + index]
            slices.append(_slice(p, end, n, items, stamps, own, index, place, count, counts[partition_count + index]))
            place += count
    return slices, total
