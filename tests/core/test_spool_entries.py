"""Entries as bytes: every kind comes back as it went in, and wrong bytes raise the one error."""

import contextlib
from typing import Any

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.ledger.entries import (
    AckedEntry,
    BatchBoundsEntry,
    CheckpointEntry,
    FrameEntry,
    GrantedEntry,
    IncarnationEntry,
    Lsn,
    MinuteSnapshot,
    ParkedEntry,
    PartitionEntry,
    PartitionSnapshot,
    RangeSnapshot,
    RefusedEntry,
    SessionEntry,
    SliceEntry,
    StampRowEntry,
)
from penstock.daemon.ledger.entry_codec import (
    EntryType,
    SyncedEntry,
    VoidEntry,
    pack_control,
    pack_frame_meta,
    pack_minute,
    unpack,
    unpack_minute,
)
from penstock.daemon.ledger.segment_scan import (
    ENTRIES_AT,
    ENTRY,
    EntryHeaders,
    SegmentDamage,
    SegmentHeader,
    pack_segment_header,
    padded,
    read_segment_header,
    scan_segment,
)
from penstock.wire.errors import FrameError
from penstock.wire.messages import Anchor, BatchBounds, StampRow
from penstock.wire.record_ids import IdRow

SPOOL, SEGMENT = 0x1234_5678_9ABC, 7
ANCHOR = Anchor(1, 2, 3, 4)
SESSION = SessionEntry("client", 7, 9, [(1, 2), (4, 4)], 99)
SNAPSHOT = PartitionSnapshot(
    0,
    "topic",
    b"\x00" * 16,
    2,
    9,
    4,
    [StampRow(1, 0, 0, 0)],
    [BatchBounds(4, 2, 0)],
    True,
    8,
    ANCHOR,
    3,
    5,
    6,
    [(7, 1)],
    (IdRow(4, 7), IdRow(6, (1 << 48) - 1)),
)
MINUTE = MinuteSnapshot(
    "topic",
    29_000_000,
    0,
    True,
    [("too_large", 3)],
    [RangeSnapshot(4, 2, 10, 20, 15, -1, 900, 80, [(12, 13, "parked")])],
    [(1, 4, 80, 2, 0)],
)
WHOLE = CheckpointEntry([SNAPSHOT, SNAPSHOT._replace(partition=1, anchor=None, unknown_through=None)], [SESSION])
CONTROLS = [
    PartitionEntry(1, "topic", b"", 0),
    StampRowEntry(1, StampRow(1, 2, 3, 4), "bump"),
    GrantedEntry(1, 2, 3, 4, 5),
    BatchBoundsEntry(1, [BatchBounds(1, 2, 3)], facts=False, unknown_through=9),
    BatchBoundsEntry(1, [], facts=True, unknown_through=None),
    AckedEntry(1, 2, ANCHOR, -1),
    AckedEntry(1, 2, ANCHOR, -1, 3, 4, 1, 99),
    RefusedEntry("topic", 29_000_000, 1, [("too_large", 3)]),
    ParkedEntry(1, [(2, 3), (7, 1)], 10, "MESSAGE_TOO_LARGE", "letter"),
    SESSION,
    IncarnationEntry((1 << 48) - 1),
    WHOLE,
    CheckpointEntry([], []),
    CheckpointEntry([], [], 7, 99, 1, [pack_minute(MINUTE)]),
    SyncedEntry(Lsn(1 << 40)),
    VoidEntry(Lsn(5), Lsn(6)),
]
FRAME = FrameEntry(
    "client", 7, 3, 1, 2, 99, 5, b"\x00" * 20, [SliceEntry(0, 4, 3, 9, 0, 6), SliceEntry(1, 0, 2, 8, 6, 4)], 7, 1
)
PAYLOAD = b"abcdefghij"


