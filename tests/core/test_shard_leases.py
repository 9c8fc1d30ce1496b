"""Every mode and pace of a lease, against a model broker."""

import pytest
from penstock.producer.protocol.produce_request import LeaderHint
from penstock.producer.sender.modes import MODE_TRANSITIONS, SendMode
from penstock.wire.messages import (
    FIRST,
    NARROW,
    OPEN,
    Anchor,
    BatchBounds,
    BatchRefused,
    NewLeaderHint,
    PartitionHalted,
    ProbeRefused,
    Revoked,
    SliceUnreadable,
    StampRow,
)

from tests.fakes.model_broker import OUT_OF_ORDER
from tests.fakes.segments import NOW_MS
from tests.fakes.shard_bench import HOUR_MS, PRODUCER_ID, ShardBench

REQUEST_TIMED_OUT = 7
NOT_LEADER = 6
NOT_ENOUGH_REPLICAS = 19
TOO_LARGE = 10
INVALID_RECORD = 87
AUTHORIZATION = 29
INVALID_EPOCH = 47
UNKNOWN_SERVER = -1
UNKNOWN_PRODUCER = 59
FULL = 34
"""Records of 50 bytes in a full batch."""


@pytest.fixture
def bench() -> ShardBench:
    return ShardBench()


def running(bench: ShardBench, *, records: int = 1) -> None:
    """A partition that has had a batch acknowledged on its connection."""
    bench.grant(pace=FIRST)
    bench.put(0, records)
    bench.send()
    bench.answer()
    bench.pace(OPEN)
    bench.run()
    assert bench.mode() is SendMode.RUNNING


# --- paces -----------------------------------------------------------------------------------------------------------


def test_at_pace_first_one_record_goes_alone_and_nothing_follows_before_the_pace_opens(bench: ShardBench) -> None:
    bench.grant(pace=FIRST)
    bench.put(0, 10)
    (wire,) = bench.send()
    assert wire.copies[0][1:3] == (0, 1)
    assert bench.send() == []
    bench.answer()
    assert bench.send() == []
    assert [item.first for item in bench.done] == [0]
    bench.pace(OPEN)
    bench.run()
    assert bench.ordinals() == list(range(10))


def test_a_pace_that_stays_first_lets_one_more_record_go(bench: ShardBench) -> None:
    bench.grant(pace=FIRST)
    bench.put(0, 3)
    bench.run()
    bench.pace(FIRST)
    bench.run()
    assert bench.ordinals() == [0, 1]


def test_the_first_batch_on_a_connection_goes_alone_and_then_five_are_in_flight(bench: ShardBench) -> None:
    bench.grant(pace=OPEN)
    for _ in range(20):
        bench.put(0, 40, size=50)
    assert len(bench.send()) == 1
    assert bench.mode() is SendMode.ONE_IN_FLIGHT
    bench.answer()
    assert bench.mode() is SendMode.RUNNING
    assert len(bench.send()) == 5
    bench.answer()
    assert len(bench.send()) == 1
    bench.run()
    assert bench.ordinals() == list(range(800))


def test_no_more_batches_are_on_the_wire_than_the_connection_takes(bench: ShardBench) -> None:
    running(bench)
    for _ in range(10):
        bench.put(0, 40, size=50)
    assert len(bench.send(in_flight_max=2)) == 2


def test_narrow_sends_the_next_batch_only_when_nothing_is_unresolved(bench: ShardBench) -> None:
    running(bench)
    bench.pace(NARROW)
    for _ in range(4):
        bench.put(0, 40, size=50)
    assert len(bench.send()) == 1
    bench.answer()
    assert len(bench.send()) == 1


def test_old_timestamps_narrow_the_pace_without_being_told(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 40, size=50, ts=NOW_MS - 13 * HOUR_MS)
    bench.put(0, 40, size=50)
    assert len(bench.send()) == 1
    bench.answer()
    assert len(bench.send()) == 1


def test_what_was_filled_for_a_wide_pace_is_filled_anew_when_it_becomes_first(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 30)
    bench.table.fill(now=bench.now)
    bench.pace(FIRST)
    (wire,) = bench.send()
    assert wire.copies[0][2] == 1
    bench.answer()
    bench.pace(OPEN)
    bench.run()
    assert bench.ordinals() == list(range(31))
    assert bench.pool.lent_bytes == 0


