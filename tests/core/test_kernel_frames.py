"""The kernel over frames, compiled and uncompiled."""

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2
from penstock.wire.errors import FrameError

from .kernel_cases import (
    FRAME_KERNELS,
    NAMES,
    OPTIONS,
    Columns,
    Row,
    columns,
    compiled,
    outcome,
    plain,
    read_rows,
    scatter_frame,
    try_frame,
)

both = pytest.mark.parametrize("kernel", FRAME_KERNELS, ids=NAMES)
VALUES = Columns(None, None, [b"v"], None, None)

MURMUR2 = {
    b"21": 1173551340,
    b"foobar": 1357151166,
    b"a-little-bit-long-string": 1161502112,
    b"a-little-bit-longer-string": 661178819,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": 2088585677,
    b"abc": 479470107,
    b"": 275646681,
    b"key": 1067546281,
    b"\x00": 375494588,
    b"\xff\xff\xff\xff": 644171429,
    b"kafka": 1348980580,
}


def test_the_kernel_in_use_is_compiled() -> None:
    assert compiled.COMPILED
    assert not plain.COMPILED


@both
@pytest.mark.parametrize("key", MURMUR2)
def test_murmur2_gives_the_values_of_the_java_client(kernel: Any, key: bytes) -> None:
    assert kernel.murmur2(key) == MURMUR2[key]


@given(st.binary(max_size=50))
def test_murmur2_agrees_with_another_implementation_on_any_key(key: bytes) -> None:
    expected = kafka_murmur2(key) & 0x7FFFFFFF
    assert compiled.murmur2(key) == expected
    assert plain.murmur2(bytearray(key)) == expected


@both
def test_whole_messages_are_found_and_a_part_of_one_is_left(kernel: Any) -> None:
    stream = b"".join(struct.pack(">I", len(body)) + body for body in (b"a", b"bcd", b"e" * 300))
    found, after = kernel.find_messages(b"--" + stream + b"\x00\x00\x00\x05x", 2, len(stream) + 7, 300)
    assert found == [(6, 7), (11, 14), (18, 318)]
    assert after == len(stream) + 2


@both
@pytest.mark.parametrize("length", [0, 301, 1 << 31, (1 << 32) - 1])
def test_a_length_outside_the_limits_ends_the_stream(kernel: Any, length: int) -> None:
    with pytest.raises(FrameError) as caught:
        kernel.find_messages(struct.pack(">I", length) + b"x" * 400, 0, 404, 300)
    assert caught.value.fatal


@both
@pytest.mark.parametrize(("start", "end"), [(-1, 3), (2, 1), (0, 5)])
def test_no_range_outside_the_buffer_is_read(kernel: Any, start: int, end: int) -> None:
    for call in (
        lambda: kernel.find_messages(b"abcd", start, end, 10),
        lambda: kernel.message_type(b"abcd", start, end),
        lambda: kernel.read_head(b"abcd", start, end),
        lambda: kernel.scatter(b"abcd", start, end, start, **OPTIONS),
    ):
        with pytest.raises(FrameError):
            call()


@both
def test_the_head_of_a_frame_is_read(kernel: Any) -> None:
    body = VALUES.packed(seq=(1 << 63) - 1, level=1, topic="a" * 249)
    assert kernel.message_type(body, 0, len(body)) == 2
    head = kernel.read_head(body, 0, len(body))
    assert head[:3] == ((1 << 63) - 1, 1, "a" * 249)


@both
@pytest.mark.parametrize("topic", ["", ".", "..", "../x", "a b", "ä", "a" * 250, "a\x00"])
def test_a_name_that_is_no_topic_refuses_the_frame_by_its_sequence(kernel: Any, topic: str) -> None:
    with pytest.raises(FrameError) as caught:
        kernel.read_head(body := VALUES.packed(seq=41, topic=topic), 0, len(body))
    assert (caught.value.code, caught.value.fatal, caught.value.seq) == ("bad_topic", False, 41)


@both
@pytest.mark.parametrize("topic", ["a", "...", "._-", "A.9", "a."])
def test_every_name_kafka_takes_is_a_topic(kernel: Any, topic: str) -> None:
    body = VALUES.packed(topic=topic)
    assert kernel.read_head(body, 0, len(body)).topic == topic


