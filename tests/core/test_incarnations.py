"""Under which incarnation records are numbered: from the log to the bytes that shards send, whoever sends them."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.ledger.client_sequences import ClientStates
from penstock.daemon.ledger.entries import (
    AckedEntry,
    CheckpointEntry,
    FrameEntry,
    IncarnationEntry,
    PartitionEntry,
    SliceEntry,
    StampRowEntry,
    lsn,
)
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.ledger.replay import Replay
from penstock.wire import slices
from penstock.wire.frames import Code, Refused
from penstock.wire.messages import FIRST, Anchor, BatchBounds, StampRow
from penstock.wire.record_ids import ADDED_BYTES_MAX, HEADER, IdRow, RecordId

from tests.fakes.segments import NOW_MS
from tests.fakes.shard_bench import PRODUCER_ID, ShardBench

from .intake_world import World, facts, send
from .test_kernel_records import read_records

OLD, NEW = 0xAAAA_0000_0001, 0xBBBB_0000_0002
ANCHOR = Anchor(1, 2, 3, 4)


def frame(first: int, count: int, incarnation: int, *, wall_ms: int = 900, era: int = 0) -> FrameEntry:
    part = SliceEntry(0, first, count, 1, 0, 10)
    return FrameEntry(None, 7, first, -1, 2, wall_ms, count, None, [part], incarnation, era)


def begun(incarnation: int = OLD) -> list[Any]:
    return [
        IncarnationEntry(incarnation),
        PartitionEntry(0, "t", b"", 0),
        StampRowEntry(0, StampRow(9, 0, 0, 0), "new"),
    ]


def fold(*entries: Any) -> Ledger:
    ledger = Ledger()
    for entry in entries:
        ledger.apply(entry)
    return ledger


# --- the log ---------------------------------------------------------------------------------------------------------


def test_ordinals_given_out_before_keep_their_incarnation_and_later_ones_get_the_new() -> None:
    ledger = fold(*begun(), frame(0, 5, OLD), IncarnationEntry(NEW), frame(5, 2, NEW))
    assert ledger.by_number[0].id_rows == [IdRow(0, OLD), IdRow(5, NEW)]
    assert ledger.incarnation == NEW


def test_a_partition_that_comes_later_begins_under_the_incarnation_in_force() -> None:
    ledger = fold(*begun(), IncarnationEntry(NEW), PartitionEntry(1, "t", b"", 1))
    assert ledger.by_number[1].id_rows == [IdRow(0, NEW)]


def test_an_incarnation_of_no_ordinal_leaves_no_row() -> None:
    ledger = fold(*begun(), frame(0, 5, OLD), IncarnationEntry(3), IncarnationEntry(4), IncarnationEntry(NEW))
    assert ledger.by_number[0].id_rows == [IdRow(0, OLD), IdRow(5, NEW)]


def test_rows_below_the_mark_are_forgotten_but_for_the_last() -> None:
    ledger = fold(*begun(), frame(0, 5, OLD), IncarnationEntry(NEW), frame(5, 5, NEW))
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    assert ledger.by_number[0].id_rows == [IdRow(0, OLD), IdRow(5, NEW)]
    ledger.apply(AckedEntry(0, 5, ANCHOR, 0))
    assert ledger.by_number[0].id_rows == [IdRow(5, NEW)]
    ledger.apply(AckedEntry(0, 10, ANCHOR, 0))
    assert ledger.by_number[0].id_rows == [IdRow(5, NEW)]


def test_the_same_incarnation_told_again_changes_nothing() -> None:
    ledger = fold(*begun(), frame(0, 5, OLD, era=2), IncarnationEntry(OLD))
    assert (ledger.by_number[0].id_rows, ledger.era) == ([IdRow(0, OLD)], 2)


def test_a_new_incarnation_counts_steps_of_the_clock_anew_and_keeps_its_time() -> None:
    ledger = fold(*begun(), frame(0, 5, OLD, wall_ms=1_234, era=2), IncarnationEntry(NEW))
    assert (ledger.accept_ms, ledger.era) == (1_234, 0)


def test_a_frame_under_another_incarnation_than_the_one_in_force_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="another incarnation"):
        fold(*begun(), frame(0, 5, NEW))


# --- recovery --------------------------------------------------------------------------------------------------------


def replayed(*segments: list[Any], continuous: bool = True) -> Replay:
    replay = Replay(ClientStates(), now_ms=1_000, wall_ms=1_000)
    for number, entries in enumerate(segments):
        replay.begin_segment(continuous=continuous and number > 0)
        for place, entry in enumerate(entries):
            replay.add(lsn(number + 1, 64 * (place + 1)), entry, 20)
    return replay


def checkpoint_of(*entries: Any) -> CheckpointEntry:
    ledger = fold(*entries)
    return CheckpointEntry(ledger.snapshot(), [], ledger.incarnation, ledger.accept_ms, ledger.era)


def test_recovery_knows_the_incarnation_of_every_pending_record() -> None:
    log = [*begun(), frame(0, 5, OLD), IncarnationEntry(NEW), frame(5, 2, NEW, wall_ms=950, era=1)]
    for replay in (replayed(log), replayed([checkpoint_of(*log)])):
        ledger = replay.ledger
        assert ledger.by_number[0].id_rows == [IdRow(0, OLD), IdRow(5, NEW)]
        assert (ledger.incarnation, ledger.accept_ms, ledger.era) == (NEW, 950, 1)
        assert replay.repaired == 0


def test_where_the_entry_is_lost_its_frames_tell_the_incarnation() -> None:
    replay = replayed([*begun(), frame(0, 5, OLD)], [frame(5, 2, NEW)])
    assert replay.ledger.by_number[0].id_rows == [IdRow(0, OLD), IdRow(5, NEW)]
    assert (replay.ledger.incarnation, replay.repaired) == (NEW, 1)


def test_frames_written_again_behind_a_newer_incarnation_keep_their_own() -> None:
    log = [*begun(), frame(0, 5, OLD)]
    again = [checkpoint_of(*log), frame(0, 5, OLD), IncarnationEntry(NEW), frame(5, 1, NEW), frame(0, 5, OLD)]
    replay = replayed(log, again)
    assert replay.ledger.by_number[0].id_rows == [IdRow(0, OLD), IdRow(5, NEW)]
    assert (replay.ledger.incarnation, replay.repaired, replay.checkpoint_mismatches) == (NEW, 0, 0)


def test_a_spool_older_than_incarnations_gets_one_for_the_ordinals_that_follow() -> None:
    old = [PartitionEntry(0, "t", b"", 0), StampRowEntry(0, StampRow(9, 0, 0, 0), "new"), frame(0, 5, 0)]
    ledger = replayed(old).ledger
    assert (ledger.incarnation, ledger.by_number[0].id_rows) == (0, [])
    ledger.apply(IncarnationEntry(NEW))
    ledger.apply(frame(5, 1, NEW))
    assert ledger.by_number[0].id_rows == [IdRow(5, NEW)]


@given(st.data())
def test_any_prefix_of_the_log_numbers_what_it_holds_as_the_whole_did(data: st.DataObject) -> None:
    log: list[Any] = begun(1)
    given_out: list[int] = []
    incarnation, steps = 1, data.draw(st.lists(st.integers(0, 4), max_size=12))
    for step in steps:
        if step == 0:
            incarnation += 1
            log.append(IncarnationEntry(incarnation))
        else:
            log.append(frame(len(given_out), step, incarnation))
            given_out += [incarnation] * step
    cut = data.draw(st.integers(len(begun()), len(log)))
    lost = data.draw(st.sampled_from([None, *(at for at in range(3, cut) if isinstance(log[at], IncarnationEntry))]))
    ledger = replayed([entry for at, entry in enumerate(log[:cut]) if at != lost]).ledger
    state = ledger.by_number[0]
    for ordinal in range(state.next_ordinal):
        row = [row for row in state.id_rows if row.start <= ordinal][-1]
        assert row.incarnation == given_out[ordinal]


# --- intake ----------------------------------------------------------------------------------------------------------


def audited_world() -> World:
    w = World(audited=frozenset({"t"}))
    w.ledger.apply(IncarnationEntry(OLD))
    for topic in ("t", "plain"):
        w.topics.known[topic] = facts(topic)
    return w


def test_a_frame_says_under_which_incarnation_it_was_numbered_and_its_slices_that_they_carry_ids() -> None:
    w = audited_world()
    session = w.connect("app")
    for seq, topic in enumerate(("t", "plain")):
        assert w.offer(session, send(seq, topic=topic, timestamps=[5, 6]))
    told = [entry.incarnation for entry in w.store.entries if isinstance(entry, FrameEntry)]
    flags = [slices.read_header(payload).flags for (payload,) in w.store.payloads]
    assert told == [OLD, 0]
    assert flags == [slices.OWN_TIMESTAMPS | slices.RECORD_IDS, slices.OWN_TIMESTAMPS]


@pytest.mark.parametrize("topic", ["t", "plain"])
def test_a_record_that_brings_the_header_is_refused_on_every_topic(topic: str) -> None:
    w = audited_world()
    session = w.connect("app")
    w.told(session)
    assert w.offer(session, send(0, topic=topic, headers=[None, ["fine", b"", HEADER, b"x"]]))
    (told,) = w.told(session)
    assert isinstance(told, Refused)
    assert told.code == Code.RESERVED_HEADER
    assert w.offer(session, send(1, topic=topic, headers=[None, [HEADER.upper(), b"x", HEADER + "s", b"x"]]))
    assert w.told(session) == []


def test_what_is_taken_leaves_room_for_the_id() -> None:
    w = audited_world()
    session = w.connect("app")
    w.told(session)
    # key, value and headers with the varints before them: null, a length of three bytes, and no header.
    around = 1 + 3 + 1
    limit = 10_000
    for seq, (topic, size, taken) in enumerate(
        [
            ("plain", limit - around, True),
            ("plain", limit - around + 1, False),
            ("t", limit - around - ADDED_BYTES_MAX, True),
            ("t", limit - around - ADDED_BYTES_MAX + 1, False),
        ]
    ):
        assert w.offer(session, send(seq, topic=topic, values=[bytes(size)]))
        told = w.told(session)
        assert [getattr(one, "code", None) for one in told] == ([] if taken else [Code.TOO_LARGE]), (topic, size)


def test_a_smaller_limit_that_brokers_tell_leaves_room_too() -> None:
    w = audited_world()
    session = w.connect("app")
    for topic, room in (("t", 5_000 - ADDED_BYTES_MAX), ("plain", 5_000)):
        route = w.routing.update_topic(facts(topic)._replace(message_bytes_max=5_000))
        assert route.record_bytes_max == room
    assert session.hold is None


# --- the shard -------------------------------------------------------------------------------------------------------


def ids_of(batch: bytes) -> list[RecordId]:
    """The ids of a batch without compression; each record's last header."""
    (base_ts,) = struct.unpack_from(">q", batch, 27)
    found: list[RecordId] = []
    for _, row in read_records(batch[61:], base_ts):
        named = [(name, value) for name, value in row.headers if name == HEADER]
        assert named == row.headers[-1:]
        found.append(RecordId.unpack(named[0][1] or b""))
    return found


