"""The record id header: its bytes, and the kernel that writes it, compiled, uncompiled, and beside plain Python."""

import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from penstock.producer.kernel import records as kernel_records
from penstock.producer.records.batch_builder import HEADER_BYTES, BatchBuilder, Stamp, single_record_batch_size
from penstock.producer.records.compression import Levels, make_compressor
from penstock.wire import record_ids
from penstock.wire.errors import FrameError
from penstock.wire.record_ids import ADDED_BYTES_MAX, FIXED_BYTES, HEADER, IdRow, RecordId, incarnation_at

from tests.harness.batches import Rec, plain, record

from .kernel_cases import NAMES, RECORD_KERNELS, Columns, columns, compiled, outcome, read_rows, scatter_frame
from .test_kernel_records import Filled, fill

both = pytest.mark.parametrize("kernel", RECORD_KERNELS, ids=NAMES)
FIRST = RecordId(0xA1B2C3D4E5F6, 3, 77, 1_763_781_600_123)
LAST = RecordId((1 << 48) - 1, record_ids.ORIGIN_MAX, record_ids.ORDINAL_MAX, record_ids.ACCEPT_MS_MAX)
RECORD_ID = st.builds(
    RecordId,
    st.integers(1, (1 << 48) - 1),
    st.integers(0, record_ids.ORIGIN_MAX),
    st.integers(0, record_ids.ORDINAL_MAX - 1_000),
    st.integers(0, record_ids.ACCEPT_MS_MAX),
)


def with_id(kernel: Any, part: Any, first: RecordId, **changes: Any) -> Filled:
    return fill(kernel, part, id_header=first.header(), ordinal=first.ordinal, **changes)


def expected(part: Any, first: RecordId) -> list[bytes]:
    """The records of a slice with their ids, encoded by hand."""
    rows = read_rows(bytes(part.data), own=bool(part.flags))
    records: list[bytes] = []
    for place, row in enumerate(rows):
        header = (HEADER, first._replace(ordinal=first.ordinal + place).pack())
        stamp = part.base_ts if row.timestamp is None else row.timestamp
        records.append(record(Rec(row.value, row.key, [*row.headers, header], stamp), place, part.base_ts))
    return records


def keyless(part: Any) -> int:
    """Index of the first record without a key, -1: none."""
    rows = read_rows(bytes(part.data), own=bool(part.flags))
    return next((place for place, row in enumerate(rows) if row.key is None), -1)


def test_the_value_is_as_drawn() -> None:
    assert FIRST.pack().hex() == "01" + "a1b2c3d4e5f6" + "000003" + "0000000000004d" + "019aa993637b"
    assert FIRST.header() == b"\x10penstock\x2e" + FIRST.pack()
    assert LAST.pack() == b"\x01" + b"\xff" * 22
    assert FIRST.text == "a1b2c3d4e5f6-3-77"
    assert RecordId(7, 0, 0, 0).text == "000000000007-0-0"


@given(RECORD_ID)
def test_a_value_tells_the_id_that_it_was_made_of(name: RecordId) -> None:
    assert RecordId.unpack(name.pack()) == name
    assert len(name.pack()) == record_ids.BYTES
    assert len(name.header()) == FIXED_BYTES
    assert name.header()[record_ids.ORDINAL_AT : record_ids.ORDINAL_AT + 7] == name.ordinal.to_bytes(7, "big")


@pytest.mark.parametrize("value", [b"", b"\x01", FIRST.pack()[:-1], FIRST.pack() + b"\0", b"\x02" + FIRST.pack()[1:]])
def test_a_value_of_another_length_or_version_is_refused(value: bytes) -> None:
    with pytest.raises(FrameError, match="version 2" if value[:1] == b"\x02" else "23 bytes"):
        RecordId.unpack(value)


@pytest.mark.parametrize(("field", "number"), [(0, 1 << 48), (1, 1 << 24), (2, 1 << 56), (3, 1 << 48), (2, -1)])
def test_a_number_that_its_field_cannot_hold_is_no_value(field: int, number: int) -> None:
    with pytest.raises(OverflowError):
        RecordId(*(number if place == field else part for place, part in enumerate(FIRST))).pack()


def test_the_incarnation_of_an_ordinal_is_that_of_the_last_row_at_or_below_it() -> None:
    rows = [IdRow(5, 70), IdRow(9, 80)]
    assert [incarnation_at(rows, ordinal) for ordinal in (0, 4, 5, 8, 9, 1 << 50)] == [None, None, 70, 70, 80, 80]
    assert incarnation_at([], 5) is None


