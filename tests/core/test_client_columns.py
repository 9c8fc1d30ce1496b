"""Columns of the client as the kernel reads them, and the future's view of an answer."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.api.errors import OutcomeUnknownError, RefusedError, RefusedRange, WaitTimeoutError
from penstock.api.futures import Answer, FrameFuture, FrameOutcome, RecordFuture
from penstock.api.metadata import OffsetRun
from penstock.client.core.columns import (
    FRAME_OVERHEAD_BYTES,
    HEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Columns,
    check_topic,
    flat_bytes,
    flatten,
    new_packer,
    pack_head,
    pack_many,
)
from penstock.producer.kernel import frames
from penstock.wire.errors import FrameError

from .kernel_cases import read_rows, scatter_frame

_bytes = st.one_of(st.none(), st.binary(max_size=300))
_headers = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=300), _bytes), max_size=4))
_records = st.tuples(
    _bytes, _bytes, st.one_of(st.none(), st.integers(0, 11)), _headers, st.one_of(st.none(), st.integers(0, 1 << 62))
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_records, min_size=1, max_size=20), st.integers(0, (1 << 63) - 1), st.integers(0, 2))
def test_the_kernel_reads_what_was_appended(records: list[tuple[object, ...]], seq: int, level: int) -> None:
    columns = Columns()
    size = FRAME_OVERHEAD_BYTES
    for key, value, partition, headers, stamp in records:
        flat = flatten(headers)  # type: ignore[arg-type]
        columns.append_full(key, value, partition, flat, stamp)  # type: ignore[arg-type]
        size += RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + flat_bytes(flat)  # type: ignore[arg-type]
    rest = columns.pack(new_packer(), "orders")
    body = (pack_head(rest, seq, level) + rest)[4:]
    assert len(body) <= size
    assert int.from_bytes(pack_head(rest, seq, level)[:4], "big") == len(body) == len(rest) + HEAD_BYTES
    assert frames.read_head(body, 0, len(body))[:3] == (seq, level, "orders")
    scattered = scatter_frame(frames, body)
    rows = [row for part in scattered.slices for row in read_rows(bytes(part.data), own=bool(part.flags))]
    found = [(row.key, row.value, row.headers) for row in rows]
    given_ones = [(key, value, list(headers or [])) for key, value, _, headers, _ in records]  # type: ignore[call-overload]
    assert sorted(found, key=repr) == sorted(given_ones, key=repr)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60))
def test_columns_cut_into_frames_are_whole_and_none_is_too_large(sizes: list[int]) -> None:
    values = [b"x" * size for size in sizes]
    columns = [5, None, values, None, list(range(len(values)))]
    parts = pack_many(new_packer(), "orders", columns, len(values), bytes_max=4000, bytes_wanted=2000)
    assert sum(count for count, _ in parts) == len(values)
    seen: list[tuple[bytes | None, int | None]] = []
    for count, rest in parts:
        body = (pack_head(rest, 1, 2) + rest)[4:]
        assert len(body) <= 4000
        (part,) = scatter_frame(frames, body).slices
        assert (part.index, part.count) == (5, count)
        seen += [(row.value, row.timestamp) for row in read_rows(bytes(part.data), own=True)]
    assert seen == list(zip(values, range(len(values)), strict=True))


def test_a_single_record_over_the_limit_is_named() -> None:
    with pytest.raises(FrameError, match="record 1 takes"):
        pack_many(
            new_packer(), "t", [None, None, [b"a", b"x" * 5000], None, None], 2, bytes_max=4000, bytes_wanted=2000
        )


def test_a_failed_packing_leaves_nothing_for_the_next() -> None:
    packer = new_packer()
    with pytest.raises(TypeError):
        pack_many(packer, "t", [None, None, [object()], None, None], 1, bytes_max=4000, bytes_wanted=2000)
    ((_, rest),) = pack_many(packer, "t", [None, None, [b"v"], None, None], 1, bytes_max=4000, bytes_wanted=2000)
    assert rest == b"\xa1t\xc0\xc0\x91\xc4\x01v\xc0\xc0"


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "ä", "a" * 250, "a/b"])
def test_what_is_no_topic_is_said_before_it_is_sent(topic: str) -> None:
    with pytest.raises(ValueError, match="not a topic"):
        check_topic(topic)


GATE = threading.Condition(threading.Lock())


def outcome(count: int, answer: Answer | None, error: Exception | None = None) -> FrameOutcome:
    made = FrameOutcome("orders", GATE)
    made.count = count
    _ = made.settle(answer, error)  # type: ignore[arg-type]
    return made


def test_offsets_follow_from_walking_each_partitions_runs() -> None:
    runs = [OffsetRun(1, 10, 2, -1), OffsetRun(0, 5, 1, -1), OffsetRun(1, 90, 1, 77), OffsetRun(0, -1, 1, -1)]
    one = outcome(5, Answer("delivered", runs, [1, 0, 1, 1, 0], (), single_replica=False))
    places = [RecordFuture(one, i).result() for i in range(5)]
    assert [place[1:4] for place in places] == [(1, 10, -1), (0, 5, -1), (1, 11, -1), (1, 90, 77), (0, -1, -1)]


def test_without_the_records_partitions_only_a_single_partition_tells_offsets() -> None:
    one = outcome(2, Answer("delivered", [OffsetRun(3, 10, 2, -1)], None, (), single_replica=False))
    assert RecordFuture(one, 1).result()[1:3] == (3, 11)
    two = outcome(
        2, Answer("delivered", [OffsetRun(3, 10, 1, -1), OffsetRun(4, 1, 1, -1)], None, (), single_replica=False)
    )
    assert RecordFuture(two, 1).result()[1:3] == (-1, -1)
    spooled = outcome(2, Answer("spooled", [], None, (), single_replica=False))
    assert RecordFuture(spooled, 1).result()[1:5] == (-1, -1, -1, "spooled")


def test_refused_records_take_no_offset_from_those_after_them() -> None:
    refused = [RefusedRange(0, 2, "parked", "too old")]
    one = outcome(4, Answer("delivered", [OffsetRun(0, 7, 2, -1)], [0, 0, 0, 0], refused, single_replica=False))
    assert [RecordFuture(one, i).result().offset for i in (2, 3)] == [7, 8]
    with pytest.raises(RefusedError, match="parked: too old"):
        _ = RecordFuture(one, 1).result()


def test_refusals_of_several_frames_are_named_by_the_record() -> None:
    fine = outcome(3, Answer("delivered", [], None, (), single_replica=False))
    parked = outcome(2, Answer("delivered", [], None, [RefusedRange(1, 1, "parked", "no")], single_replica=False))
    gone = outcome(4, None, RefusedError("no_space", "the disk is full", retry_ms=9))
    with pytest.raises(RefusedError) as caught:
        _ = FrameFuture([fine, parked, gone]).result()
    assert [one[:3] for one in caught.value.refused] == [(4, 1, "parked"), (5, 4, "no_space")]
    assert caught.value.retry_ms == 9
    unknown = outcome(1, None, OutcomeUnknownError("closed"))
    assert isinstance(FrameFuture([parked, unknown]).exception(), OutcomeUnknownError)


def test_a_callback_added_late_is_called_at_once_and_an_early_one_when_all_is_known() -> None:
    early, late = FrameOutcome("orders", GATE), outcome(1, Answer("accepted", [], None, (), single_replica=False))
    early.count = 1
    called: list[str] = []
    both = FrameFuture([late, early])
    both.add_done_callback(lambda _: called.append("both"))
    RecordFuture(late, 0).add_done_callback(lambda _: called.append("late"))
    assert called == ["late"]
    with pytest.raises(WaitTimeoutError):
        _ = both.result(0)
    for watcher in early.settle(Answer("accepted", [], None, (), single_replica=False), None):
        watcher()
    assert called == ["late", "both"]
    assert both.result(0).count == 2