# --- careful ---------------------------------------------------------------------------------------------------------


def test_inherited_cuts_are_sent_again_oldest_first_one_at_a_time_with_the_same_bounds(bench: ShardBench) -> None:
    bench.next[0] = 10
    bench.grant(next_ordinal=10, cuts=[BatchBounds(10, 3, 0), BatchBounds(13, 4, 0)])
    bench.put(0, 5)
    bench.put(0, 15)
    sent = []
    for _ in range(3):
        (wire,) = bench.send()
        sent.append(wire.copies[0][1:3])
        bench.answer()
    assert sent == [(10, 3), (13, 4), (17, 13)]
    assert bench.ordinals() == list(range(10, 30))


def test_inherited_cuts_wait_for_their_slices(bench: ShardBench) -> None:
    bench.grant(cuts=[BatchBounds(0, 5, 0)])
    bench.put(0, 3)
    assert bench.send() == []
    bench.put(0, 3)
    (wire,) = bench.send()
    assert wire.copies[0][1:3] == (0, 5)


def test_a_grant_may_begin_inside_a_slice(bench: ShardBench) -> None:
    bench.grant(next_ordinal=7)
    bench.put(0, 10)
    bench.run()
    assert bench.ordinals() == [7, 8, 9]


def test_after_an_error_the_oldest_goes_again_alone_and_the_others_follow_in_order(bench: ShardBench) -> None:
    running(bench)
    for _ in range(3):
        bench.put(0, FULL, size=50)
    sent = bench.send()
    assert len(sent) == 3
    bench.refuse(NOT_ENOUGH_REPLICAS)
    bench.answer()
    bench.answer()
    assert bench.mode() is SendMode.ONE_IN_FLIGHT
    assert bench.send() == [], "it backs off first"
    bench.run()
    assert bench.mode() is SendMode.RUNNING
    assert bench.ordinals() == list(range(1 + 3 * FULL))


def test_nothing_is_sent_in_careful_while_the_wire_still_holds_batches(bench: ShardBench) -> None:
    running(bench)
    for _ in range(3):
        bench.put(0, 40, size=50)
    bench.send()
    bench.refuse(NOT_ENOUGH_REPLICAS)
    bench.now += 10
    assert bench.send() == []


def test_a_lost_connection_sends_everything_again_with_the_same_bounds(bench: ShardBench) -> None:
    running(bench)
    for _ in range(4):
        bench.put(0, 40, size=50)
    before = [wire.copies[0][1:3] for wire in bench.send()]
    bench.cut_connection(arrived=2)
    assert bench.table.counters["requests_lost"] == len(before)
    bench.now += 10
    again = []
    for _ in before:
        (wire,) = bench.send()
        again.append(wire.copies[0][1:3])
        bench.answer()
    assert again == before
    assert bench.ordinals() == list(range(161))


def test_an_idle_partition_is_careful_again_on_a_new_connection(bench: ShardBench) -> None:
    running(bench)
    bench.cut_connection()
    for _ in range(3):
        bench.put(0, 40, size=50)
    assert len(bench.send()) == 1


def test_backoff_grows_and_ends_with_a_success(bench: ShardBench) -> None:
    lease = bench.grant()
    bench.put(0, 1)
    waits = []
    for _ in range(6):
        bench.send()
        bench.refuse(NOT_ENOUGH_REPLICAS)
        waits.append(round(lease.retry_at - bench.now, 3))
        bench.now = lease.retry_at
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    bench.run()
    assert lease.failures == 0


def test_a_partition_that_backs_off_does_not_hold_up_its_neighbour(bench: ShardBench) -> None:
    bench.grant(0)
    bench.grant(1)
    bench.put(0, 1)
    bench.put(1, 1)
    (wire,) = bench.send()
    first, second = bench.judge(wire)
    bench.answer(wire, [first._replace(code=NOT_ENOUGH_REPLICAS, base_offset=-1), second])
    bench.put(1, 5)
    (wire,) = bench.send()
    assert [copy[0] for copy in wire.copies] == [1]