@settings(max_examples=300, deadline=None)
@given(columns(), RECORD_ID)
@example(Columns(0, None, [b"v"], None, None), LAST._replace(ordinal=LAST.ordinal - 1))
def test_every_record_of_a_slice_has_its_id_as_its_last_header(frame: Columns, first: RecordId) -> None:
    for part in scatter_frame(compiled, frame.packed()).slices:
        ours = with_id(RECORD_KERNELS[0], part, first)
        assert ours == with_id(RECORD_KERNELS[1], part, first)
        records = expected(part, first)
        assert ours.records == b"".join(records)
        assert ours.appended.largest == max(map(len, records))
        assert kernel_records.walk_records(ours.records, part.count).first_keyless == keyless(part)


@settings(max_examples=200, deadline=None)
@given(columns(records_max=10), RECORD_ID, st.integers(0, 600))
def test_what_fits_is_known_before_and_what_does_not_is_left(frame: Columns, first: RecordId, limit: int) -> None:
    (part, *_) = scatter_frame(compiled, frame.packed()).slices
    ours = with_id(RECORD_KERNELS[0], part, first, limit=limit)
    assert ours == with_id(RECORD_KERNELS[1], part, first, limit=limit)
    records = expected(part, first)
    fitting = 0
    while fitting < len(records) and sum(map(len, records[: fitting + 1])) <= limit:
        fitting += 1
    assert ours.appended.records == fitting
    assert ours.records == b"".join(records[:fitting])
    if fitting < len(records):
        options: dict[str, Any] = {
            "base_ts": ours.appended.base_ts if fitting else 0,
            "first_delta": fitting,
            "has_base": fitting > 0,
            "own_timestamps": bool(part.flags),
            "slice_ts": part.base_ts,
        }
        rows = bytes(part.data)
        for kernel in RECORD_KERNELS:
            size = kernel.row_record_bytes(rows, ours.appended.position, len(rows), with_id=True, **options)
            assert size == len(records[fitting])
            assert size - kernel.row_record_bytes(rows, ours.appended.position, len(rows), **options) <= ADDED_BYTES_MAX


@both
@pytest.mark.parametrize("count", [0, 1, 62, 63, 64, 127, 128, 8_190, 8_191, 8_192])
def test_the_number_of_headers_may_take_one_byte_more(kernel: Any, count: int) -> None:
    headers = [part for i in range(count) for part in (f"h{i}", b"x")]
    frame = Columns(0, [b"k"], [b"v" * 20], [headers], None)
    (part,) = scatter_frame(compiled, frame.packed(), header_count_max=10_000).slices
    (record,) = expected(part, FIRST)
    assert with_id(kernel, part, FIRST).records == record
    grown = len(record) - len(fill(kernel, part).records)
    for_number = count in (63, 8_191)
    # The record's own length may take one more, too.
    assert FIXED_BYTES + for_number <= grown <= FIXED_BYTES + for_number + 1 <= ADDED_BYTES_MAX


@both
@pytest.mark.parametrize("size", [*range(20, 60), *range(8_140, 8_190)])
def test_a_record_grows_by_two_bytes_more_at_most_wherever_its_length_does(kernel: Any, size: int) -> None:
    headers = [part for i in range(63) for part in ("", b"")] if size > 8_000 else None
    frame = Columns(0, None, [b"v" * size], [headers], None)
    (part,) = scatter_frame(compiled, frame.packed(), header_count_max=100).slices
    grown = len(with_id(kernel, part, FIRST).records) - len(fill(kernel, part).records)
    assert FIXED_BYTES <= grown <= ADDED_BYTES_MAX


@both
@pytest.mark.parametrize("header", [b"x", FIRST.header()[:-1], FIRST.header() + b"x"])
def test_a_header_of_another_length_is_refused(kernel: Any, header: bytes) -> None:
    (part,) = scatter_frame(compiled, Columns(0, None, [b"v"], None, None).packed()).slices
    with pytest.raises(FrameError, match="id header"):
        fill(kernel, part, id_header=header)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=90), st.booleans(), st.integers(0, 5), st.integers(0, 120))
