"""Whom a replica remembers after what befell it: the tables of state after a change, on three nodes."""

import pytest
from kafka.protocol.admin.topics import DeleteRecordsRequest
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.error_codes import ErrorCode

from tests.harness.batches import NOW_MS, numbered
from tests.harness.cluster_calls import ClusterBench

OK = ErrorCode.NONE
OOO = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
EIGHT = range(8)


def bench_of_one_minimum() -> ClusterBench:
    return ClusterBench(settings=())


def write(bench: ClusterBench, numbers: range, *, pid: int = 7) -> None:
    """Batches of ten of an id, acknowledged."""
    for number in numbers:
        assert bench.send(number * 10, count=10, pid=pid)[0] == OK


def recognised(bench: ClusterBench, *, node: int) -> list[int]:
    """Which of the eight batches a node's log knows, by offering each to it as leader."""
    if bench.leader != node:
        bench.cluster.elect("t", 0, node, bench.clock.moment)
    return [number for number in EIGHT if bench.send(number * 10, count=10)[0] == OK]


def forgotten(bench: ClusterBench, *, node: int) -> bool:
    """Whether a gap is accepted, so that nothing is known."""
    bench.cluster.elect("t", 0, node, bench.clock.moment)
    return bench.send(7770, count=10) != (OOO, -1)


def delete(bench: ClusterBench, offset: int = -1) -> None:
    """DeleteRecords up to an offset, or everything."""
    kind = DeleteRecordsRequest.DeleteRecordsTopic
    part = kind.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[kind(name="t", partitions=[part])], timeout_ms=1000)
    (told,) = bench.ask(bench.leader, request, 2).topics[0].partitions
    assert told.error_code == OK
    bench.cluster.run_until_stable(bench.clock.moment)


def restart(bench: ClusterBench, node: int, *, clean: bool = True) -> None:
    if clean:
        bench.cluster.stop(node, bench.clock.moment)
    else:
        bench.cluster.kill(node, bench.clock.moment)
        bench.pass_s(10)
    bench.cluster.start(node, bench.clock.moment)


# New leaders


@pytest.mark.parametrize("how", ["none", "move", "stop", "kill"])
def test_running_replicas_know_the_last_five(how: str) -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    match how:
        case "stop":
            bench.cluster.stop(1, bench.clock.moment)
        case "kill":
            bench.cluster.kill(1, bench.clock.moment)
            bench.pass_s(10)
        case _:
            pass
    assert recognised(bench, node=1 if how == "none" else 2) == [3, 4, 5, 6, 7]


def test_a_replica_built_later_from_the_whole_log_knows_the_last_five() -> None:
    bench = ClusterBench(settings=(), replicas=(1, 2))
    write(bench, EIGHT)
    bench.cluster.reassign("t", 0, (1, 2, 3), bench.clock.moment)
    assert recognised(bench, node=3) == [3, 4, 5, 6, 7]


def test_a_replica_that_truncated_a_tail_knows_the_last_five() -> None:
    bench = ClusterBench()
    write(bench, EIGHT)
    bench.cluster.pause(1, bench.clock.moment)
    bench.pass_s(10)
    bench.cluster.delay_metadata(1, 0.3)
    bench.cluster.pause(1, bench.clock.moment, paused=False)
    assert bench.send(80, count=10, node=1, acks=1) == (OK, 80)
    bench.pass_s(0.5)
    assert bench.log_end(1) == 80
    bench.cluster.delay_metadata(1, 0.0)
    assert recognised(bench, node=1) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("clean", [True, False])
def test_a_replica_that_was_restarted_knows_the_last_batch_only(clean: bool) -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    restart(bench, 2, clean=clean)
    assert recognised(bench, node=2) == [7]
    assert recognised(bench, node=3) == [3, 4, 5, 6, 7]


def test_after_all_three_were_killed_together_only_the_last_batch_is_known() -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    for node in (1, 2, 3):
        bench.cluster.kill(node, bench.clock.moment)
    bench.pass_s(10)
    for node in (1, 2, 3):
        bench.cluster.start(node, bench.clock.moment)
    assert recognised(bench, node=2) == [7]


@pytest.mark.parametrize("clean", [True, False])
def test_a_replica_restarted_in_between_knows_its_last_batch_and_what_came_after(clean: bool) -> None:
    bench = bench_of_one_minimum()
    write(bench, range(5))
    restart(bench, 3, clean=clean)
    write(bench, range(5, 8))
    assert recognised(bench, node=3) == [4, 5, 6, 7]


def test_a_replica_that_comes_back_with_an_empty_disk_copies_the_log_and_knows_five() -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    bench.cluster.kill(2, bench.clock.moment)
    bench.pass_s(10)
    bench.cluster.start(2, bench.clock.moment, saved=False)
    assert recognised(bench, node=2) == [3, 4, 5, 6, 7]


# All batches of the id deleted


@pytest.mark.parametrize("node", [1, 2])
def test_running_replicas_keep_an_id_whose_batches_are_deleted(node: int) -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    delete(bench)
    assert bench.latest(1, timestamp=-2) == (OK, 80)
    assert not forgotten(bench, node=node)
    assert recognised(bench, node=node) == [3, 4, 5, 6, 7]


