"""Rows of record batches: what is written, how its size is foretold, and when a batch has room."""

import struct
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords
from penstock.broker.log.batches import BatchHeader, Verify, read_header, validate_batch
from penstock.broker.log.error_codes import AppendRejection
from penstock.broker.log.topics import TopicRules
from penstock.producer.kernel import frames
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.records.batch_builder import (
    HEADER_BYTES,
    NO_STAMP,
    BatchBuilder,
    Stamp,
    bytes_max,
    crc32c,
    growth_of,
    seal_header,
    single_record_batch_size,
)
from penstock.producer.records.compression import Codec, CompressionRatio, Levels, make_compressor
from penstock.producer.records.sequences import sequence_after
from penstock.wire.messages import BatchBounds

from tests.conformance.rig import Rig
from tests.core.kernel_cases import Columns, scatter_frame
from tests.core.test_batch import read
from tests.fakes.segments import NOW_MS, Row

CODECS: list[Codec] = ["none", "gzip", "snappy", "lz4", "zstd"]
STAMP = Stamp(23423, 145, 983)
INT_MAX = (1 << 31) - 1
ROWS_AT = 48
"""Where rows begin in a slice."""

Headers = list[str | bytes | None]


def compressor(codec: Codec = "none") -> Any:
    return make_compressor(codec, Levels())


def append(
    builder: BatchBuilder,
    *records: tuple[bytes | None, bytes | None],
    stamps: list[int] | None = None,
    headers: list[Headers] | None = None,
) -> int:
    """Keys and values; how many of them the batch took."""
    columns = Columns(0, [key for key, _ in records], [value for _, value in records], headers, stamps)
    (part,) = scatter_frame(frames, columns.packed()).slices
    took = builder.append(
        part.data, ROWS_AT, len(part.data), part.count, own_timestamps=bool(part.flags), slice_ts=part.base_ts
    )
    return took.records


def builder_of(limit: int, *, codec: Codec = "none", ratio: float = 1.0, room: int = 1 << 16) -> BatchBuilder:
    return BatchBuilder(bytearray(room), 0, limit=limit, growth=growth_of(compressor(codec), ratio))


def small(count: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"%d" % n, b"%d" % (n * n)) for n in range(count)]


# --- header and records ----------------------------------------------------------------------------------------------


@pytest.mark.row("C1", "C7")
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("codec", range(5))
def test_every_field_of_the_header_reads_back_and_a_broker_may_set_offset_and_epoch(
    codec: int, transactional: bool
) -> None:
    batch = bytearray(HEADER_BYTES)
    flags = codec | (0x10 if transactional else 0)
    seal_header(batch, attributes=flags, base_ts=7, max_ts=9, stamp=STAMP, count=23)
    crc = DefaultRecordBatch(bytes(batch)).crc
    struct.pack_into(">q", batch, 0, 15)
    struct.pack_into(">i", batch, 12, 15)
    seen = DefaultRecordBatch(bytes(batch))
    assert seen.validate_crc(), "neither offset nor leader epoch is under the checksum (BAT-5)"
    assert seen.crc == crc
    assert (seen.base_offset, seen.base_offset + seen.last_offset_delta, seen.leader_epoch) == (15, 37, 15)
    assert (seen.compression_type, seen.is_transactional, seen.is_control_batch) == (codec, transactional, False)
    assert (seen.timestamp_type, seen.first_timestamp, seen.max_timestamp) == (0, 7, 9)
    assert (seen.producer_id, seen.producer_epoch, seen.base_sequence) == (23423, 145, 983)
    assert read_header(bytes(batch)).last_sequence == 983 + 22
    struct.pack_into(">q", batch, 0, 500 - 22)
    struct.pack_into(">i", batch, 12, 500)
    assert DefaultRecordBatch(bytes(batch)).validate_crc()
    struct.pack_into(">h", batch, 21, flags ^ 1)
    assert not DefaultRecordBatch(bytes(batch)).validate_crc()