@both
@pytest.mark.parametrize(
    "head", [[2, -1, 2, "t"], [2, 1 << 63, 2, "t"], [2, "1", 2, "t"], [2, None, 2, "t"], [2, 1.0, 2, "t"]]
)
def test_a_frame_without_a_proper_sequence_ends_the_session(kernel: Any, head: list[object]) -> None:
    with pytest.raises(FrameError, match="seq") as caught:
        kernel.read_head(body := msgpack.packb([*head, None, None, [b"v"], None, None]), 0, len(body))
    assert (caught.value.code, caught.value.fatal) == ("protocol", True)


@both
@pytest.mark.parametrize("level", [3, -1, None, "2"])
def test_an_unknown_level_refuses_the_frame(kernel: Any, level: object) -> None:
    with pytest.raises(FrameError, match="level") as caught:
        kernel.read_head(body := msgpack.packb([2, 5, level, "t", *VALUES]), 0, len(body))
    assert (caught.value.code, caught.value.fatal, caught.value.seq) == ("bad_frame", False, 5)


@both
@pytest.mark.parametrize(
    "body", [b"\x90", b"\xc0", b"\x91\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91", b"\xdc", b""]
)
def test_what_is_no_array_with_a_type_has_no_type(kernel: Any, body: bytes) -> None:
    with pytest.raises(FrameError):
        kernel.message_type(body, 0, len(body))


def expected_rows(frame: Columns) -> dict[int, list[Row]]:
    """What must come out, from the definition of the columns alone."""
    n = len(frame.values)  # type: ignore[arg-type]

    def at(column: object, i: int) -> Any:
        return column[i] if isinstance(column, list) else column

    rows: dict[int, list[Row]] = {}
    for i in range(n):
        key = at(frame.keys, i)
        index = at(frame.partitions, i)
        if index is None:
            index = OPTIONS["sticky"] if key is None else (kafka_murmur2(key) & 0x7FFFFFFF) % 12
        flat = at(frame.headers, i) or []
        stamp = at(frame.timestamps, i) if isinstance(frame.timestamps, list) else None
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        rows.setdefault(index, []).append(Row(stamp, key, at(frame.values, i), pairs))
    return rows


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.large_base_example, HealthCheck.too_slow])
@given(columns())
def test_scattered_rows_are_the_records_of_the_frame_by_partition_in_order(frame: Columns) -> None:
    body = frame.packed()
    ours = scatter_frame(compiled, body)
    assert ours == scatter_frame(plain, body)
    expected = expected_rows(frame)
    own = isinstance(frame.timestamps, list)
    assert [part.index for part in ours.slices] == sorted(expected)
    for part in ours.slices:
        rows = read_rows(bytes(part.data), own=own)
        assert rows == expected[part.index]
        assert part.data[:48] == bytes(48)
        assert (part.count, part.flags) == (len(rows), int(own))
        one = OPTIONS["now_ms"] if frame.timestamps is None else frame.timestamps
        stamps = [row.timestamp if own else one for row in rows]
        assert (part.base_ts, part.max_ts) == (stamps[0], max(stamps))
    assert ours.count == sum(part.count for part in ours.slices)
    assert ours.record_bytes == sum(len(part.data) - 48 - part.count * (12 if own else 4) for part in ours.slices)
    chosen = struct.unpack(f"<{ours.count}i", ours.partitions)
    assert {index: chosen.count(index) for index in chosen} == {index: len(rows) for index, rows in expected.items()}


@both
def test_keyless_records_stick_and_ignored_keys_count_as_none(kernel: Any) -> None:
    body = Columns([None, 5, None], [None, None, b""], [b"a", b"b", b"c"], None, None).packed()
    kept = scatter_frame(kernel, body)
    assert (kept.keyless, struct.unpack("<3i", kept.partitions)) == (1, (3, 5, 275646681 % 12))
    ignored = scatter_frame(kernel, body, ignore_keys=True)
    assert (ignored.keyless, struct.unpack("<3i", ignored.partitions)) == (2, (3, 5, 3))
    assert scatter_frame(kernel, body, want_partitions=False).partitions is None