def test_a_batch_carries_the_ids_of_its_records_by_partition_ordinal_and_accept_time() -> None:
    bench = ShardBench()
    bench.grant(3, id_rows=[IdRow(0, OLD), IdRow(4, NEW)])
    bench.put(3, 4, ids=True)
    bench.put(3, 2, ids=True)
    (one,) = bench.send()
    ((_, first, count, data),) = one.copies
    assert (first, count) == (0, 6)
    incarnations = [OLD] * 4 + [NEW] * 2
    assert ids_of(data) == [RecordId(inc, 3, ordinal, NOW_MS) for ordinal, inc in enumerate(incarnations)]


def test_slices_that_were_taken_without_ids_are_sent_without() -> None:
    bench = ShardBench()
    bench.grant(id_rows=[IdRow(2, NEW)])
    bench.put(0, 2)
    bench.put(0, 1, ids=True)
    bench.put(0, 1)
    (one,) = bench.send()
    (base_ts,) = struct.unpack_from(">q", one.copies[0][3], 27)
    headers = [row.headers for _, row in read_records(one.copies[0][3][61:], base_ts)]
    assert headers == [[], [], [(HEADER, RecordId(NEW, 0, 2, NOW_MS).pack())], []]


@pytest.mark.parametrize("compress", ["none", "lz4"])
def test_a_cut_sent_again_by_another_shard_has_the_same_bytes(compress: Any) -> None:
    rows = [IdRow(0, OLD), IdRow(5, NEW)]
    bench = ShardBench(codec=compress)
    bench.grant(id_rows=rows)
    refs = [bench.ref(0, [b"value"] * part, ids=ids) for part, ids in ((5, True), (4, True), (3, False))]
    bench.hand(*refs)
    (one,) = bench.send()
    ((_, first, count, data),) = one.copies
    other = ShardBench(codec=compress, source=bench.source)
    other.grant(id_rows=rows, cuts=[BatchBounds(first, count, 0)])
    other.hand(*refs)
    (again,) = other.send()
    assert again.copies == one.copies
    assert data == again.copies[0][3]