@pytest.mark.row("C2")
def test_a_batch_without_a_stamp_has_no_producer_fields() -> None:
    builder = builder_of(1024)
    assert append(builder, (b"key", b"value"), (b"key", b"value"), stamps=[1, 2]) == 2
    batch = bytearray(builder.close(NO_STAMP, compressor()))
    struct.pack_into(">q", batch, 0, 1234567)
    (seen,) = [MemoryRecords(bytes(batch)).next_batch()]
    assert isinstance(seen, DefaultRecordBatch)
    assert seen.validate_crc()
    assert [record.offset for record in seen] == [1234567, 1234568]
    assert seen.max_timestamp == 2
    assert (seen.producer_id, seen.producer_epoch, seen.base_sequence) == (-1, -1, -1)


@pytest.mark.row("C3")
def test_the_last_sequence_of_a_batch_follows_from_its_first() -> None:
    builder = builder_of(1024)
    assert append(builder, *small(2)) == 2
    head = read_header(bytes(builder.close(STAMP, compressor())))
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (23423, 145, 983)
    assert head.last_sequence == sequence_after(983, 2 - 1) == 984


@pytest.mark.row("C4")
def test_sequences_go_round_inside_a_batch() -> None:
    rig = Rig(next_sequence=INT_MAX - 1)
    rig.append(0, count=3)
    ((_, batch),) = rig.drain()[1]
    head = read_header(bytes(batch.data or b""))
    assert (head.base_sequence, head.record_count, head.last_sequence) == (INT_MAX - 1, 3, 0)
    assert [sequence_after(batch.sequence, n) for n in range(3)] == [INT_MAX - 1, INT_MAX, 0]
    rig.answer()
    rig.append(0)
    ((_, following),) = rig.drain()[1]
    assert following.sequence == 1
    rig.answer()
    assert [(item.first, item.count) for item in rig.told] == [(1, 3), (4, 1)]


@pytest.mark.row("C5")
def test_the_size_of_records_is_foretold() -> None:
    keys = [b"key", None, b"key", b"key"]
    values = [b"value", b"value", None, b"value"]
    headers: list[Headers] = [[], [], [], ["foo", b"value", "bar", None]]
    stamps = [NOW_MS, NOW_MS + 30_000, NOW_MS + 60_000, NOW_MS + 60_000]
    (part,) = scatter_frame(frames, Columns(0, keys, values, headers, stamps).packed()).slices
    foretold = single_record_batch_size(part.data, ROWS_AT, len(part.data), own_timestamps=True, slice_ts=0)
    builder = builder_of(1 << 20)
    position = ROWS_AT
    for place in range(part.count):
        if place:
            foretold += frames.row_record_bytes(
                part.data, position, len(part.data), base_ts=NOW_MS, first_delta=place, has_base=True,
                own_timestamps=True, slice_ts=0,
            )  # fmt: skip
        position = builder.append(part.data, position, len(part.data), 1, own_timestamps=True, slice_ts=0).position
        assert builder.size == foretold
    assert len(builder.close(STAMP, compressor())) == foretold


@pytest.mark.row("C5")
def test_the_upper_bound_of_a_batch_of_one_record_is_kafkas() -> None:
    assert bytes_max(len(b"\x06key\x0avalue\x00")) == 93
    assert bytes_max(1 + 2 + 1000 + 1) == 1086


@pytest.mark.row("C6")
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(
    ("at", "layout", "value"), [(8, ">i", 10), (17, ">I", 1), (23, ">i", 23), (57, ">i", 5), (57, ">i", 2)]
)
def test_a_damaged_batch_is_seen_by_the_fake_broker(codec: Codec, at: int, layout: str, value: int) -> None:
    builder = builder_of(4096, codec=codec)
    assert append(builder, *small(3)) == 3
    batch = bytearray(builder.close(STAMP, compressor(codec)))
    rules = TopicRules()
    assert isinstance(validate_batch(bytes(batch), rules, verify=Verify.RECORDS, wall_ms=NOW_MS), BatchHeader)
    struct.pack_into(layout, batch, at, value)
    if at not in (8, 17):
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    assert isinstance(validate_batch(bytes(batch), rules, verify=Verify.RECORDS, wall_ms=NOW_MS), AppendRejection)


