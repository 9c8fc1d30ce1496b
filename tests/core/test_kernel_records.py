"""The kernel over batches, compiled and uncompiled."""

import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.wire.errors import FrameError

from .kernel_cases import (
    NAMES,
    RECORD_KERNELS,
    Columns,
    Row,
    columns,
    compiled,
    compiled_records,
    outcome,
    plain_records,
    read_body,
    read_rows,
    scatter_frame,
)

both = pytest.mark.parametrize("kernel", RECORD_KERNELS, ids=NAMES)


class Filled(NamedTuple):
    records: bytes
    appended: Any


def fill(kernel: Any, part: Any, *, limit: int = 1 << 20, **changes: Any) -> Filled:
    """Encode a slice's rows into a fresh batch."""
    out = bytearray(min(limit, 1 << 20) + 10)
    options = {
        "base_ts": 0,
        "first_delta": 0,
        "has_base": False,
        "own_timestamps": bool(part.flags),
        "slice_ts": part.base_ts,
        **changes,
    }
    done = kernel.append_rows(bytes(part.data), 48, len(part.data), part.count, out, 0, limit, **options)
    return Filled(bytes(out[: done.out_position]), done)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


def read_records(data: bytes, base_ts: int) -> list[tuple[int, Row]]:
    """Offset delta and content of each record, by Kafka's layout."""
    records: list[tuple[int, Row]] = []
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        stop = at + size
        assert data[at] == 0
        delta, at = _varint(data, at + 1)
        offset, at = _varint(data, at)
        records.append((offset, Row(base_ts + delta, *read_body(data[at:stop]))))
        at = stop
    return records


@settings(max_examples=200, deadline=None)
@given(columns(), st.integers(0, 200))
def test_records_are_the_rows_with_offset_deltas_counted_on(frame: Columns, first: int) -> None:
    for part in scatter_frame(compiled, frame.packed()).slices:
        ours = fill(compiled_records, part, first_delta=first)
        assert ours == fill(plain_records, part, first_delta=first)
        done = ours.appended
        assert (done.records, done.position, done.max_ts) == (part.count, len(part.data), part.max_ts)
        assert done.base_ts == part.base_ts
        records = read_records(ours.records, done.base_ts)
        assert [offset for offset, _ in records] == list(range(first, first + part.count))
        rows = read_rows(bytes(part.data), own=bool(part.flags))
        assert [row for _, row in records] == [
            row if part.flags else row._replace(timestamp=part.base_ts) for row in rows
        ]
        if first == 0:
            walked = compiled_records.walk_records(ours.records, part.count)
            assert walked == plain_records.walk_records(ours.records, part.count)
            keyless = [i for i, row in enumerate(rows) if row.key is None]
            assert walked.first_keyless == (keyless[0] if keyless else -1)
            assert walked.max_ts_delta == part.max_ts - part.base_ts


@settings(max_examples=200, deadline=None)
@given(columns(records_max=10), st.integers(0, 400))
def test_a_batch_takes_what_fits_and_the_next_one_the_rest(frame: Columns, limit: int) -> None:
    (part, *_) = scatter_frame(compiled, frame.packed()).slices
    ours = fill(compiled_records, part, limit=limit)
    assert ours == fill(plain_records, part, limit=limit)
    assert len(ours.records) <= limit
    done = ours.appended
    if done.records < part.count:
        options: dict[str, Any] = {
            "base_ts": done.base_ts,
            "first_delta": done.records,
            "has_base": done.records > 0,
            "own_timestamps": bool(part.flags),
            "slice_ts": part.base_ts,
        }
        for kernel in RECORD_KERNELS:
            rest = bytes(part.data)
            size = kernel.row_record_bytes(rest, done.position, len(rest), **options)
            assert limit - len(ours.records) < size
            out = bytearray(size)
            one = kernel.append_rows(rest, done.position, len(rest), 1, out, 0, size, **options)
            assert (one.records, one.out_position) == (1, size)


@both
def test_a_timestamp_before_the_base_gets_a_negative_delta(kernel: Any) -> None:
    (part,) = scatter_frame(compiled, Columns(0, None, [b"a", b"b"], None, [1 << 62, 5]).packed()).slices
    done = fill(kernel, part)
    assert [row.timestamp for _, row in read_records(done.records, 1 << 62)] == [1 << 62, 5]
    assert kernel.walk_records(done.records, 2).max_ts_delta == 0


