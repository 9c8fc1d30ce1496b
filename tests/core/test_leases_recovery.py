"""What a router makes of its spool and of the journals of dead shards, before it grants anything."""

import pytest
from penstock.daemon.leases.states import BlockReason
from penstock.daemon.ledger.entries import (
    BatchBoundsEntry,
    CheckpointEntry,
    FrameEntry,
    ParkedEntry,
    SliceEntry,
    StampRowEntry,
)
from penstock.daemon.ledger.partition_state import Ledger, LedgerHole
from penstock.daemon.ledger.slices import PendingSlice
from penstock.wire.journal import LIVE, JournalSlot
from penstock.wire.messages import FIRST, OPEN, BatchBounds, Grant, ProbeRefused, StampRow

from tests.fakes.lease_desk import WALL_OFFSET_MS, Desk, a_frame, of_kind, refs


@pytest.fixture
def desk() -> Desk:
    """Partition 0 has been opened: ordinal 0 is acknowledged, 1 to 9 are handed out."""
    made = Desk(seats=1)
    made.partition(0)
    made.up()
    made.opened(0)
    return made


def slot(first: int, count: int, *, serial: int = 1, epoch: int = 0) -> JournalSlot:
    return JournalSlot(serial, 0, 1, first, count, epoch, LIVE, 7)


def restart(desk: Desk, *slots: JournalSlot, facts: bool = True, lost: tuple[int, ...] = (), reason: str = "") -> None:
    """The router is another process: its tables come from the log."""
    snapshot = CheckpointEntry(desk.ledger.snapshot(), [])
    desk.ledger = Ledger()
    desk.ledger.apply(snapshot)
    desk.leases = desk.start()
    desk.leases.recover(slots, facts=facts, lost=lost)
    if reason:
        desk.leases.require_new_producer_id(reason)
    for state in desk.ledger.by_number.values():
        if state.next_ordinal > state.mark:
            count = state.next_ordinal
            desk.leases.push(
                PendingSlice(state.number, 0, count, 1, 0, 100, WALL_OFFSET_MS, 0, desk.log.step(), a_frame())
            )


def up(desk: Desk, producer_id: int = 7) -> Grant:
    desk.leases.set_producer_id(producer_id)
    desk.cluster((0, 1, 5), nodes=(1,))
    desk.shard(0)
    grants = of_kind(desk.settle(), Grant)
    return grants[0]


def test_cuts_of_a_journal_are_in_the_log_and_then_in_the_grant(desk: Desk) -> None:
    restart(desk, slot(1, 4), slot(5, 5, serial=2))

    assert [entry.batch_bounds for entry in desk.log.entries if isinstance(entry, BatchBoundsEntry)] == [
        [BatchBounds(1, 4, 0), BatchBounds(5, 5, 0)]
    ]
    grant = up(desk)
    assert (grant.generation, grant.cuts, grant.pace) == (2, [BatchBounds(1, 4, 0), BatchBounds(5, 5, 0)], OPEN)
    assert [ref.first for ref in refs(desk.said) if ref.generation == 2] == [0]


def test_a_second_restart_finds_the_cuts_in_the_spool(desk: Desk) -> None:
    restart(desk, slot(1, 4))
    restart(desk)

    assert up(desk).cuts == [BatchBounds(1, 4, 0)]


def test_nothing_is_granted_before_the_first_sync_covers_what_was_recovered(desk: Desk) -> None:
    restart(desk)
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 5), nodes=(1,))
    desk.shard(0)

    assert of_kind(desk.round(sync=False), Grant) == []
    assert desk.leases.needs_sync
    assert len(of_kind(desk.settle(), Grant)) == 1


def search(desk: Desk, *refused: int, taken: int, log_start: int = 0) -> list[BatchBounds]:
    """Answer the trials: these first ordinals are refused, at last one is taken. Returns what was tried."""
    tried: list[BatchBounds] = []
    for _ in range(50):
        grant = desk.held(0)
        tried.append(grant.cuts[0])
        if len(tried) > len(refused):
            assert grant.cuts[0].first == taken
            desk.done(grant, grant.cuts[0].first, grant.cuts[0].count, base_offset=500, log_start=log_start)
            desk.settle()
            return tried
        assert grant.cuts[0].first == refused[len(tried) - 1]
        desk.say(0, ProbeRefused(0, grant.generation, 5, "OUT_OF_ORDER"))
        desk.settle()
        desk.revoked(grant, grant.cuts[0])
        desk.settle()
    raise AssertionError(tried)


