# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads msgpack in place: returns the size of the value at a position, and checks that it ends inside the message.

Part of the kernel (see `kernel.frames`). The functions return a size, or a negative constant if there is none; only a
truncated value raises. `producer/kernel/msgpack.pxd` declares the C types for the kernel's other modules, so that calls
between them cost next to nothing.
"""

import cython

from ...wire.errors import FrameError

if not cython.compiled:
    NIL = -1
    NO_SIZE = -3
    OUT_OF_RANGE = -1
    NO_NUMBER = -3


@cython.cfunc
def cut_short(what: str):
    return FrameError(f"the message ends inside {what}")


@cython.cfunc
def refuse(record: cython.Py_ssize_t, text: str, code: str):
    return FrameError(f"record {record}: {text}", code=code, fatal=False)


@cython.cfunc
def unexpected(p: cython.p_const_uchar, at: cython.Py_ssize_t, text: str):
    """The error for a well-formed value of the wrong type; the byte 0xc1 is never well-formed."""
    if p[at] == 0xC1:
        return FrameError("the byte 0xc1 is not msgpack")
    return FrameError(text, code="bad_frame", fatal=False)


@cython.cfunc
def check_range(length: cython.Py_ssize_t, start: cython.Py_ssize_t, end: cython.Py_ssize_t):
    if start < 0 or end < start or length < end:
        raise FrameError(f"bytes {start} to {end} do not lie in a buffer of {length}")


@cython.cfunc
@cython.exceptval(check=False)
def u16(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return (p[at] << 8) | p[at + 1]


@cython.cfunc
@cython.exceptval(check=False)
def u32(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    high: cython.Py_ssize_t = (p[at] << 8) | p[at + 1]
    return (high << 16) | (p[at + 2] << 8) | p[at + 3]


@cython.cfunc
@cython.exceptval(-2)
def array_size(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.Py_ssize_t:
    """Number of items of the array at `at`; NIL for nil, NO_SIZE for any other type."""
    if at >= end:
        raise cut_short(what)
    tag: cython.uint = p[at]
    size: cython.Py_ssize_t = NO_SIZE
    if tag & 0xF0 == 0x90:
        size = tag & 0x0F
    elif tag == 0xC0:
        return NIL
    elif tag == 0xDC or tag == 0xDD:
        if end - at < (3 if tag == 0xDC else 5):
            raise cut_short(what)
        size = u16(p, at + 1) if tag == 0xDC else u32(p, at + 1)
    # An item is at least one byte. Reject a larger count before memory is allocated for it.
    if size > end - at:
        raise cut_short(what)
    return size


@cython.cfunc
@cython.exceptval(check=False)
def array_head(tag: cython.uint) -> cython.Py_ssize_t:
    return 3 if tag == 0xDC else 5 if tag == 0xDD else 1


@cython.cfunc
@cython.exceptval(-2)
def bytes_size(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.Py_ssize_t:
    """Size of the byte string at `at`, which ends before `end`; NIL for nil, NO_SIZE for any other type."""
    if at >= end:
        raise cut_short(what)
    tag: cython.uint = p[at]
    if tag == 0xC0:
        return NIL
    if tag < 0xC4 or tag > 0xC6:
        return NO_SIZE
    head: cython.Py_ssize_t = bytes_head(tag)
    if end - at < head:
        raise cut_short(what)
    size: cython.Py_ssize_t = p[at + 1]
    if tag == 0xC5:
        size = u16(p, at + 1)
    elif tag == 0xC6:
        size = u32(p, at + 1)
    if size > end - at - head:
        raise cut_short(what)
    return size


@cython.cfunc
@cython.exceptval(check=False)
def bytes_head(tag: cython.uint) -> cython.Py_ssize_t:
    return 2 if tag == 0xC4 else 3 if tag == 0xC5 else 5 if tag == 0xC6 else 1


@cython.cfunc
@cython.exceptval(-2)
def text_size(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.Py_ssize_t:
    """Size of the text at `at`, which ends before `end`; NO_SIZE for any other type."""
    if at >= end:
        raise cut_short(what)
    tag: cython.uint = p[at]
    head: cython.Py_ssize_t = text_head(tag)
    if tag & 0xE0 != 0xA0 and (tag < 0xD9 or tag > 0xDB):
        return NO_SIZE
    if end - at < head:
        raise cut_short(what)
    size: cython.Py_ssize_t = tag & 0x1F
    if tag == 0xD9:
        size = p[at + 1]
    elif tag == 0xDA:
        size = u16(p, at + 1)
    elif tag == 0xDB:
        size = u32(p, at + 1)
    if size > end - at - head:
        raise cut_short(what)
    return size


@cython.cfunc
@cython.exceptval(check=False)
def text_head(tag: cython.uint) -> cython.Py_ssize_t:
    return 2 if tag == 0xD9 else 3 if tag == 0xDA else 5 if tag == 0xDB else 1


@cython.cfunc
@cython.exceptval(-2)
def number(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what: str) -> cython.longlong:
    """The integer at `at`; OUT_OF_RANGE below 0 or above 2^63 - 1; NO_NUMBER for any other type."""
    if at >= end:
        raise cut_short(what)
    tag: cython.uint = p[at]
    if tag < 0x80:
        return tag
    if tag >= 0xE0:
        return OUT_OF_RANGE
    if tag < 0xCC or tag > 0xD3:
        return NO_NUMBER
    size: cython.Py_ssize_t = number_bytes(tag) - 1
    if end - at <= size:
        raise cut_short(what)
    # A set top bit means negative in the signed forms, and more than 2^63 - 1 in the widest unsigned form.
    if tag >= 0xCF and p[at + 1] >= 0x80:
        return OUT_OF_RANGE
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    for i in range(size):
        value = (value << 8) | p[at + 1 + i]
    return value


@cython.cfunc
@cython.exceptval(check=False)
def number_bytes(tag: cython.uint) -> cython.Py_ssize_t:
    if tag < 0xCC or tag > 0xD3:
        return 1
    return 1 + (1 << (tag & 3))
