"""Replicas: what waits for them, who leads, what is cut off, and who remembers which producer."""

import pytest
from kafka.protocol.admin.topics import CreateTopicsRequest
from penstock.broker.cluster.controller import CONTROLLER, PlacementError
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.replication.replicated_cluster import NoNodeError

from tests.harness.batches import numbered
from tests.harness.cluster_calls import ClusterBench, Waiting

OK = ErrorCode.NONE
OOO = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER
LATE = ErrorCode.REQUEST_TIMED_OUT
TOO_FEW = ErrorCode.NOT_ENOUGH_REPLICAS


def batches(bench: ClusterBench, count: int, *, first: int = 0) -> None:
    """Batches of ten records, one behind the other, all acknowledged."""
    for number in range(first, first + count):
        assert bench.send(number * 10, count=10) == (OK, number * 10)


def tenth(bench: ClusterBench, number: int) -> bytes:
    return numbered(7, 0, number * 10, 10, bench.clock.wall_ms)


def answered(found: object) -> tuple[int, int]:
    assert not isinstance(found, Waiting)
    return found.error_code, found.base_offset  # type: ignore[attr-defined]


# acks -1 and its waiting


def test_an_acknowledged_batch_is_on_all_replicas_and_seen_by_readers() -> None:
    bench = ClusterBench()
    batches(bench, 3)
    assert [bench.log_end(node) for node in (1, 2, 3)] == [30, 30, 30]
    assert [bench.high_watermark(node) for node in (1, 2, 3)] == [30, 30, 30]
    assert len(bench.fetched(1)) > 0


def test_a_batch_waits_for_a_slow_replica_until_its_time_is_up_and_tells_its_offset() -> None:
    bench = ClusterBench()
    batches(bench, 1)
    bench.cluster.pause_replication(2, bench.clock.moment)
    waiting = bench.offer(tenth(bench, 1))
    assert isinstance(waiting, Waiting)
    assert waiting.until == bench.clock.now + 2
    assert (bench.log_end(1), bench.high_watermark(1)) == (20, 10)
    bench.clock.pass_ms(1999)
    waiting = bench.go_on(waiting)
    assert isinstance(waiting, Waiting)
    bench.clock.pass_ms(1)
    part = bench.finish(waiting)
    assert (part.error_code, part.base_offset, part.log_start_offset) == (LATE, 10, 0)
    assert bench.latest(1) == (OK, 10)
    assert bench.log_end(1) == 20


def test_a_duplicate_waits_for_the_original_too_unless_it_is_committed_or_asked_for_with_one_ack() -> None:
    bench = ClusterBench()
    batches(bench, 1)
    bench.cluster.pause_replication(2, bench.clock.moment)
    first = bench.offer(tenth(bench, 1))
    again = bench.offer(tenth(bench, 1))
    assert isinstance(first, Waiting)
    assert isinstance(again, Waiting)
    assert answered(bench.offer(tenth(bench, 1), acks=1)) == (OK, 10)
    assert answered(bench.offer(tenth(bench, 0))) == (OK, 0)
    assert answered(bench.offer(numbered(7, 0, 10, 5))) == (OOO, -1)
    bench.cluster.pause_replication(2, bench.clock.moment, held=False)
    assert answered(bench.finish(first)) == (OK, 10)
    assert answered(bench.finish(again)) == (OK, 10)
    assert bench.log_end(1) == 20


def test_readers_do_not_see_what_is_not_on_all_in_sync_replicas() -> None:
    bench = ClusterBench()
    batches(bench, 1)
    before = bench.fetched(1)
    bench.cluster.pause_replication(3, bench.clock.moment)
    assert bench.send(10, count=10, acks=1) == (OK, 10)
    assert bench.fetched(1) == before
    assert bench.latest(1) == (OK, 10)
    bench.cluster.pause_replication(3, bench.clock.moment, held=False)
    assert len(bench.fetched(1)) == 2 * len(before)


def test_a_replica_that_lags_is_expelled_and_taken_in_again_when_it_is_level() -> None:
    bench = ClusterBench()
    bench.cluster.pause_replication(3, bench.clock.moment)
    waiting = bench.offer(tenth(bench, 0), timeout_ms=60_000)
    bench.pass_s(30)
    assert bench.in_sync == {1, 2, 3}
    bench.pass_s(1)
    assert bench.in_sync == {1, 2}
    assert answered(bench.finish(waiting)) == (OK, 0)
    bench.cluster.pause_replication(3, bench.clock.moment, held=False)
    assert bench.in_sync == {1, 2, 3}
    assert bench.log_end(3) == 10


