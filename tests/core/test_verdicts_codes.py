"""Every code gets a verdict, and the ones that matter get the right one."""

import pytest
from kafka.errors import kafka_errors
from penstock.producer.protocol.error_codes import (
    AnswerVerdict,
    TopicVerdict,
    Verdict,
    error_name,
    is_known,
    judge_control,
    judge_produce,
    judge_topic,
)


def judge(code: int, records: int = 5, log_start: int = 0) -> Verdict:
    return judge_produce(code, record_count=records, log_start=log_start).verdict


@pytest.mark.parametrize("code", sorted({code for code in kafka_errors if code is not None} | {*range(134)}))
def test_every_code_of_kafka_has_its_place_in_the_table(code: int) -> None:
    assert is_known(code), f"{code} {error_name(code)} is in no table"
    judgement = judge_produce(code, record_count=1, log_start=0)
    assert judgement.reason
    assert judgement.name == error_name(code)


def test_a_code_from_the_future_is_retried_under_its_number() -> None:
    judgement = judge_produce(9_999, record_count=1, log_start=0)
    assert judgement.verdict is Verdict.UNKNOWN
    assert judgement.name == "error 9999"
    assert not is_known(9_999)


def test_a_duplicate_counts_as_appended() -> None:
    assert judge(0) is Verdict.ACKED
    assert judge(46) is Verdict.ACKED


@pytest.mark.parametrize(
    "code", [2, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 51, 56, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 3]
)
def test_no_retriable_code_ever_refuses_a_batch(code: int) -> None:
    keeps = {Verdict.RETRY, Verdict.RETRY_STALE, Verdict.NEW_LEADER, Verdict.CONFIRM_TOPIC}
    assert judge(code) in keeps


@pytest.mark.parametrize("code", [18, 21, 32, 42, 43, 76, 87])
def test_refusals_by_content_are_for_good(code: int) -> None:
    assert judge(code) is Verdict.REFUSED_CONTENT


@pytest.mark.parametrize("code", [17, 29, 44])
def test_refusals_an_operator_can_lift_are_told_apart(code: int) -> None:
    assert judge(code) is Verdict.REFUSED_LIFTABLE


def test_a_large_batch_is_split_and_a_large_record_refused() -> None:
    assert judge(10, records=2) is Verdict.SPLIT
    assert judge(10, records=1) is Verdict.REFUSED_CONTENT


def test_an_unknown_producer_id_is_out_of_order_only_where_the_log_start_is_told() -> None:
    assert judge(59, log_start=0) is Verdict.OUT_OF_ORDER
    assert judge(59, log_start=-1) is Verdict.RETRY
    assert judge(45, log_start=-1) is Verdict.OUT_OF_ORDER


@pytest.mark.parametrize("code", [31, 35, 48, 49, 53, 90, 120])
def test_what_cannot_go_on_halts_and_keeps_everything(code: int) -> None:
    assert judge(code) is Verdict.HALT


def test_an_old_epoch_is_a_case_of_its_own() -> None:
    assert judge(47) is Verdict.EPOCH


@pytest.mark.parametrize("code", [-1, 1, 22, 36, 60, 107, 127])
def test_codes_of_other_requests_are_retried_before_they_are_settled(code: int) -> None:
    assert judge(code) is Verdict.UNKNOWN


def test_metadata_tells_missing_leaderless_and_forbidden_topics_apart() -> None:
    assert judge_topic(0) is TopicVerdict.FINE
    assert judge_topic(3) is TopicVerdict.MISSING
    assert judge_topic(5) is TopicVerdict.LEADERLESS
    assert judge_topic(29) is TopicVerdict.REFUSED
    assert judge_topic(-1) is TopicVerdict.RETRY


def test_a_control_request_that_is_forbidden_is_no_failure_of_the_broker() -> None:
    assert judge_control(0) is AnswerVerdict.FINE
    assert judge_control(31) is AnswerVerdict.FORBIDDEN
    assert judge_control(29) is AnswerVerdict.FORBIDDEN
    assert judge_control(15) is AnswerVerdict.RETRY