def segment_of(*bodies: tuple[int, bytes], size: int = 4096) -> bytearray:
    """A segment file with these (kind, body) entries, as the spool writes them."""
    headers = EntryHeaders(SPOOL, SEGMENT)
    data = bytearray(pack_segment_header(SegmentHeader(SPOOL, SEGMENT, 1, 0)))
    for kind, body in bodies:
        data += headers.pack(len(data), kind, len(body), crc32c(body)) + body
        data += bytes(padded(len(data)) - len(data))
    return data + bytes(size - len(data))


@pytest.mark.parametrize("entry", CONTROLS, ids=lambda entry: type(entry).__name__)
def test_every_fact_comes_back_as_it_went_in(entry: Any) -> None:
    kind, body = pack_control(entry)
    back, payload = unpack(kind, body)
    assert (type(back), back, payload) == (type(entry), entry, 0)


@pytest.mark.parametrize("minute", [MINUTE, MINUTE._replace(ids=False, ranges=[], outcomes=[], refused=[])])
def test_a_minute_of_the_books_comes_back_as_it_went_in(minute: MinuteSnapshot) -> None:
    body = pack_minute(minute)
    assert unpack_minute(body) == minute
    for length in range(len(body)):
        with pytest.raises(FrameError):
            unpack_minute(body[:length])


def test_entries_of_spools_that_knew_less_are_read() -> None:
    kind, body = pack_control(AckedEntry(1, 2, ANCHOR, -1))
    shorter = msgpack.packb(msgpack.unpackb(body)[:4])
    assert unpack(kind, shorter)[0] == AckedEntry(1, 2, ANCHOR, -1)
    kind, body = pack_control(WHOLE)
    assert unpack(kind, msgpack.packb(msgpack.unpackb(body)[:2]))[0] == WHOLE


def test_a_checkpoint_comes_back_with_its_parts_typed() -> None:
    back, _ = unpack(*pack_control(WHOLE))
    assert isinstance(back, CheckpointEntry)
    first = back.partitions[0]
    assert (type(first.rows[0]), type(first.batch_bounds[0]), type(first.anchor)) == (StampRow, BatchBounds, Anchor)
    assert first.holes == [(7, 1)]


@pytest.mark.parametrize("entry", [FRAME, FRAME._replace(client_id=None, partitions=None)])
def test_a_frame_comes_back_with_the_place_of_its_payload(entry: FrameEntry) -> None:
    body = pack_frame_meta(entry) + PAYLOAD
    back, payload = unpack(EntryType.FRAME, body)
    assert back == entry
    assert body[payload:] == PAYLOAD


def test_a_slice_outside_its_frame_is_an_error() -> None:
    with pytest.raises(FrameError, match="outside"):
        unpack(EntryType.FRAME, pack_frame_meta(FRAME) + PAYLOAD[:-1])


@pytest.mark.parametrize("kind", [0, *EntryType, 14, 255])
@given(body=st.binary(max_size=64))
def test_any_bytes_give_an_entry_or_the_one_error(kind: int, body: bytes) -> None:
    with contextlib.suppress(FrameError):
        unpack(kind, body)


@pytest.mark.parametrize("entry", [*CONTROLS, FRAME], ids=lambda entry: type(entry).__name__)
def test_every_truncation_of_a_body_is_an_error(entry: Any) -> None:
    kind, body = (EntryType.FRAME, pack_frame_meta(entry) + PAYLOAD) if entry is FRAME else pack_control(entry)
    for length in range(len(body)):
        with pytest.raises(FrameError):
            unpack(kind, body[:length])


def test_a_segment_gives_back_its_entries_in_order() -> None:
    bodies = [pack_control(entry) for entry in CONTROLS]
    found = scan_segment(segment_of(*bodies), SPOOL, SEGMENT)
    assert [(raw.kind, bytes(raw.body)) for raw in found.entries] == bodies
    assert (found.damages, found.torn) == ([], None)
    assert found.end == found.entries[-1].offset + padded(ENTRY.size + len(bodies[-1][1]))