@pytest.mark.row("C9", "G11")
def test_sequences_are_counted_in_31_bits() -> None:
    assert sequence_after(5, 5) == 10
    assert sequence_after(INT_MAX, 1) == 0
    assert sequence_after(INT_MAX - 5, 10) == 4
    assert sequence_after(5, -5) == 0
    assert sequence_after(0, -1) == INT_MAX
    assert sequence_after(sequence_after(sequence_after(0, INT_MAX), 100), INT_MAX) == 98


# --- building --------------------------------------------------------------------------------------------------------


@pytest.mark.row("C10")
@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_batch_is_no_bytes_and_leaves_its_buffer_alone(codec: Codec) -> None:
    data = bytearray(b"\x55" * 512)
    builder = BatchBuilder(data, 15, limit=512)
    assert bytes(builder.close(NO_STAMP, compressor(codec))) == b""
    assert data == b"\x55" * 512
    assert builder.size == 0


@pytest.mark.row("C11")
@pytest.mark.parametrize("stamp", [Stamp(-1, 15, 2342), Stamp(9809, -1, 2342), Stamp(9809, 15, -1)])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_stamp_with_a_part_missing_is_refused_when_the_batch_is_closed(stamp: Stamp, transactional: bool) -> None:
    builder = builder_of(1024)
    assert append(builder, *small(1)) == 1
    with pytest.raises(ValueError, match=r"9809|-1"):
        _ = builder.close(stamp, compressor(), transactional=transactional)


@pytest.mark.row("C11")
def test_a_transaction_without_any_stamp_is_refused() -> None:
    builder = builder_of(1024)
    assert append(builder, *small(1)) == 1
    with pytest.raises(ValueError, match="-1"):
        _ = builder.close(NO_STAMP, compressor(), transactional=True)


@pytest.mark.row("C12")
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_a_transaction_says_so(codec: Codec) -> None:
    builder = builder_of(1024, codec=codec)
    assert append(builder, *small(3)) == 3
    head, records = read(builder.close(Stamp(9809, 15, 2342), compressor(codec), transactional=True))
    assert head.is_transactional
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (9809, 15, 2342)
    assert len(records) == 3


@pytest.mark.row("C13")
@pytest.mark.parametrize("codec", CODECS)
def test_the_estimate_grows_with_every_record_and_gives_way_to_the_size(codec: Codec) -> None:
    builder = builder_of(1 << 16, codec=codec)
    seen = [builder.size]
    for record in small(10):
        assert append(builder, record) == 1
        seen.append(builder.size)
    assert seen == sorted(set(seen)), "it grows strictly"
    if codec != "none":
        assert seen[-1] == HEADER_BYTES + int(builder.record_bytes * 1.05)
    batch = builder.close(STAMP, compressor(codec))
    assert builder.size == len(batch)
    if codec == "none":
        assert seen[-1] == len(batch)


@pytest.mark.row("C14")
def test_one_record_fits_even_under_a_limit_of_nothing() -> None:
    builder = builder_of(0)
    assert not builder.is_full
    assert append(builder, *small(2)) == 1
    assert builder.is_full
    assert builder.remaining_bytes == 0
    assert append(builder, *small(1)) == 0
    assert len(read(builder.close(STAMP, compressor()))[1]) == 1


@pytest.mark.row("C15")
@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_compression_promises_ends_at_the_limit(codec: Codec) -> None:
    records: list[tuple[bytes | None, bytes | None]] = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    builder = builder_of(64 + 11, codec=codec, ratio=0.5)
    assert append(builder, *records) == 2, (
        "61 + trunc(9 * 0.525) + 9 fits below 75, 61 + trunc(18 * 0.525) + 9 does not"
    )
    assert builder.size == HEADER_BYTES + 9
    assert not builder.is_full