def test_a_follower_that_is_held_but_level_stays_in_sync_only_as_long_as_nothing_is_written() -> None:
    bench = ClusterBench()
    bench.cluster.pause_replication(3, bench.clock.moment)
    bench.pass_s(100)
    assert bench.in_sync == {1, 2, 3}


def test_too_few_in_sync_replicas_refuse_duplicates_and_gaps_as_well_and_write_nothing() -> None:
    bench = ClusterBench()
    batches(bench, 2)
    for node in (2, 3):
        bench.cluster.kill(node, bench.clock.moment)
    bench.pass_s(10)
    assert bench.in_sync == {1}
    assert [bench.send(number, count=10) for number in (20, 10, 77)] == [(TOO_FEW, -1)] * 3
    assert bench.send(10, count=10, acks=1) == (OK, 10)
    assert bench.log_end(1) == 20
    bench.cluster.start(2, bench.clock.moment)
    assert bench.in_sync == {1, 2}
    batches(bench, 1, first=2)


def test_a_batch_whose_replicas_are_lost_while_it_waits_runs_into_its_time_out_and_is_told_its_offset() -> None:
    bench = ClusterBench()
    batches(bench, 1)
    for node in (2, 3):
        bench.cluster.kill(node, bench.clock.moment)
    waiting = bench.offer(tenth(bench, 1), timeout_ms=30_000)
    bench.pass_s(20)
    assert bench.in_sync == {1}
    assert isinstance(waiting, Waiting)
    assert isinstance(bench.go_on(waiting), Waiting), "what too few replicas have is not on all of them"
    bench.pass_s(11)
    part = bench.finish(waiting)
    assert (part.error_code, part.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 10)
    assert bench.log_end(1) == 20


def test_replicas_lost_after_they_had_the_batch_are_told_with_the_offset() -> None:
    bench = ClusterBench()
    batches(bench, 1)
    for node in (2, 3):
        bench.cluster.pause_replication(node, bench.clock.moment)
    waiting = bench.offer(tenth(bench, 1), timeout_ms=60_000)
    for node in (2, 3):
        bench.cluster.pause_replication(node, bench.clock.moment, held=False)
    bench.pass_s(1)
    for node in (2, 3):
        bench.cluster.kill(node, bench.clock.moment)
    bench.pass_s(10)
    assert bench.in_sync == {1}
    part = bench.finish(waiting)
    assert (part.error_code, part.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 10)


def test_a_minimum_above_the_number_of_replicas_refuses_nothing() -> None:
    bench = ClusterBench(settings=(("min.insync.replicas", "5"),))
    bench.cluster.reassign("t", 0, (1,), bench.clock.moment)
    assert bench.send(0) == (OK, 0)


# Leaders


def test_a_move_of_the_leader_raises_the_epoch_and_keeps_the_last_five() -> None:
    bench = ClusterBench()
    batches(bench, 7)
    epoch = bench.epoch
    bench.cluster.elect("t", 0, 2, bench.clock.moment)
    assert (bench.leader, bench.epoch) == (2, epoch + 1)
    assert [bench.send(number * 10, count=10) for number in range(2, 7)] == [(OK, n * 10) for n in range(2, 7)]
    assert bench.send(10, count=10) == (OOO, -1)
    batches(bench, 1, first=7)
    part = bench.offer(tenth(bench, 8), node=1)
    assert answered(part) == (MOVED, -1)
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, epoch + 1)  # type: ignore[union-attr]


