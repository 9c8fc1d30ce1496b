# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot path over frames: splits a stream into messages, parses SEND frames, and writes one slice per partition.

Cython in pure Python mode: these files also run uncompiled (slowly, in tests), and produce the same bytes. Every read
of external bytes has an explicit bounds check, nothing recurses, and only `FrameError` is raised. This module is the
kernel's public interface: `kernel.msgpack` decodes, `kernel.columns` checks (one pass per column), `kernel.slices`
writes slices, and `kernel.records` encodes slices as records.
"""

from typing import NamedTuple

import cython

from ...wire.errors import FrameError
from .records import AppendedRows, RecordsWalk, append_rows, row_record_bytes, walk_records
from .slices import SliceRows

if cython.compiled:
    from cython.cimports.penstock.producer.kernel.columns import (
        COLUMNS,
        count_records,
        walk,
    )
else:
    from .columns import COLUMNS, count_records, walk
if cython.compiled:
    from cython.cimports.penstock.producer.kernel.msgpack import (
        NO_SIZE,
        array_head,
        array_size,
        check_range,
        cut_short,
        number,
        number_bytes,
        text_head,
        text_size,
        u32,
    )
else:
    from .msgpack import (
        NO_SIZE,
        array_head,
        array_size,
        check_range,
        cut_short,
        number,
        number_bytes,
        text_head,
        text_size,
        u32,
    )
if cython.compiled:
    from cython.cimports.penstock.producer.kernel.slices import (
        cut,
        hash31,
        measure,
    )
else:
    from .slices import cut, hash31, measure

__all__ = [
    "COMPILED",
    "AppendedRows",
    "ScatteredFrame",
    "SendHead",
    "SliceRows",
    "RecordsWalk",
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
"""Largest message that `scatter` accepts. All offsets and sizes, encoded ones too, then fit in 31 bits."""

SEND = 2


class SendHead(NamedTuple):
    """The fixed part of a SEND. Its columns start at `position`."""

    seq: int
    level: int
    topic: str
    position: int


class ScatteredFrame(NamedTuple):
    """A frame, split into slices. `partitions`: each record's partition as a little-endian i32, if requested;
    `keyless`: the number of records for the sticky partition; `record_bytes`: total size of all record bodies."""

    count: int
    slices: list[SliceRows]
    partitions: bytes | None
    keyless: int
    record_bytes: int


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
    return hash31(p, 0, len(key))


def find_messages(
    buffer: bytes | bytearray | memoryview,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    frame_bytes_max: cython.Py_ssize_t,
) -> tuple[list[tuple[int, int]], int]:
    """Start and end of the body of every complete message, and the position after the last complete message.

    Raises:
        FrameError: a length of 0 or above `frame_bytes_max`.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    found: list[tuple[int, int]] = []
    size: cython.Py_ssize_t
    check_range(len(buffer), start, end)
    if start == end:
        return found, start
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    while end - start >= 4:
        size = u32(p, start)
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
    """The first element of a message, 0 to 255.

    Raises:
        FrameError: the message is not an array whose first element is a number from 0 to 255.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    check_range(len(buffer), start, end)
    if start == end:
        raise FrameError("a message of 0 bytes")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    size: cython.Py_ssize_t = array_size(p, start, end, "its array")
    if size < 1:
        raise FrameError("a message is a msgpack array that begins with its type")
    value: cython.longlong = number(p, start + array_head(p[start]), end, "its type")
    if value < 0 or value > 255:
        raise FrameError("a message is a msgpack array that begins with its type")
    return value


def read_head(buffer: bytes | bytearray | memoryview, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> SendHead:
    """Sequence, level and topic of the SEND that fills the bytes from `start` to `end`.

    Raises:
        FrameError: not a SEND, or its level or topic is invalid. In the second case the error has the frame's `seq`.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    check_range(len(buffer), start, end)
    if message_type(buffer, start, end) != SEND:
        raise FrameError("not a SEND")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    at: cython.Py_ssize_t = start + array_head(p[start])
    if array_size(p, start, end, "its array") != 9:
        raise FrameError("SEND has 9 elements")
    at += number_bytes(p[at])
    seq: cython.longlong = number(p, at, end, "seq")
    if seq < 0:
        raise FrameError("seq is not a whole number from 0 to 2^63 - 1")
    at += number_bytes(p[at])
    level: cython.longlong = number(p, at, end, "level")
    if level < 0 or level > 2:
        raise FrameError("level is not 0, 1 or 2", code="bad_frame", fatal=False, seq=seq)
    at += number_bytes(p[at])
    size: cython.Py_ssize_t = text_size(p, at, end, "topic")
    if size == NO_SIZE:
        raise FrameError("topic is not text", code="bad_topic", fatal=False, seq=seq)
    at += text_head(p[at])
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
) -> ScatteredFrame:
    """Validate the columns of a SEND from `position` on, and write a slice for each partition with records.

    Raises:
        FrameError: `fatal` if the bytes violate the format of msgpack or SEND; else only this frame is invalid.
    """
    view: cython.const[cython.uchar][::1] = buffer
    p: cython.p_const_uchar
    items: cython.p_int
    counts: cython.p_int
    stamps: cython.p_longlong
    check_range(len(buffer), start, end)
    check_range(len(buffer), start, position)
    assert 0 <= sticky < partition_count, "the sticky partition is none of the topic's"
    if end - start > MESSAGE_BYTES_MAX or end > 0x7FFFFFFF:
        raise FrameError(f"a message of {end - start} bytes up to {end} is over the limits of the walker")
    if position >= end:
        raise cut_short("partitions")
    if cython.compiled:
        p = cython.address(view[0])
    else:
        p = memoryview(view)
    n: cython.Py_ssize_t = count_records(p, position, end)
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
    own: cython.bint = walk(
        p, position, end, n, items, stamps, now_ms, partition_count, header_count_max, reserved_headers
    )
    keyless: cython.Py_ssize_t = measure(p, n, items, counts, partition_count, sticky, ignore_keys, record_bytes_max)
    slices, record_bytes = cut(p, end, n, items, counts, stamps, own, partition_count)
    partitions = bytes(scratch[: 4 * n]) if want_partitions else None
    return ScatteredFrame(n, slices, partitions, keyless, record_bytes)