def test_a_segment_cut_at_any_byte_keeps_every_whole_entry() -> None:
    bodies = [pack_control(entry) for entry in CONTROLS]
    whole = segment_of(*bodies)
    ends = [raw.offset + ENTRY.size + len(raw.body) for raw in scan_segment(whole, SPOOL, SEGMENT).entries]
    for length in range(ends[-1] + 1):
        for data in (whole[:length], whole[:length] + bytes(len(whole) - length)):
            found = scan_segment(data, SPOOL, SEGMENT)
            assert len(found.entries) >= sum(1 for end in ends if end <= length)
            assert [(raw.kind, bytes(raw.body)) for raw in found.entries] == bodies[: len(found.entries)]
            assert found.damages == []


def test_a_flipped_bit_costs_the_entry_it_lies_in_and_no_other() -> None:
    bodies = [pack_control(entry) for entry in CONTROLS]
    whole = segment_of(*bodies)
    raws = scan_segment(whole, SPOOL, SEGMENT).entries
    for place in range(ENTRIES_AT, raws[-1].offset + ENTRY.size + len(raws[-1].body)):
        data = bytearray(whole)
        data[place] ^= 0x10
        hit = max(number for number, raw in enumerate(raws) if raw.offset <= place)
        padding = place >= raws[hit].offset + ENTRY.size + len(raws[hit].body)
        found = scan_segment(data, SPOOL, SEGMENT)
        kept = [body for number, body in enumerate(bodies) if padding or number != hit]
        assert [(raw.kind, bytes(raw.body)) for raw in found.entries] == kept, place
        if not padding and hit < len(raws) - 1:
            assert found.damages == [SegmentDamage(raws[hit].offset, raws[hit + 1].offset)]


@given(noise=st.binary(min_size=1, max_size=200), at=st.integers(0, 20))
def test_noise_between_entries_is_found_and_stepped_over(noise: bytes, at: int) -> None:
    whole = segment_of(*[pack_control(entry) for entry in CONTROLS])
    start = ENTRIES_AT + at * 8
    whole[start : start + len(noise)] = noise
    found = scan_segment(whole, SPOOL, SEGMENT)
    clean = {
        (raw.offset, bytes(raw.body))
        for raw in scan_segment(segment_of(*map(pack_control, CONTROLS)), SPOOL, SEGMENT).entries
    }
    assert {(raw.offset, bytes(raw.body)) for raw in found.entries} <= clean
    untouched = {(at, body) for at, body in clean if at >= start + len(noise) or at + ENTRY.size + len(body) <= start}
    assert untouched <= {(raw.offset, bytes(raw.body)) for raw in found.entries}


def test_an_entry_that_lies_elsewhere_is_not_taken_for_one() -> None:
    body = pack_control(CONTROLS[0])
    stranger = bytes(segment_of(body)[ENTRIES_AT : ENTRIES_AT + 64])
    shifted = segment_of((EntryType.FRAME, pack_frame_meta(FRAME._replace(slices=[])) + stranger * 3))
    damaged = bytearray(shifted)
    damaged[ENTRIES_AT] ^= 1
    assert scan_segment(damaged, SPOOL, SEGMENT).entries == []
    assert scan_segment(segment_of(body), SPOOL + 1, SEGMENT).entries == []
    assert scan_segment(segment_of(body), SPOOL, SEGMENT + 1).entries == []


def test_a_segment_header_tells_whose_it_is_or_what_is_wrong() -> None:
    header = SegmentHeader(SPOOL, SEGMENT, 5, 1 << 40, rewrites=True)
    data = pack_segment_header(header)
    assert read_segment_header(data) == header
    for place in range(len(data) - 12):
        with pytest.raises(FrameError):
            read_segment_header(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(FrameError, match="shorter"):
        read_segment_header(data[:-1])


def test_a_later_version_is_told_apart_from_damage() -> None:
    data = bytearray(pack_segment_header(SegmentHeader(SPOOL, SEGMENT, 5, 0)))
    data[8] = 2
    data[48:52] = crc32c(data[:48]).to_bytes(4, "little")
    with pytest.raises(FrameError, match="version 2") as caught:
        read_segment_header(data)
    assert caught.value.code == "version"