@both
def test_rows_that_end_early_are_refused_at_every_length(kernel: Any) -> None:
    (part,) = scatter_frame(compiled, Columns(0, [b"k"], [b"value"], None, [7]).packed()).slices
    rows = bytes(part.data)
    for end in range(48, len(rows)):
        with pytest.raises(FrameError):
            kernel.append_rows(
                rows, 48, end, 1, bytearray(99), 0, 99,
                base_ts=0, first_delta=0, has_base=False, own_timestamps=True, slice_ts=0,
            )  # fmt: skip
        with pytest.raises(FrameError):
            kernel.row_record_bytes(
                rows, 48, end, base_ts=0, first_delta=0, has_base=False, own_timestamps=True, slice_ts=0
            )


@both
@pytest.mark.parametrize(
    ("place", "wrong"),
    [((48, 60, 0, 99), "row"), ((48, 200, 0, 99), "lie"), ((48, 49, 0, 100), "lie"), ((-1, 3, 0, 9), "lie")],
)
def test_nothing_outside_the_buffers_is_touched(kernel: Any, place: tuple[int, int, int, int], wrong: str) -> None:
    position, end, out_position, out_limit = place
    rows = bytes(48) + struct.pack("<I", 10_000) + bytes(20)
    with pytest.raises(FrameError, match=wrong):
        kernel.append_rows(
            rows, position, end, 1, bytearray(99), out_position, out_limit,
            base_ts=0, first_delta=0, has_base=False, own_timestamps=False, slice_ts=0,
        )  # fmt: skip


@both
def test_a_negative_timestamp_in_a_row_is_refused(kernel: Any) -> None:
    rows = bytes(48) + struct.pack("<qI", -1, 3) + b"\x01\x01\x00"
    with pytest.raises(FrameError, match="negative"):
        kernel.append_rows(
            rows, 48, len(rows), 1, bytearray(99), 0, 99,
            base_ts=0, first_delta=0, has_base=False, own_timestamps=True, slice_ts=0,
        )  # fmt: skip


@both
@pytest.mark.parametrize(
    ("data", "count", "text"),
    [
        (b"", 0, "at least one"),
        (b"", 1, "at least one"),
        (b"\xff\xff\xff\xff\xff\x01", 1, "record 0: its size"),
        (b"\x00", 1, "record 0: 0 bytes"),
        (b"\x01", 1, "record 0: -1 bytes"),
        (b"\x20\x00", 1, "record 0: 16 bytes"),
        (b"\x0c\x01\x00\x00\x01\x01\x00", 1, "attributes"),
        (b"\x0c\x00\x00\x02\x01\x01\x00", 1, "offset delta"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", 1, "field of -2"),
        (b"\x0c\x00\x00\x00\x01\x40\x00", 1, "field of 32"),
        (b"\x0c\x00\x00\x00\x01\x01\x08", 1, "4 headers"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1, "bytes follow its last header"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", 1, "1 bytes follow the last record"),
        (b"\x0c\x00\x00\x00\x01\x01\x00", 2, "record 1: its size"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, "field of -1"),
    ],
)
def test_the_walk_refuses_what_is_not_exactly_the_records(kernel: Any, data: bytes, count: int, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        kernel.walk_records(data, count)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_records_get_the_same_answer_from_both_kernels(data: st.DataObject) -> None:
    (part, *_) = scatter_frame(compiled, data.draw(columns(records_max=4)).packed()).slices
    records = bytearray(fill(compiled_records, part).records)
    for _ in range(data.draw(st.integers(0, 3))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(0, len(records)))
    ours, theirs = (outcome(kernel, "walk_records", bytes(records[:length]), part.count) for kernel in RECORD_KERNELS)
    assert ours == theirs


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.booleans(), st.integers(0, 5), st.integers(0, 80))
def test_random_rows_get_the_same_answer_from_both_kernels(rows: bytes, own: bool, count: int, limit: int) -> None:
    results = []
    for kernel in RECORD_KERNELS:
        out = bytearray(100)
        result = outcome(
            kernel, "append_rows", rows, 0, len(rows), count, out, 3, 3 + limit,
            base_ts=5, first_delta=1, has_base=True, own_timestamps=own, slice_ts=9,
        )  # fmt: skip
        assert out[:3] == bytes(3)
        assert out[3 + limit :] == bytes(97 - limit)
        results.append((result, bytes(out)))
    assert results[0] == results[1]
