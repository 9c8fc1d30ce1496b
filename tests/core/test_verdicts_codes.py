"""Every code gets a verdict, and the ones that matter get the right one."""

import pytest
from kafka.errors import kafka_errors
from penstock.producer.protocol.error_codes import (
    ControlErrorClass,
    ProduceErrorClass,
    TopicErrorClass,
    classify_control_error,
    classify_produce_error,
    classify_topic_error,
    error_name,
    is_known,
)


def judge(code: int, records: int = 5, log_start: int = 0) -> ProduceErrorClass:
    return classify_produce_error(code, record_count=records, log_start=log_start).error_class


@pytest.mark.parametrize("code", sorted({code for code in kafka_errors if code is not None} | {*range(134)}))
def test_every_code_of_kafka_has_its_place_in_the_table(code: int) -> None:
    assert is_known(code), f"{code} {error_name(code)} is in no table"
    judgement = classify_produce_error(code, record_count=1, log_start=0)
    assert judgement.reason
    assert judgement.name == error_name(code)


def test_a_code_from_the_future_is_retried_under_its_number() -> None:
    judgement = classify_produce_error(9_999, record_count=1, log_start=0)
    assert judgement.error_class is ProduceErrorClass.UNKNOWN
    assert judgement.name == "error 9999"
    assert not is_known(9_999)


def test_a_duplicate_counts_as_appended() -> None:
    assert judge(0) is ProduceErrorClass.ACKED
    assert judge(46) is ProduceErrorClass.ACKED


@pytest.mark.parametrize(
    "code", [2, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 51, 56, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 3]
)
def test_no_retriable_code_ever_refuses_a_batch(code: int) -> None:
    keeps = {
        ProduceErrorClass.RETRY,
        ProduceErrorClass.RETRY_REFRESH_METADATA,
        ProduceErrorClass.NEW_LEADER,
        ProduceErrorClass.CONFIRM_TOPIC,
    }
    assert judge(code) in keeps


@pytest.mark.parametrize("code", [18, 21, 32, 42, 43, 76, 87])
def test_refusals_by_content_are_for_good(code: int) -> None:
    assert judge(code) is ProduceErrorClass.REFUSED_CONTENT


@pytest.mark.parametrize("code", [17, 29, 44])
def test_refusals_an_operator_can_lift_are_told_apart(code: int) -> None:
    assert judge(code) is ProduceErrorClass.REFUSED_UNTIL_FIXED


def test_a_large_batch_is_split_and_a_large_record_refused() -> None:
    assert judge(10, records=2) is ProduceErrorClass.SPLIT
    assert judge(10, records=1) is ProduceErrorClass.REFUSED_CONTENT


def test_an_unknown_producer_id_is_out_of_order_only_where_the_log_start_is_told() -> None:
    assert judge(59, log_start=0) is ProduceErrorClass.OUT_OF_ORDER
    assert judge(59, log_start=-1) is ProduceErrorClass.RETRY
    assert judge(45, log_start=-1) is ProduceErrorClass.OUT_OF_ORDER


@pytest.mark.parametrize("code", [31, 35, 48, 49, 53, 90, 120])
def test_what_cannot_go_on_halts_and_keeps_everything(code: int) -> None:
    assert judge(code) is ProduceErrorClass.HALT


def test_an_old_epoch_is_a_case_of_its_own() -> None:
    assert judge(47) is ProduceErrorClass.STALE_EPOCH


@pytest.mark.parametrize("code", [-1, 1, 22, 36, 60, 107, 127])
def test_codes_of_other_requests_are_retried_before_they_are_settled(code: int) -> None:
    assert judge(code) is ProduceErrorClass.UNKNOWN


def test_metadata_tells_missing_leaderless_and_forbidden_topics_apart() -> None:
    assert classify_topic_error(0) is TopicErrorClass.FINE
    assert classify_topic_error(3) is TopicErrorClass.MISSING
    assert classify_topic_error(5) is TopicErrorClass.LEADERLESS
    assert classify_topic_error(29) is TopicErrorClass.REFUSED
    assert classify_topic_error(-1) is TopicErrorClass.RETRY


def test_a_control_request_that_is_forbidden_is_no_failure_of_the_broker() -> None:
    assert classify_control_error(0) is ControlErrorClass.FINE
    assert classify_control_error(31) is ControlErrorClass.FORBIDDEN
    assert classify_control_error(29) is ControlErrorClass.FORBIDDEN
    assert classify_control_error(15) is ControlErrorClass.RETRY
