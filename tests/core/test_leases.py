"""The lease table, row by row (17.1)."""

import pytest
from penstock.daemon.leases.shard_slots import SHARD_SLOT_TRANSITIONS, ShardSlotState
from penstock.daemon.leases.states import LEASE_TRANSITIONS, POSSIBLY_HELD, BlockReason, LeaseState
from penstock.daemon.ledger.entries import AckedEntry, BatchBoundsEntry, GrantedEntry, Lsn, StampRowEntry
from penstock.wire.messages import (
    FIRST,
    OPEN,
    BatchBounds,
    BatchesDone,
    FlushPartitions,
    Grant,
    Move,
    NewLeaderHint,
    Nodes,
    Pace,
    PartitionHalted,
    ProbeRefused,
    Revoke,
    Revoked,
    ShardFailed,
    ShardLoad,
    SliceUnreadable,
    StampRow,
    Stop,
)

from tests.fakes.lease_desk import Desk, done_item, of_kind, refs

TOO_LARGE = 10
NOT_ALLOWED = 29
INVALID_RECORD = 87


@pytest.fixture
def desk() -> Desk:
    """Partitions 0 (node 1, seat 0) and 1 (node 2, seat 1), everything up."""
    made = Desk()
    made.partition(0)
    made.partition(1)
    made.up()
    return made


def state(desk: Desk, number: int = 0) -> str:
    index = desk.ledger.by_number[number].index
    return next(lease.state.value for lease in desk.leases.all() if lease.durable.index == index)


def test_every_state_has_a_row_and_leads_only_to_states() -> None:
    assert set(LEASE_TRANSITIONS) == set(LeaseState)
    assert set(SHARD_SLOT_TRANSITIONS) == set(ShardSlotState)
    assert LeaseState.HELD not in set().union(*(LEASE_TRANSITIONS[held] for held in POSSIBLY_HELD))


def test_a_slice_goes_from_push_to_its_end(desk: Desk) -> None:
    piece = desk.push(0, 10)

    said = desk.settle()

    grant = of_kind(said, Grant)[0]
    assert (grant.pace, grant.next_ordinal, grant.generation) == (FIRST, 0, 1)
    assert [(ref.first, ref.count) for ref in refs(said)] == [(0, 10)]
    desk.done(grant, 0, 1)
    assert of_kind(desk.settle(), Pace)[0].pace == OPEN
    desk.done(grant, 1, 9)
    desk.settle()
    assert [one.slice for one in desk.ended] == [piece]
    assert [(run.offset, run.count) for run in desk.ended[0].runs] == [(0, 1), (1, 9)]


def test_a_shard_hears_of_its_nodes_before_any_grant(desk: Desk) -> None:
    desk.push(0, 1)

    said = [(seat, type(message)) for seat, message in desk.settle()]

    assert said.index((0, Nodes)) < said.index((0, Grant))


# --- UNPLACED: granted only when everything is there -----------------------------------------------------------------


def test_nothing_is_granted_without_a_producer_id() -> None:
    desk = Desk()
    desk.partition(0)
    desk.cluster((0, 1, 5))
    desk.shard(0)
    desk.push(0, 1)
    assert of_kind(desk.settle(), Grant) == []
    assert desk.leases.needs_producer_id

    desk.leases.set_producer_id(7)

    assert of_kind(desk.settle(), Grant)[0].rows == [StampRow(7, 0, 0, 0)]
    assert not desk.leases.needs_producer_id


def test_nothing_is_granted_before_its_stamp_row_is_synced(desk: Desk) -> None:
    desk.push(0, 1)
    place = desk.log.place

    assert of_kind(desk.round(sync=False), Grant) == []
    assert desk.leases.needs_sync
    desk.leases.synced(Lsn(place))
    assert of_kind(desk.round(sync=False), Grant) == []
    desk.leases.synced(Lsn(place + 1))
    assert len(of_kind(desk.round(sync=False), Grant)) == 1


def test_nothing_is_granted_to_a_shard_without_its_journal() -> None:
    desk = Desk()
    desk.partition(0)
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 5))
    desk.leases.shard_connected(0, desk.now)
    desk.push(0, 1)
    assert of_kind(desk.settle(), Grant) == []

    desk.leases.shard_ready(0, desk.now)

    assert len(of_kind(desk.settle(), Grant)) == 1


