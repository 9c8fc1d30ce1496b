"""What a leader is asked before anything is sent, and what follows from its answers."""

import pytest
from penstock.producer.sender.leader_checks import LEAST_VERSION, LeaderCheckResult, read_results, request_for
from penstock.producer.sender.modes import LeaderCheck, SendMode
from penstock.wire.messages import FIRST, OPEN, Anchor, NewLeaderHint, PartitionHalted

from tests.fakes.segments import NOW_MS
from tests.fakes.shard_bench import TOPIC, ShardBench

NOT_LEADER = 6
UNKNOWN_TOPIC = 3
AUTHORIZATION = 29


@pytest.fixture
def bench() -> ShardBench:
    made = ShardBench()
    made.answers_questions = False
    return made


def anchor(offset: int = 100, leader_epoch: int = 0) -> Anchor:
    return Anchor(offset, NOW_MS, NOW_MS, leader_epoch)


def answer(bench: ShardBench, question: LeaderCheck, code: int, value: int | bytes) -> None:
    """Answer the one question that is due."""
    (asked,) = bench.table.due_checks(1, now=bench.now)
    assert asked.check is question
    bench.table.check_sent(asked, known=True, now=bench.now)
    assert bench.table.due_checks(1, now=bench.now) == [], "it is on its way"
    part = -1 if question is LeaderCheck.TOPIC_ID else 0
    bench.table.check_answered(asked, [LeaderCheckResult(TOPIC, part, code, value)], now=bench.now, chance=0.5)
    bench.listen()


def test_nothing_is_sent_after_a_grant_with_an_anchor_before_the_log_start_is_told(bench: ShardBench) -> None:
    bench.grant(anchor=anchor())
    bench.put(0, 3)
    assert bench.send() == []
    answer(bench, LeaderCheck.LOG_START, 0, 7)
    assert len(bench.send()) == 1
    assert bench.table.partitions[0].log_start == 7
    assert bench.table.awaiting_checks == set()


def test_a_grant_without_an_anchor_asks_nothing(bench: ShardBench) -> None:
    bench.grant(pace=FIRST)
    assert bench.table.due_checks(1, now=bench.now) == []


def test_a_log_start_above_the_anchor_leaves_one_record_alone_until_the_pace_opens(bench: ShardBench) -> None:
    bench.grant(anchor=anchor(100))
    bench.put(0, 5)
    answer(bench, LeaderCheck.LOG_START, 0, 101)
    bench.log().start = 101
    (wire,) = bench.send()
    assert wire.copies[0][2] == 1
    bench.answer()
    assert bench.done[-1].log_start == 101
    assert bench.send() == []
    bench.pace(OPEN)
    bench.run()
    assert bench.ordinals() == list(range(5))


def test_a_log_start_in_an_answer_above_the_anchor_does_the_same(bench: ShardBench) -> None:
    bench.grant(anchor=anchor(100))
    bench.put(0, 1)
    answer(bench, LeaderCheck.LOG_START, 0, 0)
    bench.log().start = 150
    bench.send()
    bench.answer()
    assert bench.table.partitions[0].pace == FIRST
    bench.put(0, 5)
    assert bench.send() == []


def test_a_long_pause_asks_again_before_the_next_batch(bench: ShardBench) -> None:
    bench.grant(anchor=anchor(0))
    answer(bench, LeaderCheck.LOG_START, 0, 0)
    bench.put(0, 1)
    bench.run()
    bench.now += 601
    bench.put(0, 1)
    assert bench.send() == []
    answer(bench, LeaderCheck.LOG_START, 0, 0)
    assert len(bench.send()) == 1


def test_acknowledgements_keep_a_busy_partition_from_asking(bench: ShardBench) -> None:
    bench.grant(anchor=anchor(0))
    answer(bench, LeaderCheck.LOG_START, 0, 0)
    for _ in range(5):
        bench.now += 300
        bench.put(0, 1)
        bench.run()
    assert len(bench.ordinals()) == 5


def test_a_log_that_is_shorter_than_what_was_acknowledged_halts_with_the_range(bench: ShardBench) -> None:
    bench.grant(anchor=anchor(100, leader_epoch=3), leader_epoch=4)
    bench.put(0, 1)
    start, end = bench.table.due_checks(1, now=bench.now)
    assert (start.check, end.check) == (LeaderCheck.LOG_START, LeaderCheck.EPOCH_END)
    bench.table.check_answered(start, [LeaderCheckResult(TOPIC, 0, 0, 0)], now=bench.now, chance=0.5)
    assert bench.send() == []
    answer(bench, LeaderCheck.EPOCH_END, 0, 100)
    assert bench.send() == []
    answer(bench, LeaderCheck.LOG_END, 0, 100)
    (halt,) = [said for said in bench.said if isinstance(said, PartitionHalted)]
    assert "ends at 100" in halt.message
    assert "offset 100" in halt.message
    assert bench.mode() is SendMode.HELD


def test_a_batch_taken_under_an_epoch_that_is_heard_of_later_is_not_taken_for_lost(bench: ShardBench) -> None:
    """The leader was elected again while we sent: what it acknowledged lies behind the end of the epoch that we knew."""
    bench.grant(anchor=anchor(100, leader_epoch=3), leader_epoch=4)
    bench.put(0, 1)
    start, _ = bench.table.due_checks(1, now=bench.now)
    bench.table.check_answered(start, [LeaderCheckResult(TOPIC, 0, 0, 0)], now=bench.now, chance=0.5)
    answer(bench, LeaderCheck.EPOCH_END, 0, 90)
    answer(bench, LeaderCheck.LOG_END, 0, 101)
    assert [said for said in bench.said if isinstance(said, PartitionHalted)] == []
    assert len(bench.send()) == 1


