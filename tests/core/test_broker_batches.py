"""One rule broken at a time: what the broker says, and that nothing of the batch is kept."""

import crc32c
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.batches import BatchHeader as BatchHead
from penstock.broker.log.batches import Verify, decode_batch, validate_batch
from penstock.broker.log.error_codes import AppendRejection, ErrorCode
from penstock.broker.log.topics import TopicRules

from tests.harness.batches import NOW_MS, Head, Rec, batch, numbered, plain, record, sized, xerial, zigzag
from tests.harness.broker_calls import Bench

TWO = (Rec(b"one", b"k1"), Rec(b"two", b"k2"))
ODD = (Rec(b"v", b"k", (("h", b"x"), ("none", None), ("", b""))), Rec(None, None), Rec(b"", b"", (), NOW_MS - 5))


def broken_head(**fields: int) -> bytes:
    return batch(TWO, Head(**fields))


def with_payload(payload: bytes, codec: int = 0) -> bytes:
    return batch(TWO, Head(attributes=codec), payload)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def one_record(body: bytes) -> bytes:
    """A batch whose first record is made by hand."""
    return with_payload(zigzag(len(body)) + body + record(TWO[1], 1, NOW_MS))


GOOD = b"\x00" + zigzag(0) + zigzag(0) + sized(b"k") + sized(b"v") + zigzag(0)