# --- moves and returns -----------------------------------------------------------------------------------------------


@pytest.mark.fault("K13")
def test_a_move_makes_orphans_and_sends_again_at_the_new_node_without_backoff(bench: ShardBench) -> None:
    running(bench)
    for _ in range(3):
        bench.put(0, 40, size=50)
    old = bench.send()
    bench.move(2, 1)
    (again,) = bench.send()
    assert again.flight.node == 2
    assert again.copies[0][1] == old[0].copies[0][1]
    bench.answer(old[0])
    assert [item.first for item in bench.done][-1] == 0, "the answer to an orphan is thrown away"
    bench.answer(again)
    for wire in old[1:]:
        bench.answer(wire)
    bench.run()
    assert bench.ordinals() == list(range(121))
    assert bench.mode() is SendMode.RUNNING


def test_the_buffer_of_an_orphan_stays_until_its_transport_lets_go(bench: ShardBench) -> None:
    bench.grant()
    bench.put(0, 5)
    (wire,) = bench.send()
    lent = bench.pool.lent_bytes
    bench.revoke()
    assert bench.pool.lent_bytes == lent
    bench.answer(wire)
    assert bench.pool.lent_bytes == 0


def test_revoke_returns_the_cuts_at_once_and_forgets_the_rest(bench: ShardBench) -> None:
    running(bench)
    for _ in range(3):
        bench.put(0, FULL, size=50)
    bench.send()
    bench.put(0, 3)
    bench.table.fill(now=bench.now)
    bench.revoke()
    bench.listen()
    (message,) = [said for said in bench.said if isinstance(said, Revoked)]
    assert [(cut.first, cut.count) for cut in message.cuts] == [(1, FULL), (1 + FULL, FULL), (1 + 2 * FULL, FULL)]
    assert bench.table.partitions == {}
    for wire in list(bench.wire):
        bench.answer(wire)
    assert bench.pool.lent_bytes == 0
    assert bench.journal == {}


def test_messages_of_an_older_generation_are_dropped(bench: ShardBench) -> None:
    bench.grant()
    bench.revoke()
    lease = bench.grant()
    bench.generation[0] -= 1
    bench.revoke()
    bench.pace(FIRST)
    bench.put(0, 3)
    assert bench.table.partitions[0] is lease
    assert lease.pace == OPEN
    assert bench.send() == []


# --- outcomes --------------------------------------------------------------------------------------------------------


def test_a_newer_leader_in_an_answer_is_told_and_an_older_one_only_as_stale_metadata(bench: ShardBench) -> None:
    bench.grant(leader_epoch=5)
    bench.put(0, 1)
    bench.send()
    bench.refuse(NOT_LEADER, hint=LeaderHint(3, 6))
    bench.now += 10
    bench.send()
    bench.refuse(NOT_LEADER, hint=LeaderHint(3, 5))
    hints = [said for said in bench.said if isinstance(said, NewLeaderHint)]
    assert [(hint.leader, hint.leader_epoch) for hint in hints] == [(3, 6), (-1, -1)]


def test_a_definite_refusal_of_the_oldest_is_told_and_the_partition_waits(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 5)
    bench.send()
    bench.refuse(INVALID_RECORD, errors=[(2, "no key")])
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert (refused.first, refused.count, refused.code, refused.ambiguous) == (1, 5, INVALID_RECORD, False)
    assert refused.record_errors == [(2, "no key")]
    assert bench.mode() is SendMode.HELD
    bench.put(0, 5)
    assert bench.send() == []


def test_a_refusal_after_an_attempt_without_verdict_is_ambiguous(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 5)
    bench.send()
    bench.refuse(REQUEST_TIMED_OUT)
    bench.now += 10
    bench.send()
    bench.refuse(AUTHORIZATION)
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert refused.ambiguous


def test_too_few_replicas_is_a_verdict_and_leaves_a_later_refusal_definite(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 5)
    bench.send()
    bench.refuse(NOT_ENOUGH_REPLICAS)
    bench.now += 10
    bench.send()
    bench.refuse(INVALID_RECORD)
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert not refused.ambiguous