def test_nothing_is_granted_without_a_leader(desk: Desk) -> None:
    desk.partition(2)
    desk.push(2, 1)
    assert of_kind(desk.settle(), Grant) == []

    desk.cluster((2, 2, 0))

    assert desk.settle()
    assert desk.seat_of(2) == 1


@pytest.mark.row("J20")
def test_a_leader_older_than_the_spool_knows_is_not_believed(desk: Desk) -> None:
    entry = GrantedEntry(0, 1, 0, 1, 9)
    desk.ledger.apply(entry)
    desk.push(0, 1)
    assert of_kind(desk.settle(), Grant) == []

    desk.cluster((0, 2, 9))

    assert of_kind(desk.settle(), Grant)[0].leader_epoch == 9
    assert desk.seat_of(0) == 1


# --- what is handed out ----------------------------------------------------------------------------------------------


def test_a_slice_is_handed_out_only_when_it_is_synced(desk: Desk) -> None:
    desk.granted(0, 1)
    desk.push(0, 5)

    assert refs(desk.round(sync=False)) == []
    assert desk.leases.needs_sync
    assert [ref.first for ref in refs(desk.round())] == [1]


def test_credit_is_a_running_total_and_never_exceeded() -> None:
    desk = Desk()
    desk.partition(0)
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 5))
    desk.shard(0, credit=250)
    for _ in range(5):
        desk.push(0, 1)

    assert [ref.first for ref in refs(desk.settle())] == [0, 1]
    desk.shard_credit(0, 1, 200)
    assert refs(desk.settle()) == []
    desk.shard_credit(0, 1, 400)
    assert [ref.first for ref in refs(desk.settle())] == [2, 3]


def test_partitions_of_one_node_share_its_credit_in_turns() -> None:
    desk = Desk(seats=1)
    desk.partition(0)
    desk.partition(1)
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 5), (1, 1, 5), nodes=(1,))
    desk.shard(0, credit=0)
    for _ in range(8_000):
        desk.push(0, 1)
    desk.push(1, 1)
    desk.settle()

    desk.shard_credit(0, 1, 300_000)

    handed = [ref.partition for ref in refs(desk.settle())]
    assert handed[-1] == 1
    assert handed.count(1) == 1
    assert handed.count(0) == 2_621


def test_many_references_go_in_messages_of_bounded_size(desk: Desk) -> None:
    for _ in range(5_000):
        desk.push(0, 1)

    said = desk.settle()

    assert [ref.first for ref in refs(said)] == list(range(5_000))
    assert max(len(message.refs) for _, message in said if hasattr(message, "refs")) <= 4_096


def test_a_flush_is_told_once_everything_it_covers_is_handed_out(desk: Desk) -> None:
    desk.granted(0, 5)
    desk.push(0, 5)
    desk.leases.flush([(0, 9)])
    assert of_kind(desk.round(sync=False), FlushPartitions) == []

    assert of_kind(desk.settle(), FlushPartitions) == [FlushPartitions([(0, 9)])]
    assert of_kind(desk.settle(), FlushPartitions) == []


# --- HELD: acknowledged ----------------------------------------------------------------------------------------------


def test_the_pace_opens_only_after_the_first_acknowledgement_is_synced(desk: Desk) -> None:
    grant = desk.granted(0)
    desk.done(grant, 0, 1)

    assert of_kind(desk.round(sync=False), Pace) == []
    pace = of_kind(desk.settle(), Pace)[0]

    assert pace.pace == OPEN
    assert pace.anchor is not None
    assert pace.anchor.base_offset == 0