@pytest.mark.row("C15")
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_cut_of_an_earlier_holder_is_made_again_past_the_limit(codec: Codec) -> None:
    rig = Rig(batch_bytes=3, codec=codec, leaders={1: 1})
    _ = rig.grant(0, cuts=[BatchBounds(0, 3, 0)])
    rig.append(0, count=3)
    ((_, batch),) = rig.drain()[1]
    assert batch.count == 3
    _, records = read(memoryview(bytes(batch.data or b"")))
    assert [row[3] for row in records] == [b"value"] * 3


@pytest.mark.row("C16")
def test_records_whose_ordinals_do_not_rise_are_an_error_of_ours() -> None:
    rig = Rig()
    ref = rig.slice_of(0, [Row(b"value")])
    rig.hand(ref)
    with pytest.raises(AssertionError, match="slice at 1 follows 2"):
        rig.hand(ref)


@pytest.mark.row("C17")
def test_every_record_keeps_its_timestamp_and_the_batch_has_the_largest() -> None:
    builder = builder_of(1024)
    assert append(builder, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), stamps=[0, 2, 1]) == 3
    head, records = read(builder.close(STAMP, compressor()))
    assert (head.first_timestamp, head.max_timestamp) == (0, 2)
    assert [row[1] for row in records] == [0, 2, 1]


@pytest.mark.row("C18")
def test_nothing_becomes_of_an_aborted_batch() -> None:
    builder = builder_of(1024)
    assert append(builder, *small(3)) == 3
    builder.abort()
    assert (builder.count, builder.record_bytes, builder.size) == (0, 0, 0)
    with pytest.raises(AssertionError, match="takes no records"):
        _ = append(builder, *small(1))
    with pytest.raises(AssertionError, match="closed once"):
        _ = builder.close(STAMP, compressor())
    with pytest.raises(AssertionError, match="empty"):
        _ = builder.restamp(STAMP)


@pytest.mark.row("C18")
def test_a_closed_batch_takes_no_records() -> None:
    builder = builder_of(1024)
    assert append(builder, *small(1)) == 1
    _ = builder.close(STAMP, compressor())
    assert builder.remaining_bytes == 0
    with pytest.raises(AssertionError, match="takes no records"):
        _ = append(builder, *small(1))


# --- estimates -------------------------------------------------------------------------------------------------------


@pytest.mark.row("C20")
@pytest.mark.parametrize(
    ("estimate", "observed", "then"), [(0.8, 0.84, 0.85), (0.6, 0.7, 0.7), (0.6, 0.4, 0.595), (0.004, 0.001, 0.001)]
)
def test_the_ratio_gets_worse_fast_and_better_slowly(estimate: float, observed: float, then: float) -> None:
    ratio = CompressionRatio()
    ratio.value = estimate
    ratio.observe(observed)
    assert ratio.value == pytest.approx(then)
    assert ratio.value >= observed


@pytest.mark.row("C20")
def test_partitions_of_a_topic_share_their_estimate() -> None:
    rig = Rig(codec="zstd", batch_bytes=4096)
    for partition in range(2):
        rig.append(partition, value=b"x" * 1000)
    rig.fill()
    before = rig.table.partitions[1].queue.estimated_bytes()
    assert {partition for partition, _ in rig.drain(max_bytes=1)[1]} == {0}
    assert rig.ratio.value == 1.0 - 0.005
    assert rig.table.partitions[1].queue.estimated_bytes() < before


@pytest.mark.row("C21")
def test_waits_double_up_to_their_cap_and_chance_spreads_them_by_a_fifth() -> None:
    backoff = Backoff(0.100, 2.000)
    for attempts in range(11):
        middle = 0.1 * 2**attempts
        for chance in (0.0, 0.25, 0.5, 0.75, 0.999):
            wait = backoff.wait_s(attempts, chance)
            if attempts <= 4:
                assert 0.8 * middle <= wait <= 1.2 * middle
            else:
                assert wait <= 2.0
    assert [Backoff(0.1, 0.4).wait_s(n, 0.5) for n in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.4])
