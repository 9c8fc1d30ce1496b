"""Record batches: read back by an implementation that is not ours, with every codec."""

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords
from penstock.broker.log.decompression import Codec as BrokerCodec
from penstock.broker.log.decompression import decompress
from penstock.producer.kernel import frames
from penstock.producer.records.batch_builder import (
    HEADER_BYTES,
    NO_STAMP,
    BatchBuilder,
    SlowChecksumError,
    Stamp,
    seal_header,
    self_check,
    single_record_batch_size,
)
from penstock.producer.records.compression import ATTRIBUTES, Codec, Levels, make_compressor
from penstock.runtime.clock import thread_seconds

from .kernel_cases import Columns, columns, read_rows, scatter_frame

CODECS: list[Codec] = ["none", "gzip", "snappy", "lz4", "zstd"]
STAMP = Stamp(4711, 3, 2_000_000_000)


def fill(frame: Columns, *, limit: int = 1 << 20, index: int | None = None) -> tuple[BatchBuilder, Any, int]:
    """A batch of the frame's first slice (or that of a partition): builder, slice and position of what did not fit."""
    slices = scatter_frame(frames, frame.packed()).slices
    part = slices[0] if index is None else next(one for one in slices if one.index == index)
    builder = BatchBuilder(bytearray(limit), 100, limit=limit)
    taken = builder.append(
        part.data, 48, len(part.data), part.count, own_timestamps=bool(part.flags), slice_ts=part.base_ts
    )
    assert taken.records == builder.count
    return builder, part, taken.position


def read(batch: memoryview) -> tuple[DefaultRecordBatch, list[tuple[Any, ...]]]:
    records = MemoryRecords(bytes(batch))
    first = records.next_batch()
    assert isinstance(first, DefaultRecordBatch)
    assert first.validate_crc()
    assert records.next_batch() is None
    # kafka-python unpacks snappy only with a package of its own; the broker's reader is as independent of the writer.
    if first.compression_type == ATTRIBUTES["snappy"]:
        plain = bytearray(batch[:HEADER_BYTES]) + decompress(BrokerCodec.SNAPPY, bytes(batch[HEADER_BYTES:]), 1 << 24)
        seal_header(
            plain,
            attributes=0,
            base_ts=first.first_timestamp,
            max_ts=first.max_timestamp,
            stamp=Stamp(first.producer_id, first.producer_epoch, first.base_sequence),
            count=first.last_offset_delta + 1,
        )
        return first, read(memoryview(plain))[1]
    return first, [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in first]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(columns(), st.sampled_from(CODECS))
def test_a_batch_is_read_back_by_kafka_python_as_it_was_given(frame: Columns, codec: Codec) -> None:
    builder, part, _ = fill(frame)
    rows = read_rows(bytes(part.data), own=bool(part.flags))
    batch = builder.close(STAMP, make_compressor(codec, Levels()))
    header, records = read(batch)
    stamps = [part.base_ts if row.timestamp is None else row.timestamp for row in rows]
    expected = [(i, stamps[i], row.key, row.value, row.headers) for i, row in enumerate(rows)]
    assert records == expected
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == STAMP
    assert (header.compression_type, header.is_transactional) == (ATTRIBUTES[codec], False)
    assert (header.base_offset, header.last_offset_delta) == (0, len(rows) - 1)
    assert (header.first_timestamp, header.max_timestamp) == (stamps[0], max(stamps))
    assert builder.size == len(batch)