@both
def test_a_missing_timestamp_in_the_column_is_the_time_of_arrival(kernel: Any) -> None:
    body = Columns(0, None, [b"a", b"b"], None, [None, 5]).packed()
    (part,) = scatter_frame(kernel, body).slices
    assert [row.timestamp for row in read_rows(bytes(part.data), own=True)] == [OPTIONS["now_ms"], 5]
    assert (part.base_ts, part.max_ts) == (OPTIONS["now_ms"], OPTIONS["now_ms"])


V = [b"a", b"b"]
WRONG: dict[str, tuple[Columns, str, str]] = {
    "no values": (Columns(None, None, None, None, None), "bad_frame", "values is not an array"),
    "no record": (Columns(None, None, [], None, None), "bad_frame", "at least one"),
    "values a map": (Columns(None, None, {}, None, None), "bad_frame", "values is not an array"),
    "keys a number": (Columns(None, 4, V, None, None), "bad_frame", "keys is neither"),
    "keys too few": (Columns(None, [b"k"], V, None, None), "bad_frame", "values has 2 items for 1"),
    "partitions too many": (Columns([1, 2, 3], None, V, None, None), "bad_frame", "values has 2 items for 3"),
    "headers too few": (Columns(None, None, V, [None], None), "bad_frame", "headers has 1 items for 2"),
    "timestamps too few": (Columns(None, None, V, None, [1]), "bad_frame", "timestamps has 1 items for 2"),
    "key text": (Columns(None, [b"k", "k"], V, None, None), "bad_frame", "record 1: key is neither bytes nor nil"),
    "value array": (Columns(None, None, [[], b"v"], None, None), "bad_frame", "record 0: value is neither"),
    "partition text": (Columns([1, "1"], None, V, None, None), "bad_frame", "record 1: partition is neither"),
    "partition true": (Columns(True, None, V, None, None), "bad_frame", "partitions is neither"),
    "partition below": (Columns(-1, None, V, None, None), "bad_partition", "partitions 0 to 11"),
    "partition above": (Columns([0, 12], None, V, None, None), "bad_partition", "record 1"),
    "partition 2^31": (Columns(1 << 31, None, V, None, None), "bad_partition", "record 0"),
    "partition 2^64-1": (Columns((1 << 64) - 1, None, V, None, None), "bad_partition", "record 0"),
    "timestamp below": (Columns(None, None, V, None, [0, -1]), "bad_timestamp", "record 1"),
    "timestamp above": (Columns(None, None, V, None, 1 << 63), "bad_timestamp", "record 0"),
    "timestamp float": (Columns(None, None, V, None, [0, 1.5]), "bad_frame", "record 1: timestamp is neither"),
    "headers odd": (Columns(None, None, V, [None, ["a"]], None), "bad_frame", "record 1: headers are neither"),
    "headers map": (Columns(None, None, V, [{}, None], None), "bad_frame", "record 0: headers are neither"),
    "header name bytes": (Columns(None, None, V, [[b"a", b"b"], None], None), "bad_frame", "name is not text"),
    "header value text": (Columns(None, None, V, [["a", "b"], None], None), "bad_frame", "value is neither"),
    "header count": (Columns(None, None, V, [["a", b""] * 9, None], None), "bad_frame", "9 headers are over"),
}


@both
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_column_refuses_the_frame_alone_and_says_why(kernel: Any, case: str) -> None:
    frame, code, text = WRONG[case]
    with pytest.raises(FrameError, match=text) as caught:
        scatter_frame(kernel, frame.packed())
    assert (caught.value.code, caught.value.fatal) == (code, False)


@both
def test_headers_up_to_the_limit_pass(kernel: Any) -> None:
    assert scatter_frame(kernel, Columns(None, None, [b"v"], [["a", b""] * 8], None).packed()).count == 1


@both
def test_a_record_is_refused_one_byte_over_the_limit(kernel: Any) -> None:
    body = Columns(None, [b"k"], [b"v" * 100], [["h", None]], None).packed()
    size = scatter_frame(kernel, body).record_bytes
    assert size == 2 + 102 + 1 + 2 + 1
    assert scatter_frame(kernel, body, record_bytes_max=size).count == 1
    with pytest.raises(FrameError, match="record 0") as caught:
        scatter_frame(kernel, body, record_bytes_max=size - 1)
    assert (caught.value.code, caught.value.fatal) == ("too_large", False)


