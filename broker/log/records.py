"""Decodes the records inside a batch exactly, as a consumer would."""

from __future__ import annotations

from typing import NamedTuple


class VarintOverflowError(ValueError):
    """A varint has more bits than its field."""


class RecordDecodeError(ValueError):
    """Record number `index` of a batch does not decode."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"record {index}: {why}")
        self.index = index
        self.why = why


class RecordSummary(NamedTuple):
    """The facts about one record that the broker's checks need."""

    timestamp_delta: int
    """Milliseconds after the batch's base timestamp; may be negative."""

    has_key: bool


def decode_records(data: bytes, count: int) -> list[RecordSummary]:
    """Decode `count` records that fill `data` to its last byte, with offset deltas 0, 1, 2 …

    Raises:
        RecordDecodeError: the data has another form.
    """
    seen: list[RecordSummary] = []
    at = 0
    for index in range(count):
        try:
            length, at = varint(data, at)
            end = at + length
            if length < 0 or end > len(data):
                raise RecordDecodeError(index, "its length reaches beyond the batch")
            record, at = _record(data, at, end, index)
        except IndexError as error:
            raise RecordDecodeError(index, "it is cut") from error
        except VarintOverflowError as error:
            raise RecordDecodeError(index, str(error)) from error
        seen.append(record)
    if at != len(data):
        raise RecordDecodeError(count - 1, f"{len(data) - at} bytes follow the last record")
    return seen


def _record(data: bytes, at: int, end: int, index: int) -> tuple[RecordSummary, int]:
    if data[at] != 0:
        raise RecordDecodeError(index, "its attributes are not zero")
    timestamp_delta, at = varint(data, at + 1, 64)
    offset_delta, at = varint(data, at)
    if offset_delta != index:
        raise RecordDecodeError(index, f"its offset delta is {offset_delta}")
    key_length, at = varint(data, at)
    if key_length < -1:
        raise RecordDecodeError(index, "its key length is negative")
    at += max(key_length, 0)
    value_length, at = varint(data, at)
    if value_length < -1:
        raise RecordDecodeError(index, "its value length is negative")
    at += max(value_length, 0)
    headers, at = varint(data, at)
    if headers:
        at = _headers(data, at, headers, index)
    if at != end:
        raise RecordDecodeError(index, "its fields do not fill its length")
    return RecordSummary(timestamp_delta, key_length >= 0), at


def _headers(data: bytes, at: int, count: int, index: int) -> int:
    if not 0 < count <= len(data) - at:
        raise RecordDecodeError(index, "its header count is impossible")
    for _ in range(count):
        key_length, at = varint(data, at)
        if key_length < 0 or at + key_length > len(data):
            raise RecordDecodeError(index, "a header key's length is impossible")
        try:
            data[at : at + key_length].decode()
        except UnicodeDecodeError as error:
            raise RecordDecodeError(index, "a header key is not UTF-8") from error
        value_length, at = varint(data, at + key_length)
        if value_length < -1:
            raise RecordDecodeError(index, "a header value's length is negative")
        at += max(value_length, 0)
    return at


def varint(data: bytes, at: int, bits: int = 32) -> tuple[int, int]:
    """Decode a zig-zag varint at `at`; return it and the position after it.

    Raises:
        IndexError: the data ends inside it.
        VarintOverflowError: it has more than `bits` bits.
    """
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    raw = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise VarintOverflowError("a number is too long")
    if raw >> bits:
        raise VarintOverflowError("a number is too large")
    return (raw >> 1) ^ -(raw & 1), at
