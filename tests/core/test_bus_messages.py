"""Whatever a shard is made to say, the router says what is wrong with it and lives."""

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.wire.errors import FrameError
from penstock.wire.message_codec import VERSION, Envelope, decode, encode
from penstock.wire.messages import (
    BatchBounds,
    BatchesDone,
    BatchRefused,
    Credit,
    DoneBatch,
    Grant,
    NewLeaderHint,
    NodeLoad,
    Pace,
    PartitionHalted,
    PartitionLoad,
    ProbeRefused,
    RecordError,
    Revoked,
    ShardHello,
    ShardLoad,
    ShardMessage,
    SliceRef,
    Slices,
    SliceUnreadable,
    StampRow,
)
from penstock.wire.record_ids import IdRow

from tests.fakes.lease_desk import Desk

NUMBERS = st.one_of(st.integers(-3, 15), st.integers(-(1 << 63), (1 << 63) - 1))
SMALL = st.integers(-1, 12)
ANY = st.recursive(
    st.one_of(
        st.none(), st.booleans(), NUMBERS, st.text(max_size=3), st.binary(max_size=3), st.floats(allow_nan=False)
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=12,
)
PARTITION = st.integers(0, 2)
GENERATION = st.integers(0, 2)
CUTS = st.lists(st.builds(BatchBounds, SMALL, SMALL, st.integers(-1, 2)), max_size=4)
MESSAGES = st.one_of(
    st.builds(Credit, SMALL, NUMBERS),
    st.builds(
        BatchesDone,
        st.lists(
            st.builds(DoneBatch, PARTITION, GENERATION, SMALL, SMALL, NUMBERS, NUMBERS, NUMBERS, NUMBERS, SMALL, SMALL),
            max_size=3,
        ),
    ),
    st.builds(
        BatchRefused,
        PARTITION,
        GENERATION,
        SMALL,
        SMALL,
        st.integers(-2, 130),
        st.text(max_size=3),
        st.lists(st.builds(RecordError, SMALL, st.text(max_size=2)), max_size=3),
        st.booleans(),
    ),
    st.builds(NewLeaderHint, PARTITION, GENERATION, SMALL, SMALL),
    st.builds(Revoked, PARTITION, GENERATION, CUTS),
    st.builds(ProbeRefused, PARTITION, GENERATION, SMALL, st.text(max_size=3)),
    st.builds(PartitionHalted, PARTITION, GENERATION, st.integers(-2, 130), st.text(max_size=3)),
    st.builds(SliceUnreadable, PARTITION, GENERATION, NUMBERS, NUMBERS, SMALL, SMALL, st.text(max_size=3)),
)
ENVELOPE = Envelope(1, 2, 3, 4)


@pytest.mark.parametrize(
    "message",
    [
        ShardHello(1, 2, "journal", "digest"),
        Credit(1, 1 << 40),
        BatchesDone([DoneBatch(1, 2, 3, 4, 5, 6, -1, 8, 9, 10)]),
        BatchRefused(1, 2, 3, 4, 87, "why", [RecordError(3, "no key")], ambiguous=True),
        Revoked(1, 2, [BatchBounds(3, 4, 5)]),
        ShardLoad([NodeLoad(1, "ready", 0, 0, 0, 0, "", 0)], [PartitionLoad(1, 0, False, "running", 0, "")], {"a": 1}),
        Slices([SliceRef(1, 2, 3, 4, 5, 6, 7, 8, 9)]),
        Grant(
            1,
            "t",
            None,
            0,
            1,
            1,
            1,
            [StampRow(1, 0, 0, 0)],
            0,
            [BatchBounds(0, 1, 0)],
            "first",
            None,
            -1,
            5,
            [IdRow(0, 7)],
        ),
        Pace(1, 2, "open", None, -1),
    ],
)
def test_a_message_is_read_as_it_was_said(message: ShardMessage) -> None:
    assert decode(encode(ENVELOPE, message)) == (ENVELOPE, message)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_fault(data: bytes) -> None:
    with suppress(FrameError):
        envelope, _ = decode(data)
        assert isinstance(envelope, Envelope)


@given(st.integers(125, 141), st.lists(ANY, max_size=11))
def test_wrong_shapes_are_faults_and_right_ones_hold_what_they_say(number: int, fields: list[Any]) -> None:
    data = msgpack.packb([VERSION, *ENVELOPE, number, *fields])
    try:
        _, message = decode(data)
    except FrameError:
        return
    again = decode(encode(ENVELOPE, message))
    assert again == (ENVELOPE, message)


def test_a_number_where_a_text_belongs_is_named() -> None:
    data = msgpack.packb([VERSION, *ENVELOPE, 131, [[1, 2, "three", 4, 5, 6, 7, 8, 9, 10]]])

    with pytest.raises(FrameError, match=r"DoneBatch\.first is a str"):
        decode(data)


@given(st.lists(st.tuples(st.integers(0, 1), MESSAGES), min_size=1, max_size=12))
def test_whatever_shards_report_the_table_stands_and_never_has_two_holders(
    reports: list[tuple[int, ShardMessage]],
) -> None:
    desk = Desk()
    desk.partition(0)
    desk.partition(1)
    desk.up()
    desk.opened(0)
    desk.opened(1)
    for seat, message in reports:
        desk.say(seat, message)
        desk.settle()
        dead = {seat for seat, _ in desk.leases.shards_to_kill}
        for seat_killed in dead:
            desk.dead(seat_killed)
        desk.leases.shards_to_kill.clear()
        for seat_killed in dead:
            desk.shard(seat_killed)
        desk.settle()
        for state in desk.ledger.by_number.values():
            state.assert_consistent()
    ended = sum(one.slice.count for one in desk.ended)
    assert desk.pushed == ended + desk.leases.pending_records