def test_after_a_power_cut_the_end_of_the_log_is_found_by_trying_one_record_after_the_other(desk: Desk) -> None:
    restart(desk, slot(1, 4), facts=False)
    grant = up(desk)
    assert (grant.next_ordinal, grant.cuts, grant.pace) == (1, [BatchBounds(1, 1, 0)], OPEN)

    search(desk, 1, 2, 3, 4, taken=5)

    assert desk.ledger.by_number[0].mark == 6
    assert desk.leases.alarms == {}
    assert refs(desk.said)[-1].generation == desk.held(0).generation


def test_a_log_that_ends_with_the_last_record_is_found_by_its_last_batch(desk: Desk) -> None:
    restart(desk, facts=False)
    up(desk)

    tried = search(desk, *range(1, 10), 8, 7, taken=6)

    assert tried[-3:] == [BatchBounds(8, 2, 0), BatchBounds(7, 3, 0), BatchBounds(6, 4, 0)]
    assert desk.ledger.by_number[0].mark == 10
    assert desk.leases.pending_records == 0


def test_a_newer_record_ends_the_search_where_there_is_one(desk: Desk) -> None:
    restart(desk, facts=False)
    desk.push(0, 5)
    up(desk)

    search(desk, *range(1, 10), taken=10)

    assert desk.ledger.by_number[0].mark == 11
    assert desk.leases.find(0).state.value != "blocked"


def test_a_search_that_finds_nothing_waits_for_people(desk: Desk) -> None:
    restart(desk, facts=False)
    grant = up(desk)
    for _ in range(17):
        desk.say(0, ProbeRefused(0, grant.generation, 5, "OUT_OF_ORDER"))
        desk.settle()
        desk.revoked(grant, grant.cuts[0])
        desk.settle()
        grant = desk.held(0)

    assert desk.leases.alarms[0].why is BlockReason.GAP
    assert desk.leases.counters["grants"] == 17
    assert desk.leases.pending_records == 10


def test_a_success_by_a_broker_that_may_have_forgotten_us_proves_nothing(desk: Desk) -> None:
    restart(desk, facts=False)
    grant = up(desk)

    desk.done(grant, 1, 1, base_offset=500, log_start=400)
    desk.settle()
    desk.revoked(grant)
    desk.settle()

    assert desk.leases.alarms[0].why is BlockReason.BATCH_BOUNDS_UNKNOWN
    assert desk.ledger.by_number[0].mark == 1


def test_another_leader_begins_the_search_anew(desk: Desk) -> None:
    restart(desk, facts=False)
    grant = up(desk)
    desk.say(0, ProbeRefused(0, grant.generation, 5, "OUT_OF_ORDER"))
    desk.settle()
    desk.revoked(grant, grant.cuts[0])
    desk.settle()
    grant = desk.held(0)
    assert grant.cuts == [BatchBounds(2, 1, 0)]

    desk.cluster((0, 1, 6), nodes=(1,))
    desk.settle()
    desk.revoked(grant, grant.cuts[0])

    assert of_kind(desk.settle(), Grant)[0].cuts == [BatchBounds(1, 1, 0)]


def test_what_was_sent_in_an_uncertain_range_widens_it_when_it_is_refused(desk: Desk) -> None:
    restart(desk, facts=False)
    desk.push(0, 10)
    up(desk)
    search(desk, 1, taken=2)
    grant = desk.held(0)

    desk.say(0, ProbeRefused(0, grant.generation, 5, "OUT_OF_ORDER"))
    desk.settle()
    desk.revoked(grant, BatchBounds(3, 12, 0))

    assert of_kind(desk.settle(), Grant)[0].cuts == [BatchBounds(3, 1, 0)]
    assert desk.ledger.by_number[0].unknown_through == 14