def test_random_rows_with_ids_get_the_same_answer_from_both_kernels(
    rows: bytes, own: bool, count: int, limit: int
) -> None:
    results = []
    for kernel in RECORD_KERNELS:
        out = bytearray(140)
        result = outcome(
            kernel, "append_rows", rows, 0, len(rows), count, out, 3, 3 + limit,
            base_ts=5, first_delta=1, has_base=True, own_timestamps=own, slice_ts=9,
            id_header=FIRST.header(), ordinal=4,
        )  # fmt: skip
        assert out[:3] == bytes(3)
        assert out[3 + limit :] == bytes(137 - limit)
        results.append((result, bytes(out)))
    assert results[0] == results[1]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_rows_with_ids_are_refused_alike(data: st.DataObject) -> None:
    (part, *_) = scatter_frame(compiled, data.draw(columns(records_max=3)).packed()).slices
    rows = bytearray(part.data)
    for _ in range(data.draw(st.integers(1, 3))):
        rows[data.draw(st.integers(48, len(rows) - 1))] = data.draw(st.integers(0, 255))
    options = {"own_timestamps": bool(part.flags), "slice_ts": part.base_ts, "id_header": FIRST.header(), "ordinal": 1}
    answers = [
        outcome(
            kernel, "append_rows", bytes(rows), 48, len(rows), part.count, bytearray(1 << 18), 0, 1 << 18,
            base_ts=0, first_delta=0, has_base=False, **options,
        )
        for kernel in RECORD_KERNELS
    ]  # fmt: skip
    assert answers[0] == answers[1]


@both
def test_a_body_that_ends_before_its_number_of_headers_is_refused(kernel: Any) -> None:
    for body in (b"", b"\x01", b"\x01\x01", b"\x01\x01\x80", b"\x01\x01\x01", b"\x09\x01\x00"):
        rows = bytes(48) + struct.pack("<I", len(body)) + body
        with pytest.raises(FrameError, match="record 0"):
            kernel.append_rows(
                rows, 48, len(rows), 1, bytearray(99), 0, 99,
                base_ts=0, first_delta=0, has_base=False, own_timestamps=False, slice_ts=0,
                id_header=FIRST.header(),
            )  # fmt: skip


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_numbers_the_records_of_several_slices_on_from_its_first() -> None:
    sizes = (3, 1, 4)
    parts = [
        scatter_frame(compiled, Columns(0, None, [b"%d" % i] * count, None, 5).packed()).slices[0]
        for i, count in enumerate(sizes)
    ]
    builder = BatchBuilder(bytearray(4_096), 10, limit=4_096)
    accept = [100, 200, 300]
    for part, accept_ms in zip(parts, accept, strict=True):
        header = FIRST._replace(accept_ms=accept_ms, ordinal=0).header()
        took = builder.append(
            bytes(part.data), 48, len(part.data), part.count, own_timestamps=False, slice_ts=5, id_header=header
        )
        assert took.records == part.count
    data = builder.close(Stamp(1, 0, 10), make_compressor("none", Levels()))
    ids = [
        FIRST._replace(accept_ms=accept_ms, ordinal=0).pack()
        for count, accept_ms in zip(sizes, accept, strict=True)
        for _ in range(count)
    ]
    values = [b"%d" % i for i, count in enumerate(sizes) for _ in range(count)]
    wanted = [
        Rec(value, None, [(HEADER, packed[:10] + (10 + place).to_bytes(7, "big") + packed[17:])], 5)
        for place, (value, packed) in enumerate(zip(values, ids, strict=True))
    ]
    assert bytes(data[HEADER_BYTES:]) == plain(wanted)


@settings(max_examples=200, deadline=None)
@given(columns(records_max=12), st.floats(0.1, 1.0), st.integers(200, 3_000))
def test_a_batch_stays_within_its_limit_with_ids_by_any_estimate(frame: Columns, growth: float, limit: int) -> None:
    (part, *_) = scatter_frame(compiled, frame.packed()).slices
    rows, own = bytes(part.data), bool(part.flags)
    alone = single_record_batch_size(rows, 48, len(rows), own_timestamps=own, slice_ts=part.base_ts, with_id=True)
    assert alone == HEADER_BYTES + len(expected(part, FIRST)[0])
    builder = BatchBuilder(bytearray(200_000), FIRST.ordinal, limit=limit, growth=growth)
    took = builder.append(
        rows, 48, len(rows), part.count, own_timestamps=own, slice_ts=part.base_ts, id_header=FIRST.header()
    )
    records = expected(part, FIRST)[: took.records]
    assert took.records >= 1
    assert builder.record_bytes == sum(map(len, records))
    assert took.records == 1 or builder.size <= limit