@pytest.mark.parametrize("end", [-1, 101])
def test_a_log_that_ended_behind_it_or_is_not_known_goes_on(bench: ShardBench, end: int) -> None:
    bench.grant(anchor=anchor(100, leader_epoch=3), leader_epoch=4)
    bench.put(0, 1)
    for asked in bench.table.due_checks(1, now=bench.now):
        value = 0 if asked.check is LeaderCheck.LOG_START else end
        bench.table.check_answered(asked, [LeaderCheckResult(TOPIC, 0, 0, value)], now=bench.now, chance=0.5)
    assert len(bench.send()) == 1


def test_a_move_to_a_newer_epoch_asks_how_the_older_one_ended(bench: ShardBench) -> None:
    bench.grant(anchor=anchor(0))
    answer(bench, LeaderCheck.LOG_START, 0, 0)
    bench.put(0, 1)
    bench.send()
    bench.move(1, 7)
    answer(bench, LeaderCheck.EPOCH_END, 0, 5)
    assert len(bench.send()) == 1


def test_who_is_not_the_leader_is_asked_again_after_a_while(bench: ShardBench) -> None:
    bench.grant(anchor=anchor())
    answer(bench, LeaderCheck.LOG_START, NOT_LEADER, -1)
    assert [said.leader for said in bench.said if isinstance(said, NewLeaderHint)] == [-1]
    assert bench.table.due_checks(1, now=bench.now) == []
    assert bench.table.next_check_at(1) == pytest.approx(bench.now + 0.1)
    bench.now += 0.2
    answer(bench, LeaderCheck.LOG_START, 0, 0)


def test_a_lost_question_is_asked_again(bench: ShardBench) -> None:
    bench.grant(anchor=anchor())
    (asked,) = bench.table.due_checks(1, now=bench.now)
    bench.table.check_sent(asked, known=True, now=bench.now)
    bench.table.check_answered(asked, [], now=bench.now, chance=0.5)
    bench.now += 1
    answer(bench, LeaderCheck.LOG_START, 0, 0)


def test_what_produce_will_be_refused_for_too_is_left_to_produce(bench: ShardBench) -> None:
    bench.grant(anchor=anchor())
    bench.put(0, 1)
    answer(bench, LeaderCheck.LOG_START, AUTHORIZATION, -1)
    assert len(bench.send()) == 1


def test_a_broker_without_the_question_is_not_waited_for(bench: ShardBench) -> None:
    bench.grant(anchor=anchor())
    bench.put(0, 1)
    (asked,) = bench.table.due_checks(1, now=bench.now)
    bench.table.check_sent(asked, known=False, now=bench.now)
    assert len(bench.send()) == 1


def test_a_topic_made_again_under_its_name_takes_nothing_of_ours(bench: ShardBench) -> None:
    lease = bench.grant(pace=FIRST)
    lease.topic_id = b"1" * 16
    bench.put(0, 1)
    bench.table.confirm_topics(1)
    assert bench.send() == []
    answer(bench, LeaderCheck.TOPIC_ID, 0, b"2" * 16)
    (halt,) = [said for said in bench.said if isinstance(said, PartitionHalted)]
    assert "made again" in halt.message
    assert bench.log().records == []


def test_the_same_topic_goes_on(bench: ShardBench) -> None:
    lease = bench.grant(pace=FIRST)
    lease.topic_id = b"1" * 16
    bench.put(0, 1)
    bench.table.confirm_topics(1)
    answer(bench, LeaderCheck.TOPIC_ID, 0, b"1" * 16)
    assert len(bench.send()) == 1


def test_an_unknown_topic_by_name_is_confirmed_before_the_next_attempt(bench: ShardBench) -> None:
    lease = bench.grant(pace=FIRST)
    lease.topic_id = b"1" * 16
    bench.put(0, 1)
    bench.send()
    bench.refuse(UNKNOWN_TOPIC)
    bench.now += 10
    assert bench.send() == []
    answer(bench, LeaderCheck.TOPIC_ID, 0, b"1" * 16)
    assert len(bench.send()) == 1


def test_a_returned_lease_stands_nowhere_any_more(bench: ShardBench) -> None:
    bench.grant(anchor=anchor())
    (asked,) = bench.table.due_checks(1, now=bench.now)
    bench.table.check_sent(asked, known=True, now=bench.now)
    bench.revoke()
    bench.table.check_answered(asked, [LeaderCheckResult(TOPIC, 0, 0, 500)], now=bench.now, chance=0.5)
    assert bench.table.awaiting_checks == set()


@pytest.mark.parametrize("question", list(LeaderCheck))
def test_requests_can_be_encoded_in_every_version_we_ask_in(bench: ShardBench, question: LeaderCheck) -> None:
    bench.grant(0, anchor=anchor(leader_epoch=3), leader_epoch=4)
    bench.grant(1, anchor=anchor(leader_epoch=3), leader_epoch=4)
    for lease in bench.table.partitions.values():
        lease.topic_id = b"1" * 16
        lease.require_check(question)
    (asked,) = (one for one in bench.table.due_checks(1, now=bench.now) if one.check is question)
    assert len(asked.partitions) == 2
    request = request_for(asked)
    for version in range(max(LEAST_VERSION[question], request.valid_versions[0]), request.max_version + 1):
        request.API_VERSION = version
        request.with_header(correlation_id=1, client_id="c")
        assert request.encode(header=True, framed=True)


def test_an_answer_is_read_by_topic_and_partition() -> None:
    class Part:
        partition_index = 4
        error_code = 0
        offset = 17

    class Topic:
        name = "t"
        partitions = (Part,)

    class Response:
        topics = (Topic,)

    assert read_results(LeaderCheck.LOG_START, Response) == [LeaderCheckResult("t", 4, 0, 17)]