def test_epochs_are_checked_where_clients_name_them() -> None:
    bench = ClusterBench()
    epoch = bench.epoch
    batches(bench, 2)
    bench.cluster.elect("t", 0, 2, bench.clock.moment)
    now = bench.epoch
    assert bench.latest(2, epoch=now) == (OK, 20)
    assert bench.latest(2) == (OK, 20)
    assert bench.latest(1, epoch=now) == (MOVED, -1)
    assert bench.latest(2, epoch=now - 1) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert bench.latest(2, epoch=now + 1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
    assert bench.epoch_end(2, epoch, current=now) == (OK, epoch, 20)
    assert bench.epoch_end(2, now) == (OK, now, 20)
    assert bench.epoch_end(2, now + 1) == (OK, -1, -1)
    assert bench.epoch_end(1, epoch)[0] == MOVED
    batches(bench, 1, first=2)
    assert bench.epoch_end(2, epoch) == (OK, epoch, 20)
    assert bench.epoch_end(2, now) == (OK, now, 30)


def test_a_new_leader_that_hears_late_sends_clients_back_to_the_old_one() -> None:
    bench = ClusterBench()
    bench.cluster.delay_metadata(2, 1.0)
    bench.cluster.elect("t", 0, 2, bench.clock.moment)
    assert bench.metadata(1)[1] == bench.metadata(3)[1] == 2
    part = bench.offer(tenth(bench, 0), node=2)
    assert answered(part) == (MOVED, -1)
    assert part.current_leader.leader_id == 1  # type: ignore[union-attr]
    bench.pass_s(1)
    assert bench.send(0, count=10, node=2) == (OK, 0)


def test_a_stopped_leader_hands_over_at_once_and_a_killed_one_when_its_session_ends() -> None:
    bench = ClusterBench()
    bench.cluster.stop(1, bench.clock.moment)
    assert bench.leader == 2
    bench.cluster.kill(2, bench.clock.moment)
    bench.pass_s(8)
    assert bench.leader == 2
    bench.pass_s(1)
    assert bench.leader == 3
    with pytest.raises(NoNodeError):
        _ = bench.cluster.node(2)


def test_the_last_one_in_sync_leads_again_when_it_comes_back_and_nobody_before() -> None:
    bench = ClusterBench(settings=())
    for node in (2, 3):
        bench.cluster.kill(node, bench.clock.moment)
    bench.pass_s(10)
    batches(bench, 1)
    bench.cluster.kill(1, bench.clock.moment)
    bench.cluster.start(2, bench.clock.moment)
    bench.pass_s(10)
    assert bench.metadata(2)[:2] == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    with pytest.raises(PlacementError):
        bench.cluster.elect("t", 0, 2, bench.clock.moment)
    bench.cluster.start(1, bench.clock.moment)
    assert bench.leader == 1
    assert bench.log_end(2) == 10


# Deposed leaders


def test_a_deposed_leader_answers_from_its_own_log_until_it_hears_of_it_and_its_tail_is_cut() -> None:
    bench = ClusterBench()
    batches(bench, 2)
    bench.cluster.pause(1, bench.clock.moment)
    bench.pass_s(9)
    assert bench.leader == 2
    batches(bench, 1, first=2)
    bench.cluster.delay_metadata(1, 0.3)
    bench.cluster.pause(1, bench.clock.moment, paused=False)
    assert bench.send(70, node=1) == (OOO, -1)
    assert bench.send(10, count=10, node=1) == (OK, 10)
    assert bench.send(20, count=5, node=1, acks=1) == (OK, 20)
    waiting = bench.offer(numbered(7, 0, 25, 5), node=1)
    assert isinstance(waiting, Waiting)
    assert bench.told(1) == [(7, 0, 29)]
    bench.pass_s(0.5)
    part = bench.finish(waiting)
    assert (part.error_code, part.base_offset) == (MOVED, 25)
    assert part.current_leader.leader_id == 2
    assert bench.log(1) == bench.log(2)
    assert bench.log_end(1) == 30
    assert bench.told(1) == [(7, 0, 29)]
    assert bench.send(20, count=5, node=2) == (OOO, -1)
    assert bench.send(20, count=10, node=2) == (OK, 20)


@pytest.mark.parametrize("followers_too", [True, False])
def test_a_leader_cut_off_from_the_controller_goes_on_without_end_and_completes_nothing(followers_too: bool) -> None:
    bench = ClusterBench()
    batches(bench, 2)
    epoch = bench.epoch
    bench.cluster.cut_link(1, CONTROLLER, bench.clock.moment)
    if followers_too:
        bench.cluster.cut_link(1, 2, bench.clock.moment)
        bench.cluster.cut_link(1, 3, bench.clock.moment)
    else:
        assert bench.send(20, count=10) == (OK, 20)
        batches(bench, 1, first=3)
    end = bench.log_end(1)
    bench.pass_s(100)
    assert bench.leader in {2, 3}
    assert bench.send(777, node=1) == (OOO, -1)
    assert bench.send(10, count=10, node=1) == (OK, 10)
    assert bench.metadata(1) == (OK, 1, epoch, {1, 2, 3})
    assert bench.latest(1, epoch=bench.epoch)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert bench.send(end, node=1, acks=1) == (OK, end)
    waiting = bench.offer(numbered(7, 0, end + 1), node=1)
    assert isinstance(waiting, Waiting)
    bench.pass_s(2)
    assert answered(bench.finish(waiting)) == (LATE, end + 1)
    assert bench.log_end(1) == end + 2
    bench.cluster.heal(bench.clock.moment)
    assert bench.log_end(1) == bench.log_end(2) == end
    assert bench.log(1) == bench.log(2)
    assert bench.told(1) == [(7, 0, end - 1)]


def test_a_lonely_leader_with_a_minimum_of_one_goes_on_acknowledging_what_is_lost() -> None:
    bench = ClusterBench(settings=())
    for node in (2, 3):
        bench.cluster.kill(node, bench.clock.moment)
    bench.pass_s(10)
    batches(bench, 1)
    bench.cluster.cut_link(1, CONTROLLER, bench.clock.moment)
    bench.cluster.cut_link(1, 2, bench.clock.moment)
    bench.cluster.start(2, bench.clock.moment)
    bench.pass_s(10)
    bench.cluster.elect("t", 0, 2, bench.clock.moment, unclean=True)
    assert bench.send(10, node=1) == (OK, 10)
    assert bench.send(0, node=2) == (OK, 0)
    bench.cluster.heal(bench.clock.moment)
    assert bench.log_end(1) == 1


def test_what_must_go_to_the_controller_waits_as_long_as_it_is_out_of_reach() -> None:
    bench = ClusterBench()
    bench.cluster.cut_link(1, CONTROLLER, bench.clock.moment)
    topic = CreateTopicsRequest.CreatableTopic(
        name="u", num_partitions=1, replication_factor=3, assignments=[], configs=[]
    )
    waiting = bench.start(1, CreateTopicsRequest(topics=[topic], timeout_ms=1000), 4)
    assert isinstance(waiting, Waiting)
    bench.pass_s(6)
    waiting = bench.go_on(waiting)
    assert isinstance(waiting, Waiting)
    bench.cluster.heal(bench.clock.moment)
    answer = bench.go_on(waiting)
    assert not isinstance(answer, Waiting)
    assert answer.topics[0].error_code == 0


# Unclean elections


def lost_by_two(bench: ClusterBench) -> None:
    """Node 2 leads without the batches that node 1 alone had acknowledged: 2 to 6 of ten records each."""
    batches(bench, 2)
    bench.cluster.pause_replication(2, bench.clock.moment)
    bench.cluster.kill(3, bench.clock.moment)
    bench.pass_s(31)
    for number in range(2, 7):
        assert bench.send(number * 10, count=10) == (OK, number * 10)
    bench.pass_s(31)
    assert bench.in_sync == {1}
    bench.cluster.kill(1, bench.clock.moment)
    bench.pass_s(10)
    bench.cluster.pause_replication(2, bench.clock.moment, held=False)
    bench.cluster.elect("t", 0, 2, bench.clock.moment, unclean=True)


def test_an_unclean_leader_takes_lost_records_again_under_their_old_stamps() -> None:
    bench = ClusterBench(settings=())
    old = bench.epoch
    lost_by_two(bench)
    assert bench.in_sync == {2}
    assert [bench.send(number * 10, count=10) for number in (7, 6, 5, 4, 3)] == [(OOO, -1)] * 5
    assert bench.epoch_end(2, old) == (OK, old, 20)
    batches(bench, 5, first=2)
    bench.cluster.start(1, bench.clock.moment)
    assert [bench.log_end(1), bench.log_end(2)] == [70, 70]
    assert bench.log(1) == bench.log(2)


def test_a_clean_move_ends_the_old_epoch_above_everything_acknowledged() -> None:
    bench = ClusterBench()
    old = bench.epoch
    batches(bench, 7)
    bench.cluster.kill(1, bench.clock.moment)
    bench.pass_s(10)
    assert bench.epoch_end(bench.leader, old) == (OK, old, 70)
