# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot path over frames: splits a stream, reads a SEND's head, and turns its columns into slices, one pass per column.

Cython in pure Python mode: this file also runs uncompiled (slowly, in tests), and gives the same bytes. Every byte that
comes from outside is read behind an explicit bounds check, nothing recurses, and only `FrameError` is raised. What is done
with slices afterwards is in `kernel_records`, whose functions are found here too.
"""

from typing import NamedTuple

import cython

from ..wire.errors import FrameError
from .kernel_records import Appended, Walked, append_rows, row_record_bytes, walk_records

if cython.compiled:
    from cython.cimports.libc.string import memcpy

__all__ = [
    "COMPILED",
    "Appended",
    "Scattered",
    "SendHead",
    "SliceRows",
    "Walked",
    "append_rows",
    "find_messages",
    "message_type",
    "murmur2",
    "read_head",
    "row_record_bytes",
    "scatter",
    "walk_records",
]

COMPILED: bool = cython.compiled
MESSAGE_BYTES_MAX = 1 << 26
"""No message is walked above this: all offsets and sizes, encoded ones too, then fit 31 bits."""

HEADER_BYTES = 48
SEND = 2

# What the number reader says instead of a number.
OUT_OF_RANGE = cython.declare(cython.longlong, -1)
NO_NUMBER = cython.declare(cython.longlong, -3)
# What the size readers say instead of a size.
NIL = cython.declare(cython.Py_ssize_t, -1)
NO_SIZE = cython.declare(cython.Py_ssize_t, -3)

# Columns of the scratch area, one 32-bit number per record each. Sizes are kept plus one, partitions too: 0 is nil.
PARTITION = cython.declare(cython.Py_ssize_t, 0)
KEY_AT = cython.declare(cython.Py_ssize_t, 1)
KEY_SIZE = cython.declare(cython.Py_ssize_t, 2)
VALUE_AT = cython.declare(cython.Py_ssize_t, 3)
VALUE_SIZE = cython.declare(cython.Py_ssize_t, 4)
HEADERS_AT = cython.declare(cython.Py_ssize_t, 5)
HEADERS_COUNT = cython.declare(cython.Py_ssize_t, 6)
BODY_BYTES = cython.declare(cython.Py_ssize_t, 7)
ORDER = cython.declare(cython.Py_ssize_t, 8)
COLUMNS = cython.declare(cython.Py_ssize_t, 9)


class SendHead(NamedTuple):
    """The fixed part of a SEND; its columns begin at `position`."""

    seq: int
    level: int
    topic: str
    position: int


class SliceRows(NamedTuple):
    """The records of one frame for one partition. `data`: a slice whose header is still zeros, then its rows."""

    index: int
    count: int
    flags: int
    base_ts: int
    max_ts: int
    data: bytearray


class Scattered(NamedTuple):
    """A frame, taken apart. `partitions`: each record's partition as a little-endian i32, when asked for; `keyless`: how
    many records went to the sticky partition; `record_bytes`: size of all record bodies."""

    count: int
    slices: list[SliceRows]
    partitions: bytes | None
    keyless: int
    record_bytes: int


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash(p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.uint:
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


def murmur2(key: bytes | bytearray | memoryview) -> int:
    """Kafka's hash of a key, without its sign bit."""
    view: cython.const[cython.uchar][::1] = key
    p: cython.p_const_uchar
    if len(key) == 0:
        return 275646681
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    return _hash(p, 0, len(key))


# --- reading msgpack -------------------------------------------------------------------------------------------------


@cython.cfunc
def _cut_short(what: str):
    return FrameError(f"the message ends inside {what}")


@cython.cfunc
def _refuse(record: cython.Py_ssize_t, text: str, code: str):
    return FrameError(f"record {record}: {text}", code=code, fatal=False)