def test_a_replica_built_after_the_deletion_does_not_know_the_id() -> None:
    bench = ClusterBench(settings=(), replicas=(1, 2))
    write(bench, EIGHT)
    delete(bench)
    bench.cluster.reassign("t", 0, (1, 2, 3), bench.clock.moment)
    assert bench.told(3) == []
    assert forgotten(bench, node=3)


@pytest.mark.parametrize("clean", [True, False])
def test_a_replica_restarted_with_an_emptied_log_does_not_know_the_id(clean: bool) -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    delete(bench)
    restart(bench, 2, clean=clean)
    assert forgotten(bench, node=2)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("retention", [True, False])
def test_another_id_left_in_the_log_keeps_the_last_batch(*, clean: bool, retention: bool) -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    assert bench.send(0, pid=8) == (OK, 80)
    if retention:
        bench.cluster.expire_records("t", 0, 80, bench.clock.moment)
    else:
        delete(bench, 80)
    restart(bench, 2, clean=clean)
    assert recognised(bench, node=2) == [7]


@pytest.mark.parametrize(("node", "knows"), [(1, True), (2, False)])
def test_a_killed_follower_does_not_know_the_id_if_retention_took_everything_before_another_id_wrote(
    node: int, *, knows: bool
) -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    bench.cluster.expire_records("t", 0, 80, bench.clock.moment)
    assert bench.send(0, pid=8) == (OK, 80)
    restart(bench, node, clean=False)
    if knows:
        assert recognised(bench, node=node) == [7]
    else:
        assert forgotten(bench, node=node)


def test_a_follower_that_was_down_during_the_deletion_and_had_everything_knows_the_last_batch() -> None:
    bench = bench_of_one_minimum()
    write(bench, EIGHT)
    bench.cluster.stop(3, bench.clock.moment)
    delete(bench)
    bench.cluster.start(3, bench.clock.moment)
    assert recognised(bench, node=3) == [7]


def test_a_follower_that_was_down_while_batches_were_written_and_deleted_does_not_know_the_id() -> None:
    bench = bench_of_one_minimum()
    write(bench, range(5))
    bench.cluster.stop(3, bench.clock.moment)
    write(bench, range(5, 8))
    delete(bench)
    bench.cluster.start(3, bench.clock.moment)
    assert (bench.log_end(3), bench.told(3)) == (80, [])
    assert forgotten(bench, node=3)


# Age


def test_every_replica_forgets_at_its_own_check_by_the_records_own_time() -> None:
    limits = BrokerNodeLimits(default_replicas=3, producer_id_expiration_ms=10_000, producer_id_check_interval_s=2.0)
    bench = ClusterBench(limits=limits)
    old = numbered(7, 0, 0, 1, NOW_MS - 3_600_000)
    assert bench.offer(old).error_code == OK  # type: ignore[union-attr]
    assert bench.told(1) == bench.told(2) == [(7, 0, 0)]
    bench.pass_s(2.5)
    assert bench.told(1) == bench.told(2) == []
    assert bench.send(500) == (OK, 1)


def test_an_expired_id_is_not_loaded_by_a_restart() -> None:
    limits = BrokerNodeLimits(default_replicas=3, producer_id_expiration_ms=10_000)
    bench = ClusterBench(limits=limits, settings=())
    assert bench.offer(numbered(7, 0, 0, 1, NOW_MS - 3_600_000)).error_code == OK  # type: ignore[union-attr]
    restart(bench, 2)
    assert bench.told(2) == []
    assert bench.told(3) == [(7, 0, 0)]


def test_a_replica_whose_clock_is_ahead_forgets_earlier_than_the_others() -> None:
    bench = ClusterBench(limits=BrokerNodeLimits(default_replicas=3, producer_id_check_interval_s=2.0))
    write(bench, range(1))
    bench.cluster.set_clock(2, 86_400_000)
    bench.pass_s(2.5)
    assert (bench.told(1), bench.told(2)) == ([(7, 0, 9)], [])
    assert forgotten(bench, node=2)


def test_the_time_after_which_producers_are_forgotten_may_change_while_nodes_run() -> None:
    bench = ClusterBench(limits=BrokerNodeLimits(default_replicas=3, producer_id_check_interval_s=2.0))
    write(bench, range(1))
    bench.pass_s(2.5)
    assert bench.told(1) == [(7, 0, 9)]
    bench.cluster.set_limits(bench.cluster.limits._replace(producer_id_expiration_ms=1000))
    bench.pass_s(2.5)
    assert bench.told(1) == bench.told(3) == []


# Topics made again


def test_a_topic_made_again_has_another_id_a_first_epoch_and_no_memory() -> None:
    bench = ClusterBench()
    write(bench, range(2))
    bench.cluster.elect("t", 0, 2, bench.clock.moment)
    old = bench.cluster.controller.topic("t").id
    bench.cluster.recreate("t", bench.clock.moment)
    assert bench.cluster.controller.topic("t").id != old
    assert bench.epoch == 0
    assert bench.send(20, count=10) == (OK, 0)
    assert bench.send(10, count=10) == (OOO, -1)
    assert bench.send(30, count=10) == (OK, 10)


def test_a_request_that_waits_while_its_topic_is_made_again_is_not_answered_for_the_new_one() -> None:
    bench = ClusterBench()
    bench.cluster.pause_replication(2, bench.clock.moment)
    waiting = bench.offer(numbered(7, 0, 0, 1, bench.clock.wall_ms))
    bench.cluster.recreate("t", bench.clock.moment)
    assert bench.finish(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