@both
def test_a_reserved_header_is_refused_and_others_pass(kernel: Any) -> None:
    reserved = (b"penstock.id", "größe".encode())
    for name in ("penstock.id", "größe"):
        with pytest.raises(FrameError, match=name) as caught:
            scatter_frame(kernel, Columns(None, None, [b"v"], [[name, b""]], None).packed(), reserved_headers=reserved)
        assert caught.value.code == "reserved_header"
    fine = Columns(None, None, [b"v"], [["penstock.idx", b""]], None).packed()
    assert scatter_frame(kernel, fine, reserved_headers=reserved).count == 1


@both
def test_a_header_name_that_is_not_utf8_is_refused(kernel: Any) -> None:
    body = Columns(None, None, [b"v"], [["aaaa", b""]], None).packed().replace(b"aaaa", b"a\xc3\x28a")
    with pytest.raises(FrameError, match="UTF-8") as caught:
        scatter_frame(kernel, body)
    assert (caught.value.code, caught.value.fatal) == ("bad_frame", False)


@both
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("thing", [b"\xc1", b"\xd4\x01x", b"\xc7\x03\x01abc", b"\x81\x01\x02", b"\xcb" + bytes(8)])
def test_a_thing_no_column_can_be_is_refused_wherever_it_stands(kernel: Any, place: int, thing: bytes) -> None:
    items = [b"\xc0", b"\xc0", b"\x91\xc4\x01v", b"\xc0", b"\xc0"]
    items[place] = thing
    body = b"\x99\x02\x07\x02\xa1t" + b"".join(items)
    with pytest.raises(FrameError) as caught:
        scatter_frame(kernel, body)
    # What is not msgpack ends the session; what is, refuses the frame.
    never = thing == b"\xc1"
    assert (caught.value.code, caught.value.fatal) == (("protocol", True) if never else ("bad_frame", False))


FULL = Columns([1, None], [b"k1", None], [b"v" * 40, None], [["h", b"x"], None], [1, 1 << 40])


@both
def test_bytes_after_the_message_end_the_session(kernel: Any) -> None:
    with pytest.raises(FrameError, match="1 bytes follow") as caught:
        scatter_frame(kernel, FULL.packed() + b"\xc0")
    assert (caught.value.code, caught.value.fatal) == ("protocol", True)


def test_every_truncation_is_refused_for_good_and_by_both_kernels_alike() -> None:
    body = FULL.packed()
    for length in range(len(body)):
        refusal = try_frame(compiled, body[:length])
        assert refusal == try_frame(plain, body[:length])
        assert refusal[0] == "refused"  # type: ignore[index]
        assert refusal[3] is True  # type: ignore[index]


def test_a_lying_count_costs_nothing() -> None:
    bomb = msgpack.packb([2, 1, 2, "t"])[1:] + b"\xc0\xc0\xdd\x7f\xff\xff\xff" + b"\xc0" * 10
    for kernel in FRAME_KERNELS:
        with pytest.raises(FrameError) as caught:
            scatter_frame(kernel, b"\x99" + bomb)
        assert caught.value.fatal


def test_depth_is_refused_at_the_first_level() -> None:
    for kernel in FRAME_KERNELS:
        with pytest.raises(FrameError):
            scatter_frame(kernel, Columns(None, None, [b"v"], None, None).packed()[:-3] + b"\x91" * 100_000)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_damaged_frame_gets_the_same_answer_from_both_kernels(data: st.DataObject) -> None:
    body = bytearray(data.draw(columns(records_max=4)).packed())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert try_frame(compiled, bytes(body)) == try_frame(plain, bytes(body))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([b"", b"\x99\x02\x01\x02\xa1t", b"\x99\x02\x01\x02\xa1t\xc0\xc0\x91"]))
def test_random_bytes_get_the_same_answer_from_both_kernels(tail: bytes, head: bytes) -> None:
    body = head + tail
    assert try_frame(compiled, body) == try_frame(plain, body)
    for function, *rest in (("find_messages", 40), ("message_type",)):
        ours, theirs = (outcome(kernel, str(function), body, 0, len(body), *rest) for kernel in FRAME_KERNELS)
        assert ours == theirs
