# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Checks and normalizes the arguments and columns that callers pass to the direct producer.

Part of the kernel (see `kernel.frames`): Cython in pure Python mode.
"""

import cython


def check_numbers(partition, timestamp_ms):
    """Check a partition and a timestamp; None is valid.

    Raises:
        TypeError: one is not an int.
        ValueError: one is negative, or above Kafka's range.
    """
    for number, what, limit in ((partition, "partition", 1 << 31), (timestamp_ms, "timestamp_ms", 1 << 63)):
        if number is None:
            continue
        if type(number) is not int:
            raise TypeError(f"{what} is {type(number).__name__}, not int")
        if not 0 <= number < limit:
            raise ValueError(f"{what} {number} is not between 0 and {limit - 1}")


def frozen(given, what: str) -> bytes:
    """A bytes-like object as immutable bytes.

    Raises:
        TypeError: it is not bytes-like.
    """
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what} is {type(given).__name__}, not bytes")
    return bytes(given)


def column(given, what: str, count=None) -> list:
    """A column as a list.

    Raises:
        TypeError: it is text or bytes, or not iterable.
        ValueError: it does not have `count` items.
    """
    if isinstance(given, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"a column is a list, not {type(given).__name__}")
    items = given if type(given) is list else list(given)
    if count is not None and len(items) != count:
        raise ValueError(f"{what} has {len(items)} items for {count} values")
    return items


def byte_column(items: list, what: str) -> list:
    """The items, each bytes or None. Raises the TypeError of `frozen`."""
    i: cython.Py_ssize_t
    for i in range(len(items)):
        if items[i] is not None and type(items[i]) is not bytes:
            return [None if one is None else frozen(one, what) for one in items]
    return items


def number_column(given, count: cython.Py_ssize_t, which: cython.Py_ssize_t) -> list:
    """A column of partitions (`which` 0) or timestamps (1), from one number for all records or one item for each; None
    is no number. Raises the errors of `column` and `check_numbers`."""
    if isinstance(given, int):
        given = [given] * count
    items = column(given, "timestamps" if which else "partitions", count)
    for one in items:
        check_numbers(None if which else one, one if which else None)
    return items


def header_bytes(headers) -> bytes:
    """Encode headers in the format of a record: their count, then each name and value after its size.

    Raises:
        TypeError: a name is not a str, or a value is neither bytes-like nor None.
    """
    parts: list = []
    count: cython.Py_ssize_t = 0
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"the header name {name!r} is {type(name).__name__}, not str")
        encoded = name.encode()
        if value is not None:
            value = frozen(value, f"the value of header {name!r}")
        parts += (_size(len(encoded)), encoded, _size(-1 if value is None else len(value)), value or b"")
        count += 1
    return b"".join([_size(count), *parts])


@cython.cfunc
def _size(size: cython.Py_ssize_t):
    value: cython.ulonglong = 2 * size if size >= 0 else 1
    varint: bytearray = bytearray()
    while value >= 0x80:
        varint.append((value & 0x7F) | 0x80)
        value >>= 7
    varint.append(value)
    return bytes(varint)