BIG = Columns(0, [b"key %d" % i for i in range(2000)], [b"value %d " % i * 10 for i in range(2000)], None, None)


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_batch_of_each_codec_is_read_back(codec: Codec) -> None:
    builder, part, _ = fill(BIG)
    before = builder.size
    batch = builder.close(STAMP, make_compressor(codec, Levels()))
    _, records = read(batch)
    assert [row[3] for row in records] == BIG.values
    assert part.count == 2000
    assert (len(batch) < before // 3) == (codec != "none")


@pytest.mark.parametrize(
    ("codec", "levels"),
    [("gzip", Levels(gzip=n)) for n in (1, 9)]
    + [("lz4", Levels(lz4=n)) for n in (1, 8, 12, 17)]
    + [("zstd", Levels(zstd=n)) for n in (-5, 1, 19)],
)
def test_every_level_gives_a_batch_that_can_be_read(codec: Codec, levels: Levels) -> None:
    builder, _, _ = fill(BIG)
    _, records = read(builder.close(STAMP, make_compressor(codec, levels)))
    assert [row[3] for row in records] == BIG.values


def test_lz4_blocks_are_independent_and_the_frame_has_no_size() -> None:
    batch = fill(BIG)[0].close(STAMP, make_compressor("lz4", Levels()))
    frame = bytes(batch[HEADER_BYTES:])
    assert frame[:4] == b"\x04\x22\x4d\x18"
    version, independent, content_size = frame[4] >> 6, frame[4] >> 5 & 1, frame[4] >> 3 & 1
    assert (version, independent, content_size, frame[5] >> 4) == (1, 1, 0, 4)


def test_snappy_is_in_the_java_clients_framing_with_blocks_of_32_kib() -> None:
    batch = bytes(fill(BIG)[0].close(STAMP, make_compressor("snappy", Levels()))[HEADER_BYTES:])
    assert batch[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    at, sizes = 16, []
    while at < len(batch):
        size = int.from_bytes(batch[at : at + 4], "big")
        length = shift = 0
        for byte in batch[at + 4 : at + 9]:
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        sizes.append(length)
        at += 4 + size
    assert at == len(batch)
    assert set(sizes[:-1]) == {32 << 10}
    assert 0 < sizes[-1] <= 32 << 10


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_that_do_not_compress_may_outgrow_the_buffer(codec: Codec) -> None:
    noise = bytes(frames.murmur2(i.to_bytes(4, "big")) & 0xFF for i in range(3000))
    size = fill(Columns(0, None, [noise], None, None))[0].size
    builder, _, _ = fill(Columns(0, None, [noise], None, None), limit=size)
    batch = builder.close(STAMP, make_compressor(codec, Levels()))
    assert read(batch)[1][0][3] == noise
    assert len(batch) > size


def test_a_batch_gets_another_stamp_without_touching_its_records() -> None:
    builder, _, _ = fill(BIG)
    batch = builder.close(STAMP, make_compressor("zstd", Levels()))
    body = bytes(batch[HEADER_BYTES:])
    again = builder.restamp(Stamp(99, 0, 0))
    header, records = read(again)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (99, 0, 0)
    assert bytes(again[HEADER_BYTES:]) == body
    assert len(records) == 2000


def test_a_batch_without_a_stamp_and_one_of_a_transaction_say_so() -> None:
    header, _ = read(fill(BIG)[0].close(NO_STAMP, make_compressor("none", Levels())))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    header, _ = read(fill(BIG)[0].close(STAMP, make_compressor("lz4", Levels()), transactional=True))
    assert (header.is_transactional, header.compression_type) == (True, 3)


def test_what_does_not_fit_goes_to_the_next_batch_and_nothing_is_lost() -> None:
    rest_position, part, values = 48, None, []
    limit, batches = 5000, 0
    (part,) = scatter_frame(frames, BIG.packed()).slices
    left = part.count
    while left:
        builder = BatchBuilder(bytearray(limit), 0, limit=limit)
        taken = builder.append(
            part.data, rest_position, len(part.data), left, own_timestamps=False, slice_ts=part.base_ts
        )
        assert 0 <= builder.remaining_bytes < 1000
        batch = builder.close(STAMP, make_compressor("none", Levels()))
        assert len(batch) <= limit
        values += [row[3] for row in read(batch)[1]]
        left -= taken.records
        rest_position = taken.position
        batches += 1
    assert values == BIG.values
    assert batches > 10


def test_rows_of_several_slices_share_a_batch_and_its_base_timestamp() -> None:
    builder = BatchBuilder(bytearray(1000), 0, limit=1000)
    for stamps in ([50, 60], [40, 70]):
        (part,) = scatter_frame(frames, Columns(0, None, [b"a", b"b"], None, stamps).packed()).slices
        _ = builder.append(part.data, 48, len(part.data), part.count, own_timestamps=True, slice_ts=part.base_ts)
    (part,) = scatter_frame(frames, Columns(0, None, [b"c"], None, 65).packed()).slices
    _ = builder.append(part.data, 48, len(part.data), 1, own_timestamps=False, slice_ts=65)
    header, records = read(builder.close(STAMP, make_compressor("none", Levels())))
    assert [row[1] for row in records] == [50, 60, 40, 70, 65]
    assert [row[0] for row in records] == [0, 1, 2, 3, 4]
    assert (header.first_timestamp, header.max_timestamp) == (50, 70)


def test_the_size_of_a_batch_for_one_record_is_known_before() -> None:
    (part,) = scatter_frame(frames, Columns(0, [b"k"], [b"v" * 9000], None, [7]).packed()).slices
    size = single_record_batch_size(part.data, 48, len(part.data), own_timestamps=True, slice_ts=0)
    for limit, records in ((size, 1), (size - 1, 0)):
        builder = BatchBuilder(bytearray(limit), 0, limit=limit)
        taken = builder.append(part.data, 48, len(part.data), 1, own_timestamps=True, slice_ts=0)
        assert (taken.records, builder.count) == (records, records)
        assert (taken.position == 48) == (records == 0)


def test_records_of_kafkas_documented_sizes_fit_as_documented() -> None:
    frame = Columns(0, [b"key"] * 100, [b"value"] * 100, None, None)
    assert fill(frame, limit=HEADER_BYTES + 1025)[0].count == 68
    assert fill(frame, limit=HEADER_BYTES + 1023)[0].count == 67


def test_what_comes_for_a_closed_batch_is_an_error_of_ours() -> None:
    none = make_compressor("none", Levels())
    builder, part, _ = fill(BIG)
    _ = builder.close(STAMP, none)
    assert builder.remaining_bytes == 0
    with pytest.raises(AssertionError, match="closed once"):
        builder.close(STAMP, none)
    with pytest.raises(AssertionError, match="takes no records"):
        builder.append(part.data, 48, len(part.data), 1, own_timestamps=False, slice_ts=0)


@pytest.mark.fault("K10")
def test_the_checksum_library_is_right_and_fast_also_in_a_busy_process() -> None:
    over = threading.Event()

    def be_busy() -> None:
        while not over.is_set():
            _ = sum(range(10_000))

    others = [threading.Thread(target=be_busy) for _ in range(8)]
    for other in others:
        other.start()
    try:
        for _ in range(5):
            self_check(thread_seconds)
    finally:
        over.set()
        for other in others:
            other.join()


@pytest.mark.fault("K10")
def test_a_slow_checksum_library_is_refused() -> None:
    ticks = iter(range(100))
    with pytest.raises(SlowChecksumError, match="without its C code"):
        self_check(lambda: float(next(ticks)))