def test_a_refused_inherited_cut_is_ambiguous(bench: ShardBench) -> None:
    bench.grant(cuts=[BatchBounds(0, 2, 0)])
    bench.put(0, 2)
    bench.send()
    bench.refuse(INVALID_RECORD)
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert refused.ambiguous


def test_a_refusal_behind_an_open_batch_waits_until_it_is_the_oldest(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 40, size=50)
    bench.put(0, 40, size=50)
    first, second = bench.send()[:2]
    bench.refuse(NOT_ENOUGH_REPLICAS, wire=first)
    bench.refuse(INVALID_RECORD, wire=second)
    assert not [said for said in bench.said if isinstance(said, BatchRefused)]
    for wire in list(bench.wire):
        bench.answer(wire)
    bench.now += 10
    (wire,) = bench.send()
    assert wire.copies[0][1] == first.copies[0][1]
    bench.answer()
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert refused.first == second.copies[0][1]


def test_a_batch_too_large_is_split_until_it_fits_under_the_same_sequences(bench: ShardBench) -> None:
    running(bench)
    bench.log().largest_batch = 700
    for _ in range(3):
        bench.put(0, 40, size=50)
    bench.run(2000)
    assert bench.ordinals() == list(range(121))
    assert bench.journal == {}
    assert bench.pool.lent_bytes == 0
    assert max(bench.log().batches) < 13


def test_both_parts_of_a_split_are_journaled_before_the_first_is_sent_and_then_their_parent_is_freed(
    bench: ShardBench,
) -> None:
    running(bench)
    bench.put(0, 10)
    bench.send()
    bench.refuse(TOO_LARGE)
    (wire,) = bench.send()
    assert wire.copies[0][1:3] == (1, 5)
    assert sorted((cut.first, cut.count) for cut in bench.journal.values()) == [(1, 5), (6, 5)]


def test_a_batch_too_large_that_may_be_in_the_log_is_refused_as_ambiguous_and_not_split(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 10)
    bench.send()
    bench.refuse(REQUEST_TIMED_OUT)
    bench.now += 10
    bench.send()
    bench.refuse(TOO_LARGE)
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert (refused.count, refused.ambiguous) == (10, True)


def test_a_single_record_too_large_is_refused(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 1)
    bench.send()
    bench.refuse(TOO_LARGE)
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert (refused.count, refused.code, refused.ambiguous) == (1, TOO_LARGE, False)


def test_an_unknown_error_is_tried_ten_times_and_then_refused_as_ambiguous(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 1)
    for _ in range(10):
        assert not [said for said in bench.said if isinstance(said, BatchRefused)]
        bench.now += 10
        bench.send()
        bench.refuse(UNKNOWN_SERVER)
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert refused.ambiguous


def test_a_wrong_epoch_halts(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 1)
    bench.send()
    bench.refuse(INVALID_EPOCH)
    (halt,) = [said for said in bench.said if isinstance(said, PartitionHalted)]
    assert halt.code == INVALID_EPOCH
    assert bench.mode() is SendMode.HELD


def test_a_success_below_the_anchor_is_not_believed(bench: ShardBench) -> None:
    bench.grant(anchor=Anchor(1000, NOW_MS, NOW_MS, 0))
    bench.put(0, 1)
    bench.send()
    bench.answer()
    (halt,) = [said for said in bench.said if isinstance(said, PartitionHalted)]
    assert "offset 1 " in halt.message
    assert bench.done == []


def test_nor_one_at_the_anchor_itself(bench: ShardBench) -> None:
    bench.grant(anchor=Anchor(1, NOW_MS, NOW_MS, 0))
    bench.put(0, 1)
    bench.send()
    bench.answer()
    assert bench.mode() is SendMode.HELD


def test_a_partition_missing_in_the_answer_is_sent_again(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 4)
    (wire,) = bench.send()
    bench.answer(wire, [])
    bench.run()
    assert bench.ordinals() == list(range(5))