def test_an_acknowledgement_resolves_everything_older(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.push(0, 10)
    desk.settle()

    desk.done(grant, 15, 5)

    desk.settle()
    runs = [(run.offset, run.count) for one in desk.ended for run in one.runs]
    assert runs == [(0, 1), (-1, 9), (-1, 5), (15, 5)]
    assert desk.ledger.by_number[0].mark == 20


def test_several_batches_of_a_partition_in_one_message_make_one_entry(desk: Desk) -> None:
    grant = desk.opened(0)
    before = len(desk.log.entries)

    desk.say(0, BatchesDone([done_item(grant, 1, 4), done_item(grant, 5, 5)]))

    written = desk.log.entries[before:]
    assert [type(entry) for entry in written] == [AckedEntry]
    assert desk.ledger.by_number[0].mark == 10


def test_a_slice_that_spans_batches_tells_every_run(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.done(grant, 1, 4, base_offset=100)
    desk.done(grant, 5, 5, base_offset=200)

    desk.settle()

    assert [(run.offset, run.count) for run in desk.ended[0].runs] == [(0, 1), (100, 4), (200, 5)]


def test_an_acknowledgement_of_an_older_generation_is_dropped_and_counted(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.say(0, BatchesDone([done_item(grant._replace(generation=0), 1, 9)]))

    assert desk.ledger.by_number[0].mark == 1
    assert desk.leases.counters["stale_messages"] == 1


def test_an_acknowledgement_from_a_shard_that_does_not_hold_it_is_dropped(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.say(1, BatchesDone([done_item(grant, 1, 9)]))

    assert desk.ledger.by_number[0].mark == 1


def test_an_acknowledgement_of_what_was_never_handed_out_kills_the_shard(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.done(grant, 1, 10)

    assert [seat for seat, _ in desk.leases.shards_to_kill] == [0]
    assert state(desk) == "fencing"
    assert desk.ledger.by_number[0].mark == 1


def test_a_success_below_the_anchors_offset_is_not_believed(desk: Desk) -> None:
    grant = desk.granted(0)
    desk.done(grant, 0, 1, base_offset=500)
    desk.settle()

    desk.done(grant, 1, 9, base_offset=3)

    assert desk.ledger.by_number[0].mark == 1
    desk.settle()
    desk.revoked(grant)
    desk.settle()
    assert state(desk) == "blocked"
    assert desk.leases.alarms[0].why is BlockReason.OFFSET
    assert desk.ledger.by_number[0].batch_bounds == [BatchBounds(1, 9, 0)]
    assert desk.leases.stale_topics == {"orders"}


def test_a_log_start_above_the_anchor_makes_the_pace_be_told_again(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.done(grant, 1, 1, base_offset=50, log_start=40)

    assert [pace.pace for pace in of_kind(desk.settle(), Pace)] == [OPEN]


def test_the_pace_stays_first_while_the_log_start_is_above_the_acknowledged_batch(desk: Desk) -> None:
    grant = desk.granted(0)

    desk.done(grant, 0, 1, base_offset=5, log_start=6)

    assert [pace.pace for pace in of_kind(desk.settle(), Pace)] == [FIRST]


# --- leaders and nodes -----------------------------------------------------------------------------------------------


def test_a_newer_leader_at_the_same_shard_is_a_move(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster(nodes=(1, 2, 3))

    desk.cluster((0, 3, 6), nodes=(1, 2, 3))

    moves = of_kind(desk.settle(), Move)
    assert moves == [Move(0, grant.generation, 3, 6)]
    assert desk.ledger.by_number[0].leader_epoch == 6


def test_a_newer_leader_at_another_shard_is_revoke_then_grant_with_the_cuts(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 6))
    said = desk.settle()
    assert of_kind(said, Revoke) == [Revoke(0, grant.generation)]
    assert of_kind(said, Grant) == []

    desk.revoked(grant, BatchBounds(1, 4, 0), BatchBounds(5, 5, 0))

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.generation, again.node, again.next_ordinal) == (2, 2, 1)
    assert again.cuts == [BatchBounds(1, 4, 0), BatchBounds(5, 5, 0)]
    assert desk.seat_of(0) == 1
    assert [ref.generation for ref in refs(desk.said) if ref.partition == 0] == [1, 2]


def test_cuts_are_in_the_log_before_the_next_grant(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 6))
    desk.settle()
    desk.revoked(grant, BatchBounds(1, 4, 0))
    desk.settle()

    kinds = [type(entry) for entry in desk.log.entries]

    assert kinds[-2:] == [BatchBoundsEntry, GrantedEntry]


def test_an_older_or_equal_leader_changes_nothing(desk: Desk) -> None:
    desk.opened(0)

    desk.cluster((0, 2, 4))
    desk.cluster((0, 2, 5))

    assert desk.settle() == []


def test_an_unknown_leader_leaves_the_lease_where_it_is(desk: Desk) -> None:
    desk.opened(0)

    desk.cluster((0, -1, 6))
    assert desk.settle() == []

    desk.cluster((0, 2, 7))
    assert len(of_kind(desk.settle(), Revoke)) == 1


def test_a_node_that_leaves_the_cluster_takes_its_leases_with_it(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster(nodes=(2,))
    said = desk.settle()
    assert len(of_kind(said, Revoke)) == 1

    desk.revoked(grant, BatchBounds(1, 9, 0))

    assert of_kind(desk.settle(), Grant) == []
    assert state(desk) == "unassigned"


def test_a_hint_moves_a_lease_and_asks_for_metadata(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.say(0, NewLeaderHint(0, grant.generation, 2, 6))

    assert len(of_kind(desk.settle(), Revoke)) == 1
    assert desk.leases.stale_topics == {"orders"}


def test_an_equal_hint_only_asks_for_metadata(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.say(0, NewLeaderHint(0, grant.generation, 2, 5))

    assert desk.settle() == []
    assert desk.leases.stale_topics == {"orders"}


def test_an_acknowledgement_that_crosses_a_revoke_counts(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 6))
    desk.settle()

    desk.done(grant, 1, 4)
    desk.revoked(grant, BatchBounds(5, 5, 0))

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.next_ordinal, again.cuts) == (5, [BatchBounds(5, 5, 0)])


def test_the_leader_moves_again_before_the_lease_is_back(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 6))
    desk.settle()
    desk.cluster((0, 1, 7))
    desk.settle()

    desk.revoked(grant)

    assert of_kind(desk.settle(), Grant)[0].leader_epoch == 7
    assert desk.seat_of(0) == 0


def test_a_shard_that_gives_nothing_back_is_killed(desk: Desk) -> None:
    desk.opened(0)
    desk.cluster((0, 2, 6))
    desk.settle()
    assert desk.leases.shards_to_kill == []

    desk.now += 10.1
    desk.settle()

    assert [seat for seat, _ in desk.leases.shards_to_kill] == [0]
    assert state(desk) == "fencing"


def test_cuts_that_were_never_handed_out_kill_the_shard(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 6))
    desk.settle()

    desk.revoked(grant, BatchBounds(5, 6, 0))

    assert [seat for seat, _ in desk.leases.shards_to_kill] == [0]
    assert of_kind(desk.settle(), Grant) == []


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_a_dead_shards_partitions_wait_for_its_return(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.dead(0, desk.slot(grant, 1, 9))
    assert of_kind(desk.settle(), Grant) == []

    desk.now += 2.0
    desk.shard(0)

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.generation, again.cuts) == (2, [BatchBounds(1, 9, 0)])
    assert desk.seat_of(0) == 0


def test_after_the_wait_others_take_over_its_nodes(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.dead(0, desk.slot(grant, 1, 9))
    desk.settle()
    assert desk.leases.next_deadline() == pytest.approx(desk.now + 3.0)

    desk.now += 3.0

    said = desk.settle()
    assert of_kind(said, Grant)[0].cuts == [BatchBounds(1, 9, 0)]
    assert desk.seat_of(0) == 1
    assert [node.node for node in of_kind(said, Nodes)[0].nodes] == [1, 2]


def test_a_shard_that_returns_late_gets_its_share_of_nodes_back(desk: Desk) -> None:
    desk.opened(0)
    desk.opened(1)
    desk.dead(0)
    desk.now += 3.0
    desk.settle()
    assert desk.leases_of_seat(1) == [0, 1]

    desk.shard(0)
    revoked = of_kind(desk.settle(), Revoke)[0]
    desk.say(1, Revoked(revoked.partition, revoked.generation, []))
    desk.settle()

    assert len(desk.leases_of_seat(0)) == len(desk.leases_of_seat(1)) == 1


def test_nothing_is_granted_while_the_holder_is_not_reaped(desk: Desk) -> None:
    desk.opened(0)
    desk.leases.shard_dying(0, desk.now)
    desk.cluster((0, 2, 6))
    desk.now += 60.0

    assert of_kind(desk.settle(), Grant) == []
    assert state(desk) == "fencing"


def test_what_a_dead_shard_was_told_does_not_reach_its_successor(desk: Desk) -> None:
    desk.opened(0)
    desk.push(0, 1)
    desk.leases.synced(Lsn(desk.log.place))
    desk.leases.tick(desk.now)
    desk.leases.hand_out(desk.now)
    assert desk.leases.outbox

    desk.dead(0)

    assert [seat for seat, _ in desk.leases.outbox if seat == 0] == []


def test_a_shard_that_says_it_is_broken_is_killed(desk: Desk) -> None:
    desk.opened(0)

    desk.say(0, ShardFailed("a tag"))

    assert desk.leases.shards_to_kill == [(0, "it broke: a tag")]


def test_a_shard_that_dies_before_it_gives_back_counts_with_its_journal(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 6))
    desk.settle()

    desk.dead(0, desk.slot(grant, 1, 4))

    again = of_kind(desk.settle(), Grant)[0]
    assert again.cuts == [BatchBounds(1, 4, 0)]
    assert desk.seat_of(0) == 1


def test_without_a_journal_the_end_of_the_log_is_searched_for(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.dead(0, facts=False)
    desk.shard(0)

    again = of_kind(desk.settle(), Grant)[0]
    assert desk.ledger.by_number[0].unknown_through == 9
    assert (again.generation, again.next_ordinal, again.cuts) == (grant.generation + 1, 1, [BatchBounds(1, 1, 0)])


def test_without_a_journal_and_without_a_sure_memory_of_the_broker_the_partition_waits_for_people(desk: Desk) -> None:
    desk.opened(0)
    desk.now += 13 * 3_600

    desk.dead(0, facts=False)
    desk.shard(0)
    desk.settle()

    assert state(desk) == "blocked"
    alarm = desk.leases.alarms[0]
    assert (alarm.why, alarm.first, alarm.end) == (BlockReason.BATCH_BOUNDS_UNKNOWN, 1, 10)


def test_a_partition_that_was_never_acknowledged_goes_on_without_its_journal(desk: Desk) -> None:
    desk.granted(0)

    desk.dead(0, facts=False)
    desk.shard(0)

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.pace, again.cuts) == (FIRST, [BatchBounds(0, 1, 0)])


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_refused_record_is_parked_and_the_rest_goes_on_in_a_new_epoch(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.refused(grant, 1, 9, INVALID_RECORD, record_errors=[(2, "no key")])
    assert len(of_kind(desk.settle(), Revoke)) == 1
    desk.revoked(grant, BatchBounds(1, 9, 0))
    desk.settle()
    request = desk.leases.dead_letter_requests.pop()
    assert [(part.index, part.count, part.text) for part in request.parts] == [(3, 1, "INVALID_RECORD: no key")]

    desk.leases.dead_lettered(request, "letter-1", desk.now)

    again = of_kind(desk.settle(), Grant)[0]
    assert again.rows == [StampRow(7, 1, 1, 1), StampRow(7, 1, 4, 2)]
    assert (again.cuts, again.next_ordinal, again.pace) == ([], 1, OPEN)
    desk.done(again, 1, 2)
    desk.done(again, 4, 6)
    desk.settle()
    assert desk.ended[0].parked == [(3, 1, "INVALID_RECORD: no key")]
    assert [(run.offset, run.count) for run in desk.ended[0].runs] == [(0, 1), (1, 2), (4, 6)]
    assert desk.leases.counters["records_dead_lettered"] == 1
    assert desk.leases.counters["producer_epoch_bumps"] == 1
    assert desk.leases.pending_records == 0


def test_a_refused_batch_without_a_list_is_parked_whole(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.push(0, 3)
    desk.settle()
    desk.refused(grant, 1, 9, TOO_LARGE, message="5 MB")
    desk.revoked(grant, BatchBounds(1, 9, 0), BatchBounds(10, 3, 0))
    desk.settle()

    desk.leases.dead_lettered(desk.leases.dead_letter_requests.pop(), "letter", desk.now)

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.rows, again.next_ordinal, again.cuts) == ([StampRow(7, 1, 10, 10)], 10, [])
    assert desk.ended[0].parked == [(1, 9, "MESSAGE_TOO_LARGE: 5 MB")]


def test_rows_of_a_new_epoch_are_synced_before_the_grant(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.refused(grant, 1, 9, TOO_LARGE)
    desk.revoked(grant)
    desk.push(0, 1)
    desk.settle()
    desk.leases.dead_lettered(desk.leases.dead_letter_requests.pop(), "letter", desk.now)

    assert of_kind(desk.round(sync=False), Grant) == []
    assert desk.leases.needs_sync
    assert len(of_kind(desk.settle(), Grant)) == 1


def test_a_second_refusal_before_an_old_hole_renews_the_row_behind_that_hole(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.refused(grant, 1, 9, INVALID_RECORD, record_errors=[(5, "x")])
    desk.revoked(grant)
    desk.settle()
    desk.leases.dead_lettered(desk.leases.dead_letter_requests.pop(), "one", desk.now)
    desk.settle()
    again = desk.held(0)

    desk.refused(again, 1, 5, INVALID_RECORD, record_errors=[(1, "y")])
    desk.revoked(again)
    desk.settle()
    desk.leases.dead_lettered(desk.leases.dead_letter_requests.pop(), "two", desk.now)

    assert of_kind(desk.settle(), Grant)[0].rows == [StampRow(7, 2, 1, 1), StampRow(7, 2, 3, 2), StampRow(7, 2, 7, 3)]


def test_an_ambiguous_refusal_blocks_and_keeps_everything(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.refused(grant, 1, 9, TOO_LARGE, ambiguous=True)
    desk.revoked(grant, BatchBounds(1, 9, 0))
    desk.settle()

    assert state(desk) == "blocked"
    assert desk.leases.alarms[0].why is BlockReason.AMBIGUOUS
    assert desk.leases.dead_letter_requests == []
    assert desk.leases.pending_records == 10


def test_an_ambiguous_refusal_at_pace_first_is_parked_as_may_be_written(desk: Desk) -> None:
    grant = desk.granted(0)
    desk.refused(grant, 0, 1, TOO_LARGE, ambiguous=True)
    desk.revoked(grant, BatchBounds(0, 1, 0))
    desk.settle()

    request = desk.leases.dead_letter_requests.pop()

    assert request.may_be_written
    assert "may have written" in request.parts[0].text


def test_a_refusal_an_operator_can_lift_is_tried_again_with_backoff(desk: Desk) -> None:
    grant = desk.opened(0)
    waits = []
    for _ in range(3):
        desk.refused(grant, 1, 9, NOT_ALLOWED)
        desk.revoked(grant, BatchBounds(1, 9, 0))
        desk.settle()
        assert state(desk) == "blocked"
        retry = desk.leases.next_deadline()
        assert retry is not None
        waits.append(round(retry - desk.now, 3))
        desk.now = retry
        desk.settle()
        assert state(desk) == "held"
        grant = desk.held(0)
        assert grant.cuts == [BatchBounds(1, 9, 0)]
    assert waits == [1.0, 2.0, 4.0]
    assert desk.leases.alarms[0].since == 100.0

    desk.done(grant, 1, 9)

    assert dict(desk.leases.alarms) == {}


def test_a_refusal_an_operator_can_lift_is_parked_where_the_topic_says_so() -> None:
    desk = Desk(parks={"orders"})
    desk.partition(0)
    desk.up()
    grant = desk.opened(0)

    desk.refused(grant, 1, 9, NOT_ALLOWED)
    desk.revoked(grant)
    desk.settle()

    assert desk.leases.dead_letter_requests[0].error == "TOPIC_AUTHORIZATION_FAILED"


def test_a_refusal_that_crosses_a_revoke_is_not_forgotten(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 6))
    desk.settle()

    desk.refused(grant, 1, 9, TOO_LARGE)
    desk.revoked(grant, BatchBounds(1, 9, 0))
    desk.settle()

    assert len(desk.leases.dead_letter_requests) == 1


def test_a_refusal_of_what_is_not_the_oldest_kills_the_shard(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.refused(grant, 5, 5, TOO_LARGE)

    assert [seat for seat, _ in desk.leases.shards_to_kill] == [0]


def test_a_definite_refusal_outlives_the_shard_that_reported_it(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.refused(grant, 1, 9, TOO_LARGE)
    desk.settle()

    desk.dead(0, desk.slot(grant, 1, 9))

    assert len(desk.leases.dead_letter_requests) == 1
    assert state(desk) == "settling"


def test_the_last_epoch_is_followed_by_another_producer_id(desk: Desk) -> None:
    desk.ledger.apply(StampRowEntry(0, StampRow(7, 32_767, 0, 0), "test"))
    grant = desk.opened(0)
    desk.refused(grant, 1, 9, TOO_LARGE)
    desk.revoked(grant)
    desk.push(0, 1)
    desk.settle()
    desk.leases.dead_lettered(desk.leases.dead_letter_requests.pop(), "letter", desk.now)
    assert desk.leases.needs_producer_id
    assert of_kind(desk.settle(), Grant) == []

    desk.leases.set_producer_id(8)

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.rows, again.pace) == ([StampRow(8, 0, 10, 10)], FIRST)


# --- stuck -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (ProbeRefused(0, 1, 5, "OUT_OF_ORDER"), BlockReason.GAP),
        (PartitionHalted(0, 1, -1, "not anchored"), BlockReason.HALTED),
        (PartitionHalted(0, 1, 35, "too old"), BlockReason.HALTED),
        (PartitionHalted(0, 1, 47, "fenced"), BlockReason.EPOCH),
        (SliceUnreadable(0, 1, 1, 0, 1, 9, "checksum"), BlockReason.UNREADABLE),
    ],
)
def test_what_cannot_go_on_is_blocked_with_an_alarm_and_others_go_on(
    desk: Desk, report: ProbeRefused, why: BlockReason
) -> None:
    grant = desk.opened(0)
    desk.say(0, report)
    desk.revoked(grant, BatchBounds(1, 9, 0))
    other = desk.opened(1)
    desk.done(other, 1, 9)
    desk.settle()

    assert state(desk) == "blocked"
    assert desk.leases.alarms[0].why is why
    assert [one.slice.partition for one in desk.ended] == [1]
    assert desk.ledger.by_number[0].batch_bounds == [BatchBounds(1, 9, 0)]


def test_a_gap_is_tried_again_at_once_under_a_newer_leader(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.say(0, ProbeRefused(0, 1, 5, "OUT_OF_ORDER"))
    desk.revoked(grant, BatchBounds(1, 9, 0))
    desk.settle()
    assert state(desk) == "blocked"

    desk.cluster((0, 2, 6))

    assert of_kind(desk.settle(), Grant)[0].cuts == [BatchBounds(1, 9, 0)]


def test_a_partition_whose_producer_epoch_the_broker_disputes_waits_for_people(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.say(0, PartitionHalted(0, 1, 47, "fenced"))
    desk.revoked(grant)
    desk.settle()
    desk.cluster((0, 2, 6))
    desk.now += 3_600.0

    desk.settle()

    assert state(desk) == "blocked"


def test_people_may_let_a_blocked_partition_go_on_under_a_new_id_counted(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.say(0, PartitionHalted(0, 1, 47, "fenced"))
    assert not desk.leases.resend("orders", 0, desk.now)
    desk.revoked(grant, BatchBounds(1, 4, 0))
    desk.settle()

    assert desk.leases.resend("orders", 0, desk.now)
    assert desk.leases.needs_producer_id
    desk.leases.set_producer_id(8)

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.rows, again.cuts, again.pace) == ([StampRow(8, 0, 1, 1)], [], FIRST)
    assert desk.leases.counters["possible_duplicates"] == 9
    assert dict(desk.leases.alarms) == {}


# --- topics made again -----------------------------------------------------------------------------------------------


@pytest.mark.row("J20")
def test_a_topic_made_again_gets_what_was_unresolved_under_a_new_id_counted(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.cluster((0, 2, 0), topic_id=b"\x02" * 16)
    assert len(of_kind(desk.settle(), Revoke)) == 1
    desk.revoked(grant, BatchBounds(1, 9, 0))
    desk.settle()
    assert desk.leases.needs_producer_id

    desk.leases.set_producer_id(8)

    again = of_kind(desk.settle(), Grant)[0]
    assert (again.topic_id, again.leader_epoch, again.pace) == (b"\x02" * 16, 0, FIRST)
    assert (again.rows, again.cuts, again.anchor) == ([StampRow(8, 0, 1, 1)], [], None)
    assert desk.leases.counters["possible_duplicates"] == 9


def test_a_topic_made_again_with_nothing_unresolved_keeps_its_id_and_begins_at_pace_first(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.done(grant, 1, 9)
    desk.cluster((0, 2, 0), topic_id=b"\x02" * 16)
    desk.settle()
    desk.revoked(grant)
    desk.push(0, 5)

    again = of_kind(desk.settle(), Grant)[0]

    assert (again.rows, again.pace, again.anchor) == ([StampRow(7, 0, 0, 0)], FIRST, None)
    assert desk.leases.counters["possible_duplicates"] == 0


def test_what_waits_for_a_topic_that_is_gone_has_an_alarm_until_the_topic_is_back(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.topic_gone()
    assert desk.settle() == []
    alarm = desk.leases.alarms[0]
    assert (alarm.why, alarm.first, alarm.end, alarm.text) == (BlockReason.REFUSED, 1, 10, "Kafka knows no such topic")
    assert list(desk.leases.alarms) == [0]

    desk.cluster((0, 1, 0), topic_id=b"\x02" * 16)
    desk.settle()
    desk.revoked(grant)
    desk.settle()
    desk.done(desk.held(0), 1, 1, base_offset=0)

    assert dict(desk.leases.alarms) == {}


# --- ages ------------------------------------------------------------------------------------------------------------


def test_an_old_acknowledgement_narrows_the_pace_to_first(desk: Desk) -> None:
    desk.opened(0)
    desk.now += 12 * 3_600 + 60

    assert [pace.pace for pace in of_kind(desk.settle(), Pace)] == [FIRST]


def test_slices_with_old_timestamps_are_announced_and_open_again_when_they_are_acknowledged(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.push(0, 5, max_ts=1_000)
    said = desk.settle()
    kinds = [type(message).__name__ for _, message in said]
    assert kinds == ["Pace", "Slices"]
    assert of_kind(said, Pace)[0].pace == "narrow"

    desk.done(grant, 1, 14)

    assert [pace.pace for pace in of_kind(desk.settle(), Pace)] == [OPEN]


def test_cuts_the_broker_may_have_forgotten_are_counted_when_they_are_accepted(desk: Desk) -> None:
    grant = desk.opened(0)
    desk.now += 13 * 3_600
    desk.dead(0, desk.slot(grant, 1, 4), desk.slot(grant, 5, 5, serial=2))
    desk.shard(0)
    again = of_kind(desk.settle(), Grant)[0]
    assert again.pace == FIRST

    desk.done(again, 1, 4)
    desk.done(again, 5, 5)

    assert desk.leases.counters["possible_duplicates"] == 9


def test_a_shorter_memory_of_the_brokers_is_told_with_new_leases(desk: Desk) -> None:
    grant = desk.opened(0)
    assert grant.expiration_ms == 24 * 3_600_000

    desk.leases.expiration_known(60_000)
    assert len(of_kind(desk.settle(), Revoke)) == 1
    desk.revoked(grant)

    assert of_kind(desk.settle(), Grant)[0].expiration_ms == 60_000


# --- the end ---------------------------------------------------------------------------------------------------------


def test_a_stop_takes_everything_back_with_its_cuts(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.leases.stop(1_000, desk.now)

    assert of_kind(desk.settle(), Stop) == [Stop(1_000), Stop(1_000)]
    assert not desk.leases.all_returned
    desk.revoked(grant, BatchBounds(1, 9, 0))
    assert desk.leases.all_returned
    assert desk.ledger.by_number[0].batch_bounds == [BatchBounds(1, 9, 0)]
    desk.now += 60.0
    assert of_kind(desk.settle(), Grant) == []


def test_a_shard_may_give_back_by_its_own_will(desk: Desk) -> None:
    grant = desk.opened(0)

    desk.say(0, Revoked(0, grant.generation, [BatchBounds(1, 9, 0)]))
    desk.dead(0)

    desk.settle()
    assert state(desk) == "unassigned"
    assert desk.ledger.by_number[0].batch_bounds == [BatchBounds(1, 9, 0)]


def test_loads_are_kept_for_people_until_the_shard_dies(desk: Desk) -> None:
    load = ShardLoad([], [], {"batches": 3})
    desk.say(0, load)
    assert desk.leases.loads[0] is load

    desk.dead(0)

    assert 0 not in desk.leases.loads
    assert desk.leases.exited_shard_counters == load.counters