@cython.cfunc
def _unexpected(p: cython.p_const_uchar, at: cython.Py_ssize_t, text: str):
    """What to raise for a well-formed thing in a wrong place; 0xc1 is never well formed."""
    if p[at] == 0xC1:
        return FrameError("the byte 0xc1 is not msgpack")
    return FrameError(text, code="bad_frame", fatal=False)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _u16(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return (p[at] << 8) | p[at + 1]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _u32(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    high: cython.Py_ssize_t = (p[at] << 8) | p[at + 1]
    return (high << 16) | (p[at + 2] << 8) | p[at + 3]


@cython.cfunc
@cython.inline
@cython.exceptval(-2)
def _array_size(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.Py_ssize_t:
    """Number of items of the array that begins at `at`; NIL, NO_SIZE for anything else."""
    if at >= end:
        raise _cut_short(what)
    tag: cython.uint = p[at]
    size: cython.Py_ssize_t = NO_SIZE
    if tag & 0xF0 == 0x90:
        size = tag & 0x0F
    elif tag == 0xC0:
        return NIL
    elif tag == 0xDC or tag == 0xDD:
        if end - at < (3 if tag == 0xDC else 5):
            raise _cut_short(what)
        size = _u16(p, at + 1) if tag == 0xDC else _u32(p, at + 1)
    # An item is at least a byte: a larger count is a lie, and nothing is allotted for it.
    if size > end - at:
        raise _cut_short(what)
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _array_head(tag: cython.uint) -> cython.Py_ssize_t:
    return 3 if tag == 0xDC else 5 if tag == 0xDD else 1


@cython.cfunc
@cython.inline
@cython.exceptval(-2)
def _bytes_size(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.Py_ssize_t:
    """Size of the byte string that begins at `at`, all of it inside; NIL, NO_SIZE for anything else."""
    if at >= end:
        raise _cut_short(what)
    tag: cython.uint = p[at]
    if tag == 0xC0:
        return NIL
    if tag < 0xC4 or tag > 0xC6:
        return NO_SIZE
    head: cython.Py_ssize_t = _bytes_head(tag)
    if end - at < head:
        raise _cut_short(what)
    size: cython.Py_ssize_t = p[at + 1]
    if tag == 0xC5:
        size = _u16(p, at + 1)
    elif tag == 0xC6:
        size = _u32(p, at + 1)
    if size > end - at - head:
        raise _cut_short(what)
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _bytes_head(tag: cython.uint) -> cython.Py_ssize_t:
    return 2 if tag == 0xC4 else 3 if tag == 0xC5 else 5 if tag == 0xC6 else 1


@cython.cfunc
@cython.inline
@cython.exceptval(-2)
def _text_size(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.Py_ssize_t:
    """Size of the text that begins at `at`, all of it inside; NO_SIZE for anything else."""
    if at >= end:
        raise _cut_short(what)
    tag: cython.uint = p[at]
    head: cython.Py_ssize_t = _text_head(tag)
    if tag & 0xE0 != 0xA0 and (tag < 0xD9 or tag > 0xDB):
        return NO_SIZE
    if end - at < head:
        raise _cut_short(what)
    size: cython.Py_ssize_t = tag & 0x1F
    if tag == 0xD9:
        size = p[at + 1]
    elif tag == 0xDA:
        size = _u16(p, at + 1)
    elif tag == 0xDB:
        size = _u32(p, at + 1)
    if size > end - at - head:
        raise _cut_short(what)
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _text_head(tag: cython.uint) -> cython.Py_ssize_t:
    return 2 if tag == 0xD9 else 3 if tag == 0xDA else 5 if tag == 0xDB else 1


@cython.cfunc
@cython.inline
@cython.exceptval(-2)
def _number(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.longlong:
    """The whole number that begins at `at`; OUT_OF_RANGE below 0 or above 2^63 - 1; NO_NUMBER for anything else."""
    if at >= end:
        raise _cut_short(what)
    tag: cython.uint = p[at]
    if tag < 0x80:
        return tag
    if tag >= 0xE0:
        return OUT_OF_RANGE
    if tag < 0xCC or tag > 0xD3:
        return NO_NUMBER
    size: cython.Py_ssize_t = _number_bytes(tag) - 1
    if end - at <= size:
        raise _cut_short(what)
    # A set top bit is a minus sign in the signed forms, and beyond 2^63 - 1 in the widest unsigned one.
    if tag >= 0xCF and p[at + 1] >= 0x80:
        return OUT_OF_RANGE
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    for i in range(size):
        value = (value << 8) | p[at + 1 + i]
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number_bytes(tag: cython.uint) -> cython.Py_ssize_t:
    if tag < 0xCC or tag > 0xD3:
        return 1
    return 1 + (1 << (tag & 3))


# --- the stream and the head of a message ----------------------------------------------------------------------------


@cython.cfunc
def _check_range(length: cython.Py_ssize_t, start: cython.Py_ssize_t, end: cython.Py_ssize_t):
    if start < 0 or end < start or length < end:
        raise FrameError(f"bytes {start} to {end} do not lie in a buffer of {length}")


def find_messages(
    buffer: bytes | bytearray | memoryview,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    frame_bytes_max: cython.Py_ssize_t,
) -> tuple[list[tuple[int, int]], int]:
    """Where the body of every whole message lies, and the position after the last whole one.

    Raises:
        FrameError: a length of 0 or above `frame_bytes_max`.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    found: list[tuple[int, int]] = []
    size: cython.Py_ssize_t
    _check_range(len(buffer), start, end)
    if start == end:
        return found, start
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    while end - start >= 4:
        size = _u32(p, start)
        if size == 0:
            raise FrameError("a message of 0 bytes")
        if size > frame_bytes_max:
            raise FrameError(f"a message of {size} bytes is over the limit of {frame_bytes_max}")
        if size > end - start - 4:
            break
        found.append((start + 4, start + 4 + size))
        start += 4 + size
    return found, start


def message_type(buffer: bytes | bytearray | memoryview, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
    """First element of a message, 0 to 255.

    Raises:
        FrameError: not an array that begins with a number of one byte.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    _check_range(len(buffer), start, end)
    if start == end:
        raise FrameError("a message of 0 bytes")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    size: cython.Py_ssize_t = _array_size(p, start, end, "its array")
    if size < 1:
        raise FrameError("a message is a msgpack array that begins with its type")
    value: cython.longlong = _number(p, start + _array_head(p[start]), end, "its type")
    if value < 0 or value > 255:
        raise FrameError("a message is a msgpack array that begins with its type")
    return value


def read_head(buffer: bytes | bytearray | memoryview, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> SendHead:
    """Sequence, level and topic of the SEND that fills the bytes from `start` to `end`.

    Raises:
        FrameError: not a SEND, or its level or topic is not valid; then `seq` of the error is the frame's.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    _check_range(len(buffer), start, end)
    if message_type(buffer, start, end) != SEND:
        raise FrameError("not a SEND")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    at: cython.Py_ssize_t = start + _array_head(p[start])
    if _array_size(p, start, end, "its array") != 9:
        raise FrameError("SEND has 9 elements")
    at += _number_bytes(p[at])
    seq: cython.longlong = _number(p, at, end, "seq")
    if seq < 0:
        raise FrameError("seq is not a whole number from 0 to 2^63 - 1")
    at += _number_bytes(p[at])
    level: cython.longlong = _number(p, at, end, "level")
    if level < 0 or level > 2:
        raise FrameError("level is not 0, 1 or 2", code="bad_frame", fatal=False, seq=seq)
    at += _number_bytes(p[at])
    size: cython.Py_ssize_t = _text_size(p, at, end, "topic")
    if size == NO_SIZE:
        raise FrameError("topic is not text", code="bad_topic", fatal=False, seq=seq)
    at += _text_head(p[at])
    if not _is_topic(p, at, size):
        text = "topic is not 1 to 249 characters of A-Z a-z 0-9 . _ - (nor . or ..)"
        raise FrameError(text, code="bad_topic", fatal=False, seq=seq)
    return SendHead(seq, level, bytes(p[at : at + size]).decode("ascii"), at + size)


@cython.cfunc
@cython.exceptval(check=False)
def _is_topic(p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    c: cython.uint
    i: cython.Py_ssize_t
    dots: cython.Py_ssize_t = 0
    if size < 1 or size > 249:
        return False
    for i in range(at, at + size):
        c = p[i]
        if c == 0x2E:
            dots += 1
        elif not (0x61 <= (c | 0x20) <= 0x7A or 0x30 <= c <= 0x39 or c == 0x5F or c == 0x2D):
            return False
    return size > 2 or dots < size


# --- columns to slices -----------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(-2)
def _enter(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, n: cython.Py_ssize_t, what: str
) -> cython.Py_ssize_t:
    """Where the items of a column begin; it must be an array of `n`."""
    size: cython.Py_ssize_t = _array_size(p, at, end, what)
    if size == NO_SIZE or size == NIL:
        raise _unexpected(p, at, f"{what} is not an array")
    if size != n:
        raise FrameError(f"{what} has {size} items for {n} records", code="bad_frame", fatal=False)
    return at + _array_head(p[at])


@cython.cfunc
@cython.exceptval(-2)
def _count_records(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Number of records, from the first column that is an array: partitions, keys or values."""
    size: cython.Py_ssize_t = _array_size(p, at, end, "partitions")
    if size < 0:
        if size == NO_SIZE and _number(p, at, end, "partitions") == NO_NUMBER:
            raise _unexpected(p, at, "partitions is neither nil, a number nor an array")
        at += _number_bytes(p[at])
        size = _array_size(p, at, end, "keys")
        if size == NO_SIZE:
            raise _unexpected(p, at, "keys is neither nil nor an array")
        if size == NIL:
            size = _array_size(p, at + 1, end, "values")
            if size < 0:
                raise _unexpected(p, at + 1, "values is not an array")
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
    """Note the partitions that the client chose; returns where the next column begins."""
    i: cython.Py_ssize_t
    value: cython.longlong
    if at < end and p[at] == 0xC0:
        return at + 1
    one: cython.bint = _array_size(p, at, end, "partitions") == NO_SIZE
    if not one:
        at = _enter(p, at, end, n, "partitions")
    for i in range(1 if one else n):
        value = _number(p, at, end, "partitions")
        if value == NO_NUMBER:
            if p[at] != 0xC0:
                raise _unexpected(p, at, f"record {i}: partition is neither a number nor nil")
            at += 1
            continue
        if value < 0 or value >= partition_count:
            raise _refuse(i, f"the topic has partitions 0 to {partition_count - 1}", "bad_partition")
        items[PARTITION * n + i] = value + 1
        at += _number_bytes(p[at])
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
    """Note where each key or value lies; returns where the next column begins."""
    starts: cython.Py_ssize_t = column * n
    sizes: cython.Py_ssize_t = starts + n
    i: cython.Py_ssize_t
    size: cython.Py_ssize_t
    at = _enter(p, at, end, n, what)
    for i in range(n):
        size = _bytes_size(p, at, end, what)
        if size == NO_SIZE:
            raise _unexpected(p, at, f"record {i}: {what.rstrip('s')} is neither bytes nor nil")
        at += _bytes_head(p[at])
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
    """Note the timestamps (only the first, where one stands for all); returns where the message must end."""
    i: cython.Py_ssize_t
    value: cython.longlong
    stamps[0] = now_ms
    if at < end and p[at] == 0xC0:
        return at + 1
    size: cython.Py_ssize_t = _array_size(p, at, end, "timestamps")
    count: cython.Py_ssize_t = 1
    if size != NO_SIZE:
        at = _enter(p, at, end, n, "timestamps")
        count = n
    for i in range(count):
        value = _number(p, at, end, "timestamps")
        if value == NO_NUMBER:
            if p[at] != 0xC0:
                raise _unexpected(p, at, f"record {i}: timestamp is neither a number nor nil")
            stamps[i] = now_ms
            at += 1
            continue
        if value < 0:
            raise _refuse(i, "timestamp is not between 0 and 2^63 - 1", "bad_timestamp")
        stamps[i] = value
        at += _number_bytes(p[at])
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
    """Note where each record's headers lie and how large they are in Kafka's form; returns where the next column begins."""
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total: cython.Py_ssize_t
    if at < end and p[at] == 0xC0:
        return at + 1
    at = _enter(p, at, end, n, "headers")
    for i in range(n):
        size = _array_size(p, at, end, "headers")
        if size == NO_SIZE or size & 1 and size != NIL:
            raise _unexpected(p, at, f"record {i}: headers are neither nil nor pairs of name and value")
        at += _array_head(p[at])
        if size <= 0:
            continue
        if size > 2 * header_count_max:
            raise _refuse(i, f"{size // 2} headers are over the limit of {header_count_max}", "bad_frame")
        items[HEADERS_AT * n + i] = at
        items[HEADERS_COUNT * n + i] = size // 2
        total = 0
        for j in range(size // 2):
            size = _text_size(p, at, end, "headers")
            if size == NO_SIZE:
                raise _unexpected(p, at, f"record {i}: a header's name is not text")
            at += _text_head(p[at])
            _check_name(p, at, size, i, reserved)
            total += _varint_bytes(2 * size) + size
            at += size
            size = _bytes_size(p, at, end, "headers")
            if size == NO_SIZE:
                raise _unexpected(p, at, f"record {i}: a header's value is neither bytes nor nil")
            at += _bytes_head(p[at])
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
    """Refuse a header's name that is not UTF-8, or reserved."""
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
        raise _refuse(record, f"the header {name.decode()} is reserved", "reserved_header")
    return 0


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
    """Write a size, zero or more, as zig-zag varint."""
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
    """Write headers that `_walk_headers` has seen, without their count."""
    j: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for j in range(count):
        size = _text_size(p, at, end, "headers")
        at += _text_head(p[at])
        to = _put_field(out, to, p, at, size)
        at += size
        size = _bytes_size(p, at, end, "headers")
        at += _bytes_head(p[at])
        to = _put_field(out, to, p, at, size)
        at += 0 if size == NIL else size
    return to


@cython.cfunc
@cython.exceptval(-1)
def _measure(
    p: cython.p_const_uchar,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    counts: cython.p_int,
    partition_count: cython.Py_ssize_t,
    sticky: cython.Py_ssize_t,
    ignore_keys: cython.bint,
    record_bytes_max: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Choose every record's partition and add up counts and bytes per partition; returns how many had no say in it."""
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
            raise _refuse(i, f"{size} bytes are over the limit of {record_bytes_max}", "too_large")
        index = items[PARTITION * n + i] - 1
        if index < 0:
            if key >= 0 and not ignore_keys:
                index = _hash(p, items[KEY_AT * n + i], key) % count
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
    """Order the records by partition, else as they came; returns how many partitions have records."""
    i: cython.Py_ssize_t
    index: cython.Py_ssize_t
    place: cython.Py_ssize_t = 0
    used: cython.Py_ssize_t = 0
    for index in range(partition_count):
        counts[2 * partition_count + index] = place
        place += counts[index]
        used += counts[index] != 0
    for i in range(n):
        index = items[PARTITION * n + i]
        place = counts[2 * partition_count + index]
        items[ORDER * n + place] = i
        counts[2 * partition_count + index] = place + 1
    return used


@cython.cfunc
@cython.exceptval(check=False)
def _put_number(
    out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a number, zero or more, little-endian."""
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
    """The rows of `count` records from `place` in the order on."""
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


def scatter(
    buffer: bytes | bytearray | memoryview,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    position: cython.Py_ssize_t,
    *,
    partition_count: cython.Py_ssize_t,
    sticky: cython.Py_ssize_t,
    ignore_keys: cython.bint,
    now_ms: cython.longlong,
    header_count_max: cython.Py_ssize_t,
    record_bytes_max: cython.Py_ssize_t,
    reserved_headers: tuple[bytes, ...],
    want_partitions: cython.bint,
) -> Scattered:
    """Validate the columns of a SEND from `position` on and make a slice for each partition that has records.

    Raises:
        FrameError: `fatal` where the bytes are not what msgpack or SEND ask for; else the frame alone is at fault.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    items: cython.p_int
    counts: cython.p_int
    stamps: cython.p_longlong
    _check_range(len(buffer), start, end)
    _check_range(len(buffer), start, position)
    assert 0 <= sticky < partition_count, "the sticky partition is none of the topic's"
    if end - start > MESSAGE_BYTES_MAX or end > 0x7FFFFFFF:
        raise FrameError(f"a message of {end - start} bytes up to {end} is over the limits of the walker")
    if position >= end:
        raise _cut_short("partitions")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    n: cython.Py_ssize_t = _count_records(p, position, end)
    times: bytearray = bytearray(8 * n)
    scratch: bytearray = bytearray(4 * n * COLUMNS)
    sums: bytearray = bytearray(12 * partition_count)
    if cython.compiled:
        items = cython.cast(cython.p_int, cython.cast(cython.p_char, scratch))
        counts = cython.cast(cython.p_int, cython.cast(cython.p_char, sums))
        stamps = cython.cast(cython.p_longlong, cython.cast(cython.p_char, times))
    else:
        items = memoryview(scratch).cast("i")
        counts = memoryview(sums).cast("i")
        stamps = memoryview(times).cast("q")
    own: cython.bint = _walk(
        p, position, end, n, items, stamps, now_ms, partition_count, header_count_max, reserved_headers
    )
    keyless: cython.Py_ssize_t = _measure(p, n, items, counts, partition_count, sticky, ignore_keys, record_bytes_max)
    slices, record_bytes = _cut(p, end, n, items, counts, stamps, own, partition_count)
    partitions = bytes(scratch[: 4 * n]) if want_partitions else None
    return Scattered(n, slices, partitions, keyless, record_bytes)


@cython.cfunc
@cython.exceptval(-1)
def _walk(
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
    """All five columns; returns whether each record has a timestamp of its own."""
    at = _walk_partitions(p, at, end, n, items, partition_count)
    if at < end and p[at] == 0xC0:
        at += 1
    else:
        at = _walk_bytes(p, at, end, n, items, KEY_AT, "keys")
    at = _walk_bytes(p, at, end, n, items, VALUE_AT, "values")
    at = _walk_headers(p, at, end, n, items, header_count_max, reserved)
    own: cython.bint = at < end and p[at] != 0xC0 and _array_size(p, at, end, "timestamps") >= 0
    at = _walk_timestamps(p, at, end, n, stamps, now_ms)
    if at != end:
        raise FrameError(f"{end - at} bytes follow the message")
    return own


@cython.cfunc
def _cut(
    p: cython.p_const_uchar,
    end: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    items: cython.p_int,
    counts: cython.p_int,
    stamps: cython.p_longlong,
    own: cython.bint,
    partition_count: cython.Py_ssize_t,
) -> tuple[list[SliceRows], int]:
    """A slice for each partition that has records, in ascending order, and the size of all record bodies."""
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