INVALID = ErrorCode.INVALID_RECORD
BROKEN: dict[str, tuple[bytes, ErrorCode, str]] = {
    "nothing": (b"", INVALID, "no whole batch"),
    "a head that is cut": (batch(TWO)[:60], INVALID, "no whole batch"),
    "a batch that is cut": (batch(TWO)[:-1], INVALID, "length says"),
    "a byte behind the batch": (batch(TWO) + b"\x00", INVALID, "length says"),
    "two batches": (batch(TWO) * 2, INVALID, "length says"),
    "a length below the head": (broken_head(length=10), ErrorCode.CORRUPT_MESSAGE, "length 10"),
    "magic 1": (broken_head(magic=1), INVALID, "magic 1"),
    "a negative length": (broken_head(length=-1), ErrorCode.CORRUPT_MESSAGE, "length -1"),
    "a magic below zero": (broken_head(magic=-1), ErrorCode.CORRUPT_MESSAGE, "length 73, magic -1"),
    "magic 3": (broken_head(magic=3), ErrorCode.CORRUPT_MESSAGE, "length 73, magic 3"),
    "a base offset": (broken_head(base_offset=1), INVALID, "base offset 1"),
    "a wrong checksum": (broken_head(crc=1), ErrorCode.CORRUPT_MESSAGE, "checksum"),
    "a flipped bit in the records": (flipped(batch(TWO), 70), ErrorCode.CORRUPT_MESSAGE, "checksum"),
    "a flipped bit in the attributes": (flipped(batch(TWO), 22), ErrorCode.CORRUPT_MESSAGE, "checksum"),
    "no records": (broken_head(count=0, last_offset_delta=-1), INVALID, "0 records, last offset delta -1"),
    "a negative count": (broken_head(count=-1, last_offset_delta=-2), INVALID, "-1 records, last offset delta -2"),
    "one record more counted": (broken_head(count=3), INVALID, "3 records, last offset delta 1"),
    "a last offset delta too high": (broken_head(last_offset_delta=2), INVALID, "2 records, last offset delta 2"),
    "one record more counted everywhere": (broken_head(count=3, last_offset_delta=2), INVALID, "record 2: it is cut"),
    "one record less counted everywhere": (
        broken_head(count=1, last_offset_delta=0),
        INVALID,
        "record 0: 12 bytes follow the last record",
    ),
    "a control batch": (broken_head(attributes=0x20), INVALID, "control batch"),
    "a transactional batch": (
        broken_head(attributes=0x10, producer_id=1, epoch=0, sequence=0),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "no right to the transactional id, or none is named",
    ),
    "log append time": (broken_head(attributes=0x08), ErrorCode.INVALID_TIMESTAMP, "timestamp type is not create time"),
    "a producer id without a sequence": (
        broken_head(producer_id=5, epoch=0, sequence=-1),
        INVALID,
        "a producer id without epoch and sequence",
    ),
    "a producer id without an epoch": (
        broken_head(producer_id=5, epoch=-1, sequence=0),
        INVALID,
        "a producer id without epoch and sequence",
    ),
    "codec 5": (batch(TWO, Head(attributes=5)), INVALID, "codec 5"),
    "a base timestamp of another record": (
        batch(TWO, Head(base_timestamp=NOW_MS - 1), b"".join(record(rec, i, NOW_MS - 1) for i, rec in enumerate(TWO))),
        INVALID,
        "base timestamp is not the first",
    ),
    "a maximum timestamp too high": (broken_head(max_timestamp=NOW_MS + 1), INVALID, "maximum timestamp"),
    "a maximum timestamp too low": (broken_head(max_timestamp=NOW_MS - 1), INVALID, "maximum timestamp"),
    "records that end early": (with_payload(plain(TWO)[:-1]), INVALID, "record 1: its length reaches beyond the batch"),
    "bytes after the records": (
        with_payload(plain(TWO) + b"\x00"),
        INVALID,
        "record 1: 1 bytes follow the last record",
    ),
    "an offset delta twice": (
        with_payload(record(TWO[0], 0, NOW_MS) + record(TWO[1], 0, NOW_MS)),
        INVALID,
        "record 1: its offset delta is 0",
    ),
    "an offset delta left out": (
        with_payload(record(TWO[0], 0, NOW_MS) + record(TWO[1], 2, NOW_MS)),
        INVALID,
        "record 1: its offset delta is 2",
    ),
    "record attributes": (one_record(b"\x01" + GOOD[1:]), INVALID, "record 0: its attributes are not zero"),
    "a record longer than its fields": (
        one_record(GOOD + b"\x00"),
        INVALID,
        "record 0: its fields do not fill its length",
    ),
    "a record shorter than its fields": (
        with_payload(zigzag(len(GOOD) - 1) + GOOD + record(TWO[1], 1, NOW_MS)),
        INVALID,
        "record 0: its fields do not fill its length",
    ),
    "a negative record length": (
        with_payload(zigzag(-1) + GOOD + record(TWO[1], 1, NOW_MS)),
        INVALID,
        "record 0: its length reaches beyond the batch",
    ),
    "a key length of -2": (
        one_record(GOOD[:3] + zigzag(-2) + sized(b"v") + zigzag(0)),
        INVALID,
        "record 0: its key length is negative",
    ),
    "a value length of -2": (
        one_record(GOOD[:3] + sized(b"k") + zigzag(-2) + zigzag(0)),
        INVALID,
        "record 0: its value length is negative",
    ),
    "a key beyond the batch": (one_record(GOOD[:3] + zigzag(10_000) + b"k"), INVALID, "record 0: it is cut"),
    "a negative header count": (
        one_record(GOOD[:-1] + zigzag(-1)),
        INVALID,
        "record 0: its header count is impossible",
    ),
    "a million headers": (
        one_record(GOOD[:-1] + zigzag(1_000_000)),
        INVALID,
        "record 0: its header count is impossible",
    ),
    "a null header key": (
        one_record(GOOD[:-1] + zigzag(1) + zigzag(-1) + sized(b"x")),
        INVALID,
        "record 0: a header key's length is impossible",
    ),
    "a header key that is not UTF-8": (
        one_record(GOOD[:-1] + zigzag(1) + sized(b"\xff") + sized(b"x")),
        INVALID,
        "record 0: a header key is not UTF-8",
    ),
    "a header value length of -2": (
        one_record(GOOD[:-1] + zigzag(1) + sized(b"h") + zigzag(-2)),
        INVALID,
        "record 0: a header value's length is negative",
    ),
    "a number of six bytes": (
        with_payload(b"\xff\xff\xff\xff\xff\x01" + plain(TWO)),
        INVALID,
        "record 0: a number is too long",
    ),
    "a number of 35 bits": (
        with_payload(b"\xff\xff\xff\xff\x7f" + plain(TWO)),
        INVALID,
        "record 0: a number is too large",
    ),
    "gzip that is none": (with_payload(b"nonsense", 1), INVALID, "gzip: Error"),
    "gzip that ends early": (
        with_payload(batch(TWO, Head(attributes=1))[61:-4], 1),
        INVALID,
        "gzip: the stream ends early",
    ),
    "snappy that is none": (with_payload(b"\xff\xff\xff\xff\xff\xff", 2), INVALID, "snappy: "),
    "xerial with a cut block": (with_payload(xerial(plain(TWO))[:-1], 2), INVALID, "snappy: a block is cut"),
    "xerial with a cut length": (
        with_payload(xerial(plain(TWO)) + b"\x00\x00", 2),
        INVALID,
        "snappy: a block length is cut",
    ),
    "lz4 that is none": (with_payload(b"nonsense", 3), INVALID, "lz4: no frame header"),
    "lz4 with dependent blocks": (
        with_payload(lz4.frame.compress(plain(TWO) * 9000, block_linked=True), 3),
        INVALID,
        "lz4: dependent blocks, which Kafka's Java code cannot read",
    ),
    "lz4 that ends early": (
        with_payload(batch(TWO, Head(attributes=3))[61:-4], 3),
        INVALID,
        "lz4: the frame ends early",
    ),
    "lz4 with a byte behind": (
        with_payload(batch(TWO, Head(attributes=3))[61:] + b"\x00", 3),
        INVALID,
        "lz4: bytes after the frame",
    ),
    "zstd that is none": (with_payload(b"nonsense", 4), INVALID, "zstd: "),
    "zstd that ends early": (
        with_payload(batch(TWO, Head(attributes=4))[61:-1], 4),
        INVALID,
        "zstd: the frame ends early",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_batch_with_one_rule_broken_is_refused_and_not_kept(what: str) -> None:
    data, error, why = BROKEN[what]
    bench = Bench()
    part = bench.produce(data)
    assert ErrorCode(part.error_code) is error
    assert part.error_message is not None
    assert part.error_message.startswith(why)
    assert part.base_offset == -1
    assert part.log_start_offset in {-1, 0}
    assert bench.end() == 0


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("records", [TWO, ODD, (Rec(b"x" * 3000),) * 300], ids=["two", "odd", "many"])
def test_a_right_batch_is_taken_in_every_codec(codec: int, records: tuple[Rec, ...]) -> None:
    bench = Bench()
    part = bench.produce(batch(records, Head(attributes=codec)))
    assert part.error_code == 0, part.error_message
    assert (part.base_offset, part.log_append_time_ms, part.log_start_offset) == (0, -1, 0)
    assert bench.end() == len(records)


def test_raw_snappy_is_read_like_xerial() -> None:
    import cramjam

    bench = Bench()
    assert bench.produce(with_payload(bytes(cramjam.snappy.compress_raw(plain(TWO))), 2)).error_code == 0


def test_a_record_that_does_not_decode_is_in_the_message_and_not_among_those_that_are_refused_for_what_they_are() -> (
    None
):
    part = Bench().produce(with_payload(record(TWO[0], 0, NOW_MS) + record(TWO[1], 5, NOW_MS)))
    assert part.error_message == "record 1: its offset delta is 5"
    assert part.record_errors == []


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_unfolds_beyond_the_limit_is_refused(codec: int) -> None:
    payload = batch((Rec(),), Head(attributes=codec), None)[61:]
    assert payload
    huge = b"\x00" * 104_857_601
    import cramjam
    import zstandard

    squeezed = {
        1: lambda: bytes(cramjam.gzip.compress(huge)),
        2: lambda: bytes(cramjam.snappy.compress_raw(huge)),
        3: lambda: lz4.frame.compress(huge, block_linked=False),
        4: lambda: zstandard.ZstdCompressor().compress(huge),
    }[codec]()
    bench = Bench(settings=(("max.message.bytes", "99999999"),))
    part = bench.produce(with_payload(squeezed, codec))
    assert (part.error_code, part.error_message) == (INVALID, "records unfold to more than 104857600 bytes")


def test_zstd_needs_produce_7() -> None:
    data = batch(TWO, Head(attributes=4))
    assert Bench().produce(data, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert Bench().produce(data, version=7).error_code == 0


def test_a_batch_of_exactly_the_largest_size_is_taken_and_one_byte_more_is_not() -> None:
    data = batch((Rec(b"x" * 500),))
    at_limit = Bench(settings=(("max.message.bytes", str(len(data))),))
    assert at_limit.produce(data).error_code == 0
    part = at_limit.produce(batch((Rec(b"x" * 501),)))
    assert (part.error_code, part.log_start_offset) == (ErrorCode.MESSAGE_TOO_LARGE, -1)
    assert at_limit.end() == 1


def test_a_limit_lowered_below_a_batch_in_the_log_hides_that_it_is_a_duplicate() -> None:
    bench = Bench()
    data = numbered(7, 0, 0, 50)
    assert bench.produce(data).error_code == 0
    topic = bench.node.topic("t")
    assert topic is not None
    assert bench.node.alter_topic(topic, (("max.message.bytes", "100"),), bench.clock.moment)
    assert bench.produce(data).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_wrong_checksum_is_seen_before_a_duplicate() -> None:
    bench = Bench()
    data = numbered(7, 0, 0, 5)
    assert bench.produce(data).error_code == 0
    assert bench.produce(flipped(data, 70)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert bench.produce(data).base_offset == 0


def test_timestamps_outside_of_the_bounds_are_refused_by_number() -> None:
    bench = Bench(settings=(("message.timestamp.after.max.ms", "1000"), ("message.timestamp.before.max.ms", "2000")))
    edge = (Rec(timestamp=NOW_MS + 1000), Rec(timestamp=NOW_MS - 2000), Rec(timestamp=NOW_MS))
    assert bench.produce(batch(edge)).error_code == 0
    outside = (Rec(timestamp=NOW_MS + 1001), Rec(timestamp=NOW_MS), Rec(timestamp=NOW_MS - 2001), Rec(timestamp=-1))
    part = bench.produce(batch(outside))
    assert part.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [bad.batch_index for bad in part.record_errors] == [0, 2]
    assert bench.end() == 3


def test_a_compacted_topic_wants_keys_and_names_every_record_without() -> None:
    bench = Bench(settings=(("cleanup.policy", "compact"),))
    part = bench.produce(batch((Rec(key=b"k"), Rec(), Rec(key=b""), Rec())))
    assert part.error_code == INVALID
    assert [bad.batch_index for bad in part.record_errors] == [1, 3]
    assert bench.produce(batch((Rec(key=b"k"), Rec(key=b"")))).error_code == 0


def test_checking_batches_only_lets_records_through_but_not_a_wrong_checksum() -> None:
    bench = Bench(limits=BrokerNodeLimits(verify=Verify.BATCHES))
    assert bench.produce(with_payload(b"not records")).error_code == 0
    assert bench.produce(broken_head(crc=1)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert bench.produce(broken_head(count=3)).error_code == INVALID


def test_a_partition_that_is_twice_in_a_request_is_refused_twice() -> None:
    bench = Bench()
    request = bench.produce_request({0: [batch(TWO), batch(TWO)], 1: [batch(TWO)]})
    answer = bench.ask(request, 9)
    found = [(part.index, part.error_code, part.base_offset) for part in answer.responses[0].partition_responses]
    assert found == [(0, INVALID, -1), (0, INVALID, -1), (1, 0, 0)]
    assert (bench.end(0), bench.end(1)) == (0, 2)


@pytest.mark.parametrize("acks", [-2, 2])
def test_other_acks_than_minus_one_none_and_one_are_refused(acks: int) -> None:
    bench = Bench()
    assert bench.produce(batch(TWO), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert bench.end() == 0


def test_a_node_that_holds_as_much_as_it_may_refuses_and_keeps_what_it_has() -> None:
    data = batch(TWO)
    bench = Bench(limits=BrokerNodeLimits(log_bytes_max=2 * len(data)))
    assert [bench.produce(data).error_code for _ in range(3)] == [0, 0, ErrorCode.KAFKA_STORAGE_ERROR]
    assert bench.end() == 4


def test_acks_zero_has_no_answer_and_an_error_closes_the_connection() -> None:
    bench = Bench()
    good = bench.reply(bench.produce_request({0: [batch(TWO)]}, acks=0), 9)
    assert (good.data, good.close) == (b"", False)
    assert bench.end() == 2
    bad = bench.reply(bench.produce_request({0: [broken_head(crc=1)]}, acks=0), 9)
    assert (bad.data, bad.close) == (b"", True)


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce_is_answered(version: int) -> None:
    bench = Bench()
    part = bench.produce(batch(TWO), version=version)
    assert (part.index, part.error_code, part.base_offset) == (0, 0, 0)


def test_null_records_are_refused() -> None:
    data = ProduceRequest.TopicProduceData(
        name="t", partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=None)]
    )
    answer = Bench().ask(ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1, topic_data=[data]), 9)
    assert answer.responses[0].partition_responses[0].error_code == INVALID


VALID = [
    batch((Rec(b"v" * 50, b"k", (("h", b"x"),)), Rec(None, None)) * 10, Head(attributes=codec)) for codec in range(5)
]


@settings(max_examples=1000, deadline=None)
@given(
    codec=st.integers(0, 4),
    changes=st.lists(st.tuples(st.integers(21, 400), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4),
    cut=st.integers(0, 5),
    zstd=st.booleans(),
)
def test_a_batch_damaged_in_any_way_is_judged_and_nothing_else_happens(
    codec: int, changes: list[tuple[int, bytes]], cut: int, zstd: bool
) -> None:
    damaged = bytearray(VALID[codec])
    for at, data in changes:
        start = 21 + at % (len(damaged) - 21 - len(data))
        damaged[start : start + len(data)] = data
    del damaged[max(61, len(damaged) - cut) :]
    damaged[8:12] = (len(damaged) - 12).to_bytes(4, "big")
    damaged[17:21] = crc32c.crc32c(bytes(damaged[21:])).to_bytes(4, "big")
    verdict = validate_batch(bytes(damaged), TopicRules(), verify=Verify.RECORDS, wall_ms=NOW_MS, zstd=zstd)
    assert isinstance(verdict, BatchHead | AppendRejection)
    if isinstance(verdict, BatchHead):
        assert len(decode_batch(bytes(damaged))) == verdict.record_count


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 7, b"\x04\x22\x4d\x18\x60\x40\x82", b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"\x82SNAPPY\x00"]
)
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_data_that_is_too_short_is_refused(codec: int, data: bytes) -> None:
    assert Bench().produce(with_payload(data, codec)).error_code == INVALID
