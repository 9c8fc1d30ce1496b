"""What a partition remembers of idempotent producers, seen from outside by Produce and DescribeProducers."""

import pytest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.error_codes import ErrorCode

from tests.harness.batches import NOW_MS, Head, Rec, batch, numbered
from tests.harness.broker_calls import Bench, KeptLogs

OK = ErrorCode.NONE
OOO = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
STALE = ErrorCode.INVALID_PRODUCER_EPOCH
LAST = (1 << 31) - 1


def send(
    bench: Bench, epoch: int, sequence: int, count: int = 1, timestamp: int | None = None, pid: int = 7
) -> tuple[int, int]:
    """The error and base offset of a batch of producer 7."""
    part = bench.produce(numbered(pid, epoch, sequence, count, bench.clock.wall_ms if timestamp is None else timestamp))
    return part.error_code, part.base_offset


def known(bench: Bench) -> list[tuple[int, int, int, int]]:
    """Id, epoch, last sequence and timestamp of the producers of partition 0."""
    asked = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
    answer = bench.ask(DescribeProducersRequest(topics=[asked]), 0)
    (part,) = answer.topics[0].partitions
    assert part.error_code == 0
    states = part.active_producers
    return [(one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp) for one in states]


@pytest.mark.parametrize(("epoch", "sequence"), [(0, 0), (0, 5), (3, 0), (32767, LAST)])
def test_without_a_memory_of_an_id_any_first_batch_is_taken(epoch: int, sequence: int) -> None:
    bench = Bench()
    assert send(bench, epoch, sequence) == (OK, 0)
    assert known(bench) == [(7, epoch, sequence, NOW_MS)]


def test_the_last_five_batches_are_duplicates_and_the_sixth_is_out_of_order() -> None:
    bench = Bench()
    assert [send(bench, 0, sequence, 10) for sequence in range(0, 60, 10)] == [(OK, n) for n in range(0, 60, 10)]
    assert [send(bench, 0, sequence, 10) for sequence in range(10, 60, 10)] == [(OK, n) for n in range(10, 60, 10)]
    assert send(bench, 0, 0, 10) == (OOO, -1)
    assert bench.end() == 60


def test_a_duplicate_tells_the_stored_timestamp_and_the_log_start() -> None:
    bench = Bench()
    first = bench.produce(numbered(7, 0, 0, 1, NOW_MS - 9))
    again = bench.produce(numbered(7, 0, 0, 1, NOW_MS - 9))
    assert (first.log_append_time_ms, first.log_start_offset) == (-1, 0)
    assert (again.log_append_time_ms, again.log_start_offset, again.base_offset) == (NOW_MS - 9, 0, 0)


def test_contents_are_not_compared() -> None:
    bench = Bench()
    assert bench.produce(batch((Rec(b"one"),), Head(7, 0, 0))).base_offset == 0
    assert bench.produce(batch((Rec(b"two, and longer"),), Head(7, 0, 0))).base_offset == 0
    assert bench.end() == 1


@pytest.mark.parametrize(("sequence", "count"), [(0, 5), (0, 20), (5, 5), (5, 10), (11, 1), (20, 10)])
def test_another_cut_or_a_gap_is_out_of_order_and_tells_the_log_start(sequence: int, count: int) -> None:
    bench = Bench()
    assert send(bench, 0, 0, 10) == (OK, 0)
    part = bench.produce(numbered(7, 0, sequence, count))
    assert (part.error_code, part.base_offset, part.log_start_offset) == (OOO, -1, 0)
    assert send(bench, 0, 10, 1) == (OK, 10)


def test_a_second_batch_that_came_first_is_in_the_log_and_the_first_is_out_of_order_for_ever() -> None:
    bench = Bench()
    assert send(bench, 0, 10, 10) == (OK, 0)
    assert [send(bench, 0, 0, 10) for _ in range(3)] == [(OOO, -1)] * 3
    assert send(bench, 0, 20, 10) == (OK, 10)


def test_a_higher_epoch_starts_at_zero_and_shuts_the_old_one_out() -> None:
    bench = Bench()
    assert send(bench, 3, 0) == (OK, 0)
    assert send(bench, 5, 1) == (OOO, -1)
    assert send(bench, 5, 0) == (OK, 1)
    part = bench.produce(numbered(7, 3, 0))
    assert (part.error_code, part.base_offset, part.log_start_offset) == (STALE, -1, 0)
    assert send(bench, 4, 0) == (STALE, -1)
    assert send(bench, 32767, 0) == (OK, 2)


def test_a_refused_bump_leaves_the_old_epoch_as_it_was() -> None:
    bench = Bench()
    assert send(bench, 0, 0) == (OK, 0)
    assert send(bench, 1, 1) == (OOO, -1)
    assert send(bench, 0, 0) == (OK, 0)
    assert send(bench, 0, 1) == (OK, 1)


def test_sequences_go_round_inside_a_batch_and_between_batches() -> None:
    bench = Bench()
    assert send(bench, 0, LAST - 2, 7) == (OK, 0)
    assert known(bench) == [(7, 0, 3, NOW_MS)]
    assert send(bench, 0, LAST - 2, 7) == (OK, 0)
    assert send(bench, 0, 4) == (OK, 7)
    other = Bench()
    assert send(other, 0, LAST) == (OK, 0)
    assert send(other, 0, 1) == (OOO, -1)
    assert send(other, 0, 0) == (OK, 1)