def test_a_later_success_resolves_what_came_before_it_while_anchored(bench: ShardBench) -> None:
    running(bench)
    for _ in range(2):
        bench.put(0, 40, size=50)
    first, second = bench.send()[:2]
    outcomes = [one._replace(code=REQUEST_TIMED_OUT) for one in bench.judge(first)]
    bench.answer(first, outcomes)
    bench.answer(second)
    assert bench.done[-1].first == second.copies[0][1]
    while bench.wire:
        bench.answer()
    bench.run()
    assert bench.ordinals() == list(range(81))
    assert bench.mode() is SendMode.RUNNING


def test_a_later_success_proves_nothing_when_the_log_has_lost_what_was_acknowledged(bench: ShardBench) -> None:
    running(bench)
    for _ in range(2):
        bench.put(0, 40, size=50)
    first, second = bench.send()[:2]
    bench.refuse(NOT_ENOUGH_REPLICAS, wire=first)
    bench.log().forget()
    bench.log().start = 5
    bench.answer(second)
    (halt,) = [said for said in bench.said if isinstance(said, PartitionHalted)]
    assert "forgotten" in halt.message


# --- probes ----------------------------------------------------------------------------------------------------------


def unanswered(bench: ShardBench, batches: int = 4) -> list[int]:
    """Batches that are all in the log, whose answers were lost, at a broker that was restarted since."""
    running(bench)
    for _ in range(batches):
        bench.put(0, FULL, size=50)
    sent = bench.send()
    assert len(sent) == batches
    bench.cut_connection(arrived=batches)
    bench.log().restart()
    bench.now += 10
    return [wire.copies[0][1] for wire in sent]


def test_a_restarted_broker_knows_the_last_batch_only_and_the_probe_finds_it(bench: ShardBench) -> None:
    firsts = unanswered(bench)
    (wire,) = bench.send()
    assert wire.copies[0][1] == firsts[0]
    bench.answer()
    assert bench.mode() is SendMode.PROBING
    (wire,) = bench.send()
    assert wire.copies[0][1] == firsts[-1]
    bench.answer()
    assert bench.mode() is SendMode.RUNNING
    assert bench.done[-1].first == firsts[-1]
    bench.run()
    assert bench.ordinals() == list(range(1 + 4 * FULL))


def test_a_log_that_ends_in_the_middle_of_the_window_is_found(bench: ShardBench) -> None:
    running(bench)
    for _ in range(4):
        bench.put(0, FULL, size=50)
    bench.send()
    bench.cut_connection(arrived=2)
    bench.log().restart()
    bench.run()
    assert bench.ordinals() == list(range(1 + 4 * FULL))
    assert bench.mode() is SendMode.RUNNING


def test_a_lost_answer_begins_the_probe_again_with_the_oldest(bench: ShardBench) -> None:
    firsts = unanswered(bench)
    bench.send()
    bench.answer()
    bench.send()
    bench.cut_connection(arrived=1)
    bench.now += 10
    sent = []
    for _ in range(2):
        (wire,) = bench.send()
        sent.append(wire.copies[0][1])
        bench.answer()
    assert sent == [firsts[0], firsts[-1]]
    assert bench.mode() is SendMode.RUNNING


def test_a_pass_that_is_refused_whole_is_a_gap(bench: ShardBench) -> None:
    unanswered(bench)
    state = bench.log().states[PRODUCER_ID]
    later = state.batches[-1]._replace(first_sequence=9000, last_sequence=9001)
    state.batches.clear()
    state.batches.append(later)
    bench.run()
    (gap,) = [said for said in bench.said if isinstance(said, ProbeRefused)]
    assert gap.error == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert bench.mode() is SendMode.HELD


def test_without_an_anchor_nothing_is_probed(bench: ShardBench) -> None:
    bench.grant(anchored=False, cuts=[BatchBounds(0, 2, 0), BatchBounds(2, 2, 0)])
    bench.put(0, 4)
    bench.send()
    bench.refuse(OUT_OF_ORDER, log_start=0)
    (halt,) = [said for said in bench.said if isinstance(said, PartitionHalted)]
    assert halt.code == OUT_OF_ORDER