def test_nothing_is_parked_while_the_range_is_uncertain(desk: Desk) -> None:
    restart(desk, facts=False)
    grant = up(desk)

    desk.refused(grant, 1, 1, 87)
    desk.settle()
    desk.revoked(grant)
    desk.settle()

    assert desk.leases.dead_letter_requests == []
    assert desk.leases.alarms[0].why is BlockReason.AMBIGUOUS


def test_after_a_power_cut_the_one_record_that_can_be_out_is_sent_again() -> None:
    desk = Desk(seats=1)
    desk.partition(0)
    desk.up()
    desk.granted(0)
    restart(desk, facts=False)

    grant = up(desk)

    assert (grant.pace, grant.next_ordinal, grant.cuts) == (FIRST, 0, [BatchBounds(0, 1, 0)])


def test_after_a_power_cut_a_partition_with_nothing_open_goes_on(desk: Desk) -> None:
    desk.done(desk.held(0), 1, 9)
    desk.settle()
    restart(desk, facts=False)
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 5), nodes=(1,))
    desk.shard(0)
    desk.push(0, 3)

    assert of_kind(desk.settle(), Grant)[0].next_ordinal == 10


def test_a_partition_that_was_never_allowed_to_send_is_certain_whatever_happened() -> None:
    desk = Desk(seats=1)
    desk.partition(0)
    desk.push(0, 10)
    restart(desk, facts=False)

    assert up(desk).cuts == []


def test_cuts_that_contradict_each_other_are_hints(desk: Desk) -> None:
    restart(desk, slot(0, 5))

    assert up(desk).cuts == [BatchBounds(1, 1, 0)]
    assert desk.ledger.by_number[0].unknown_through == 9


def test_a_new_identity_gives_every_partition_a_row_under_the_new_id_and_counts(desk: Desk) -> None:
    restart(desk, slot(1, 4), reason="the spool was copied")

    grant = up(desk, producer_id=8)

    assert (grant.rows, grant.cuts, grant.pace, grant.anchor) == ([StampRow(8, 0, 1, 1)], [], FIRST, None)
    assert desk.leases.counters["possible_duplicates"] == 9
    assert [notice.text for notice in desk.leases.notices] == ["the spool was copied"]


def test_nothing_is_granted_under_the_old_id_while_a_new_identity_is_waited_for(desk: Desk) -> None:
    restart(desk, slot(1, 4), reason="the spool was copied")
    desk.cluster((0, 1, 5), nodes=(1,))
    desk.shard(0)

    assert of_kind(desk.settle(), Grant) == []
    assert desk.leases.needs_producer_id
    desk.leases.set_producer_id(8)

    (grant,) = of_kind(desk.settle(), Grant)
    assert grant.rows == [StampRow(8, 0, 1, 1)]
    assert desk.leases.counters["possible_duplicates"] == 9


def test_a_topic_made_again_is_noticed_again_when_the_router_ends_before_the_new_id(desk: Desk) -> None:
    restart(desk, slot(1, 4))
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 0), topic_id=b"\x02" * 16)
    assert of_kind(desk.settle(), Grant) == []
    assert desk.leases.needs_producer_id
    restart(desk)
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 0), nodes=(1,), topic_id=b"\x02" * 16)
    desk.shard(0)

    assert of_kind(desk.settle(), Grant) == []
    desk.leases.set_producer_id(8)

    (grant,) = of_kind(desk.settle(), Grant)
    assert (grant.topic_id, grant.rows, grant.cuts) == (b"\x02" * 16, [StampRow(8, 0, 1, 1)], [])
    assert desk.leases.counters["possible_duplicates"] == 4


def test_ordinals_lost_with_damage_are_a_hole_behind_a_new_epoch(desk: Desk) -> None:
    desk.done(desk.held(0), 1, 9)
    desk.settle()
    entry = SliceEntry(0, 10, 10, WALL_OFFSET_MS, 0, 100)
    desk.ledger.apply(FrameEntry("app", 1000, 0, -1, 2, 0, 10, None, [entry]))
    desk.ledger.mark_lost(0, [LedgerHole(13, 2)], "quarantined")
    restart(desk, lost=(0,))

    assert up(desk).rows == [StampRow(7, 1, 10, 10), StampRow(7, 1, 15, 12)]
    assert desk.leases.counters["producer_epoch_bumps"] == 1