def test_at_the_first_pace_every_record_has_its_own_id_as_well() -> None:
    bench = ShardBench()
    bench.grant(id_rows=[IdRow(0, OLD)], pace=FIRST, anchored=False)
    bench.put(0, 3, ids=True)
    (one,) = bench.send()
    assert ids_of(one.copies[0][3]) == [RecordId(OLD, 0, 0, NOW_MS)]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=6),
    st.integers(250, 900),
    st.integers(20, 300),
)
def test_whatever_batches_are_made_every_record_has_its_own_id_and_batches_keep_their_size(
    parts: list[tuple[int, bool]], batch_bytes: int, size: int
) -> None:
    bench = ShardBench(batch_bytes=batch_bytes)
    bench.grant(id_rows=[IdRow(0, OLD)])
    for count, ids in parts:
        bench.put(0, count, size=size, ids=ids)
    sent: list[tuple[int, int, bytes]] = []
    for _ in range(100):
        for one in bench.send():
            sent += [copy[1:] for copy in one.copies]
        if not bench.wire:
            break
        bench.answer()
    expected = [ids for count, ids in parts for _ in range(count)]
    assert sum(count for _, count, _ in sent) == len(expected)
    for first, count, data in sent:
        assert len(data) <= batch_bytes or count == 1
        (base_ts,) = struct.unpack_from(">q", data, 27)
        for place, (_, row) in enumerate(read_records(data[61:], base_ts)):
            name = RecordId(OLD, 0, first + place, NOW_MS)
            assert row.headers == ([(HEADER, name.pack())] if expected[first + place] else [])


def test_a_batch_too_large_for_its_broker_is_split_into_parts_with_the_same_ids() -> None:
    bench = ShardBench()
    bench.grant(id_rows=[IdRow(0, OLD)])
    bench.put(0, 8, size=60, ids=True)
    (one,) = bench.send()
    assert [count for _, _, count, _ in one.copies] == [8]
    bench.refuse(10)
    found: list[RecordId] = []
    for _ in range(20):
        for part in bench.send():
            found += [name for _, _, _, data in part.copies for name in ids_of(data)]
        if not bench.wire:
            break
        bench.answer()
    assert found == [RecordId(OLD, 0, ordinal, NOW_MS) for ordinal in range(8)]
    assert bench.log().states[PRODUCER_ID].last_sequence == 7


def test_a_slice_with_ids_of_no_known_incarnation_is_a_fault() -> None:
    bench = ShardBench()
    bench.grant(id_rows=[IdRow(5, OLD)])
    bench.put(0, 2, ids=True)
    with pytest.raises(AssertionError, match="nobody knows of which incarnation"):
        bench.send()