def test_a_success_in_a_probe_counts_only_while_the_acknowledged_is_still_in_the_log(bench: ShardBench) -> None:
    unanswered(bench)
    bench.send()
    bench.answer()
    (wire,) = bench.send()
    bench.log().start = 100
    bench.answer(wire)
    (halt,) = [said for said in bench.said if isinstance(said, PartitionHalted)]
    assert "forgotten" in halt.message


def refused_for_size(bench: ShardBench, *, arrived: int) -> None:
    """A small and a large batch whose answers were lost; the broker was restarted and takes no large ones any more."""
    running(bench)
    bench.put(0, 3)
    bench.send()
    bench.put(0, FULL, size=50)
    bench.send()
    bench.cut_connection(arrived=arrived)
    bench.log().restart()
    bench.log().largest_batch = 1000
    bench.now += 10


def test_a_log_that_ends_with_a_batch_refused_for_its_size_is_found_by_the_one_behind_it(bench: ShardBench) -> None:
    refused_for_size(bench, arrived=2)
    trials = []
    for _ in range(3):
        (wire,) = bench.send()
        trials.append(wire.copies[0][1])
        bench.answer()
    assert trials == [1, 4, 1]
    assert bench.mode() is SendMode.PROBING
    assert bench.send() == [], "there is nothing behind it yet"
    bench.put(0, 2)
    (wire,) = bench.send()
    assert wire.copies[0][1] == 1 + 3 + FULL
    bench.answer()
    assert bench.mode() is SendMode.RUNNING
    assert bench.ordinals() == list(range(1 + 3 + FULL + 2))
    assert bench.journal == {}


def test_a_lost_answer_of_the_one_behind_begins_again_with_the_oldest(bench: ShardBench) -> None:
    refused_for_size(bench, arrived=2)
    bench.put(0, 2)
    for _ in range(3):
        bench.send()
        bench.answer()
    bench.send()
    bench.cut_connection(arrived=1)
    bench.now += 10
    (wire,) = bench.send()
    assert wire.copies[0][1] == 1
    bench.run()
    assert bench.ordinals() == list(range(1 + 3 + FULL + 2))


def test_a_batch_refused_for_its_size_that_never_arrived_leaves_the_log_where_it_is(bench: ShardBench) -> None:
    refused_for_size(bench, arrived=1)
    bench.run()
    (refused,) = [said for said in bench.said if isinstance(said, BatchRefused)]
    assert (refused.first, refused.count, refused.ambiguous) == (4, FULL, True)


def test_a_move_ends_a_probe(bench: ShardBench) -> None:
    firsts = unanswered(bench)
    bench.send()
    bench.answer()
    assert bench.mode() is SendMode.PROBING
    bench.move(2, 1)
    assert bench.mode() is SendMode.ONE_IN_FLIGHT
    (wire,) = bench.send()
    assert wire.copies[0][1] == firsts[0]


def test_a_producer_id_unknown_without_a_log_start_is_tried_again(bench: ShardBench) -> None:
    running(bench)
    bench.put(0, 4)
    bench.send()
    bench.refuse(UNKNOWN_PRODUCER)
    assert bench.mode() is SendMode.ONE_IN_FLIGHT
    bench.run()
    assert bench.ordinals() == list(range(5))


# --- stamps and slices -----------------------------------------------------------------------------------------------


def test_sequences_follow_from_ordinals_rows_and_wrap(bench: ShardBench) -> None:
    base = -(1 << 31) + 3
    bench.grant(rows=[StampRow(PRODUCER_ID, 4, 0, base)])
    bench.put(0, 10)
    bench.run()
    kept = bench.log().states[PRODUCER_ID]
    assert kept.epoch == 4
    assert (kept.batches[0].first_sequence, kept.last_sequence) == ((1 << 31) - 3, 6)


def test_a_batch_never_crosses_a_stamp_row_nor_a_hole(bench: ShardBench) -> None:
    rows = [StampRow(PRODUCER_ID, 0, 0, 0), StampRow(PRODUCER_ID, 0, 4, 0), StampRow(PRODUCER_ID, 0, 20, 10)]
    bench.grant(rows=rows)
    bench.hand(bench.ref(0, [b"%08d" % n for n in range(10)]))
    bench.hand(bench.ref(0, [b"%08d" % n for n in range(20, 25)], first=20))
    bench.run()
    assert bench.log().batches == [4, 6, 5]