def test_partitions_and_ids_know_nothing_of_each_other() -> None:
    bench = Bench()
    assert send(bench, 0, 0) == (OK, 0)
    assert send(bench, 0, 9, pid=8) == (OK, 1)
    assert bench.produce(numbered(7, 0, 100), partition=1).error_code == OK
    assert send(bench, 0, 1) == (OK, 2)
    assert [one[:3] for one in known(bench)] == [(7, 0, 1), (8, 0, 9)]


def test_batches_without_an_id_are_appended_every_time() -> None:
    bench = Bench()
    assert [bench.produce(batch()).base_offset for _ in range(3)] == [0, 1, 2]
    assert known(bench) == []


def test_after_a_restart_only_the_last_batch_is_recognised_and_the_window_grows_again() -> None:
    bench = Bench(logs=KeptLogs())
    assert [send(bench, 0, sequence) for sequence in range(4)] == [(OK, n) for n in range(4)]
    bench.restart()
    assert send(bench, 0, 2) == (OOO, -1)
    assert send(bench, 0, 3) == (OK, 3)
    assert send(bench, 0, 5) == (OOO, -1)
    assert [send(bench, 0, sequence) for sequence in (4, 5)] == [(OK, 4), (OK, 5)]
    assert [send(bench, 0, sequence) for sequence in (3, 4, 5)] == [(OK, 3), (OK, 4), (OK, 5)]
    assert bench.end() == 6


def test_after_a_restart_the_last_batch_is_recognised_behind_many_of_another_id() -> None:
    bench = Bench(logs=KeptLogs())
    assert send(bench, 2, 0) == (OK, 0)
    for sequence in range(50):
        assert send(bench, 0, sequence, pid=8)[0] == OK
    bench.restart()
    assert send(bench, 2, 0) == (OK, 0)
    assert send(bench, 1, 0) == (STALE, -1)
    assert send(bench, 2, 1) == (OK, 51)


def test_after_a_restart_without_its_log_a_node_takes_anything() -> None:
    bench = Bench()
    assert send(bench, 4, 0) == (OK, 0)
    bench.restart()
    assert send(bench, 1, 77) == (OK, 0)


LIMITS = BrokerNodeLimits(producer_id_expiration_ms=10_000, producer_id_check_interval_s=2.0)


def upkeep(bench: Bench) -> None:
    bench.node.upkeep(bench.clock.moment)


def test_an_id_is_forgotten_when_its_last_record_is_old_enough_and_not_before() -> None:
    bench = Bench(limits=LIMITS)
    assert send(bench, 0, 0) == (OK, 0)
    bench.clock.pass_ms(9_999)
    upkeep(bench)
    assert [one[0] for one in known(bench)] == [7]
    bench.clock.pass_ms(2_000)
    upkeep(bench)
    assert known(bench) == []
    assert send(bench, 0, 500) == (OK, 1)


def test_an_expired_id_is_still_known_until_the_check() -> None:
    bench = Bench(limits=LIMITS)
    bench.clock.pass_ms(500)
    upkeep(bench)
    assert send(bench, 0, 0, timestamp=0) == (OK, 0)
    bench.clock.pass_ms(1_400)
    upkeep(bench)
    assert send(bench, 0, 0, timestamp=0) == (OK, 0)
    bench.clock.pass_ms(100)
    assert bench.node.next_deadline() == pytest.approx(bench.clock.now)
    upkeep(bench)
    assert send(bench, 0, 0, timestamp=0) == (OK, 1)


def test_only_the_last_batch_counts_for_the_age_not_the_newest_record() -> None:
    bench = Bench(limits=LIMITS)
    assert send(bench, 0, 0) == (OK, 0)
    assert send(bench, 0, 1, timestamp=NOW_MS - 3_600_000) == (OK, 1)
    bench.clock.pass_ms(2_000)
    upkeep(bench)
    assert known(bench) == []


def test_the_largest_timestamp_of_the_last_batch_counts() -> None:
    bench = Bench(limits=LIMITS)
    records = (Rec(timestamp=0), Rec(timestamp=NOW_MS), Rec(timestamp=0))
    assert bench.produce(batch(records, Head(7, 0, 0))).error_code == OK
    bench.clock.pass_ms(2_000)
    upkeep(bench)
    assert known(bench) == [(7, 0, 2, NOW_MS)]


def test_on_a_topic_with_log_append_time_the_append_counts() -> None:
    bench = Bench(limits=LIMITS, settings=(("message.timestamp.type", "LogAppendTime"),))
    part = bench.produce(numbered(7, 0, 0, 1, 0))
    assert (part.error_code, part.log_append_time_ms) == (OK, NOW_MS)
    bench.clock.pass_ms(9_000)
    upkeep(bench)
    assert known(bench) == [(7, 0, 0, NOW_MS)]


def test_an_old_last_batch_is_not_recognised_after_a_restart() -> None:
    bench = Bench(limits=LIMITS, logs=KeptLogs())
    assert send(bench, 0, 0, timestamp=NOW_MS - 10_000) == (OK, 0)
    assert send(bench, 0, 1, timestamp=NOW_MS - 10_000) == (OK, 1)
    bench.restart()
    assert known(bench) == []
    assert send(bench, 0, 1) == (OK, 2)


def test_a_topic_made_again_knows_nothing_of_its_producers() -> None:
    bench = Bench()
    old = bench.node.topic("t")
    assert old is not None
    assert send(bench, 0, 0) == (OK, 0)
    assert bench.node.delete_topic(old, bench.clock.moment)
    gone = bench.produce(numbered(7, 0, 1))
    assert (gone.error_code, gone.log_start_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    new = bench.node.create_topic("t", 3, (), bench.clock.moment)
    assert new is not None
    assert new.id != old.id
    assert send(bench, 0, 6) == (OK, 0)
    assert send(bench, 0, 5) == (OOO, -1)