def test_ordinals_lost_at_the_mark_need_a_new_epoch_too(desk: Desk) -> None:
    desk.done(desk.held(0), 1, 9)
    desk.settle()
    entry = SliceEntry(0, 10, 10, WALL_OFFSET_MS, 0, 100)
    desk.ledger.apply(FrameEntry("app", 1000, 0, -1, 2, 0, 10, None, [entry]))
    desk.ledger.mark_lost(0, [LedgerHole(10, 4)], "quarantined")
    restart(desk, lost=(0,))

    grant = up(desk)

    assert (grant.rows, grant.next_ordinal) == ([StampRow(7, 1, 14, 14)], 14)


def test_ordinals_lost_among_what_may_be_out_go_on_under_another_id_counted(desk: Desk) -> None:
    desk.ledger.mark_lost(0, [LedgerHole(3, 2)], "quarantined")
    restart(desk, slot(1, 9), lost=(0,))
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 5), nodes=(1,))
    desk.shard(0)
    assert of_kind(desk.settle(), Grant) == []
    assert desk.leases.needs_producer_id

    desk.leases.set_producer_id(8)

    grant = of_kind(desk.settle(), Grant)[0]
    assert (grant.rows, grant.cuts, grant.pace) == ([StampRow(8, 0, 1, 1), StampRow(8, 0, 5, 3)], [], FIRST)
    assert desk.leases.counters["possible_duplicates"] == 9


def parked_in_steps(steps: int) -> Desk:
    """The entries of one parking, of which a power cut left the first few: record 3 of the batch [1, 10) is parked."""
    desk = Desk(seats=1)
    desk.partition(0)
    desk.up()
    grant = desk.opened(0)
    desk.refused(grant, 1, 9, 87, record_errors=[(2, "no")])
    desk.revoked(grant, BatchBounds(1, 9, 0))
    desk.settle()
    snapshot = CheckpointEntry(desk.ledger.snapshot(), [])
    before = len(desk.log.entries)
    desk.leases.dead_lettered(desk.leases.dead_letter_requests.pop(), "letter", desk.now)
    written = desk.log.entries[before:]
    assert [type(entry) for entry in written] == [StampRowEntry, ParkedEntry, StampRowEntry, BatchBoundsEntry]
    desk.ledger = Ledger()
    desk.ledger.apply(snapshot)
    for entry in written[:steps]:
        desk.ledger.apply(entry)
    return desk


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        (0, [StampRow(7, 0, 0, 0)]),
        (1, [StampRow(7, 1, 1, 1)]),
        (2, [StampRow(7, 2, 1, 1), StampRow(7, 2, 4, 2)]),
        (3, [StampRow(7, 1, 1, 1), StampRow(7, 1, 4, 2)]),
        (4, [StampRow(7, 1, 1, 1), StampRow(7, 1, 4, 2)]),
    ],
)
def test_a_parking_torn_by_the_end_of_the_router_skips_nothing_and_sends_nothing_parked(
    steps: int, rows: list[StampRow]
) -> None:
    desk = parked_in_steps(steps)
    restart(desk)

    grant = up(desk)

    assert grant.rows == rows
    assert grant.cuts == ([BatchBounds(1, 9, 0)] if steps == 0 else [])


def test_what_was_parked_before_a_restart_is_told_when_its_slice_ends() -> None:
    desk = parked_in_steps(4)
    restart(desk)
    grant = up(desk)

    desk.done(grant, 1, 2)
    desk.done(grant, 4, 6)
    desk.settle()

    (ended,) = desk.ended
    assert [(index, count) for index, count, _ in ended.parked] == [(3, 1)]
    assert [(run.offset, run.count) for run in ended.runs] == [(-1, 1), (1, 2), (4, 6)]