def test_a_slice_for_another_partition_is_seen_and_stops_this_one(bench: ShardBench) -> None:
    bench.grant()
    foreign = bench.ref(1, [b"x" * 8])
    bench.hand(foreign._replace(partition=0))
    assert bench.send() == []
    (unreadable,) = [said for said in bench.said if isinstance(said, SliceUnreadable)]
    assert unreadable.what == "wrong checksum"
    assert bench.mode() is SendMode.HELD


def test_an_inherited_cut_that_cannot_be_read_is_told_too(bench: ShardBench) -> None:
    bench.grant(cuts=[BatchBounds(0, 3, 0)])
    bench.put(0, 3)
    bench.source.fault = "a bad sector"
    assert bench.send() == []
    (unreadable,) = [said for said in bench.said if isinstance(said, SliceUnreadable)]
    assert (unreadable.first, unreadable.count, unreadable.what) == (0, 3, "a bad sector")
    assert bench.mode() is SendMode.HELD


def test_an_error_of_reading_is_told_with_its_reason(bench: ShardBench) -> None:
    bench.grant()
    bench.source.fault = "a bad sector"
    bench.put(0, 3)
    assert bench.send() == []
    (unreadable,) = [said for said in bench.said if isinstance(said, SliceUnreadable)]
    assert unreadable.what == "a bad sector"


def test_without_journal_slots_nothing_is_cut_and_a_freed_one_lets_it_go_on() -> None:
    bench = ShardBench(slots=0)
    bench.grant()
    bench.put(0, 3)
    assert bench.send() == []
    bench.slots = 1
    bench.listen()
    assert len(bench.send()) == 1


def test_who_found_the_journal_full_beside_one_that_took_the_last_slot_is_told_when_it_is_free() -> None:
    bench = ShardBench(slots=1)
    bench.grant(0)
    bench.grant(1)
    bench.put(0, 3)
    bench.put(1, 3)
    (only,) = bench.send(in_flight_max=1)
    assert len(only.copies) == 1
    bench.answer()
    bench.run()
    assert [bench.ordinals(partition) for partition in (0, 1)] == [[0, 1, 2], [0, 1, 2]]


def test_stuck_partitions_leave_memory_for_another_of_their_node_and_go_on_when_theirs_is_back() -> None:
    bench = ShardBench(batch_bytes=1_000, pool_bytes=16_000)
    bench.budget = 16_000
    for partition in range(3):
        bench.grant(partition)
    for partition in (0, 1):
        for _ in range(30):
            bench.put(partition, 10, size=80)
    stuck = bench.send(in_flight_max=5)
    assert {partition for one in stuck for partition, *_ in one.copies} == {0, 1}
    assert bench.pool.available_for(1) >= 2_000

    bench.put(2, 3)
    bench.wire.clear()
    (sent,) = bench.send()
    assert [partition for partition, *_ in sent.copies] == [2]
    bench.answer()

    bench.wire.extend(stuck)
    bench.run()
    assert [len(bench.ordinals(partition)) for partition in range(3)] == [300, 300, 3]
    assert bench.pool.lent_bytes == 0


def test_every_mode_is_in_the_table_and_gone_is_its_end() -> None:
    assert set(MODE_TRANSITIONS) == set(SendMode)
    assert MODE_TRANSITIONS[SendMode.REVOKED] == frozenset()


def test_credit_is_told_in_small_steps_when_stuck_partitions_hold_nearly_all_of_it() -> None:
    bench = ShardBench(batch_bytes=20_000, pool_bytes=1 << 22)
    bench.budget = 1 << 22
    for partition in range(2):
        bench.grant(partition)
    bench.put(0, 300, size=1_000)
    _ = bench.send()
    (credit,) = bench.table.credits()
    while bench.table.accumulator.received_bytes[1] < credit.total_bytes - 100_000:
        bench.put(0, 10, size=1_000)
    _ = bench.send()
    assert bench.table.credits() == []

    bench.put(1, 70, size=1_000)
    _ = bench.send()

    assert [credit.node for credit in bench.table.credits()] == [1]
