"""The course of telemetry (KIP-714): what is asked and pushed when, and what answers lead to."""

import time

import pytest
from penstock.producer.protocol.error_codes import error_name
from penstock.producer.protocol.framing import StreamError
from penstock.producer.records.compression import Codec
from penstock.producer.telemetry.push_messages import frame_push, frame_subscriptions, read_push, read_subscriptions
from penstock.producer.telemetry.subscription import (
    TRANSITIONS,
    ZERO_ID,
    ClientTelemetryState,
    GetTelemetrySubscriptions,
    PushTelemetry,
    TelemetryExchange,
    TelemetrySubscription,
    metric_selector,
)

ID = b"0123456789abcdef"
SUBSCRIPTION = TelemetrySubscription(ID, 7, (4, 3), 1000, 1 << 20, True, ("org.apache.kafka.producer.",))


def subscribed(
    told: TelemetrySubscription = SUBSCRIPTION, *, now: float = 100.0, chance: float = 0.5
) -> TelemetryExchange:
    core = TelemetryExchange(now=now)
    assert core.next_request(now) == GetTelemetrySubscriptions(ZERO_ID)
    core.subscribed(0, told, now, chance)
    return core


def pushing(now: float = 101.0) -> tuple[TelemetryExchange, PushTelemetry]:
    core = subscribed()
    push = core.next_request(now)
    assert isinstance(push, PushTelemetry)
    return core, push


def test_the_first_question_has_no_id_and_goes_out_at_once() -> None:
    core = TelemetryExchange(now=100.0)
    assert core.is_due(100.0)
    assert core.next_request(100.0) == GetTelemetrySubscriptions(ZERO_ID)
    assert core.next_request(100.0) is None
    assert core.next_deadline() is None


@pytest.mark.parametrize(("chance", "first"), [(0.0, 100.5), (0.5, 101.0), (1.0, 101.5)])
def test_the_first_push_is_spread_over_half_to_one_and_a_half_of_the_interval(chance: float, first: float) -> None:
    core = subscribed(chance=chance)
    assert core.next_deadline() == first
    assert core.next_request(first - 0.001) is None
    push = core.next_request(first)
    assert push == PushTelemetry(SUBSCRIPTION, "zstd", terminating=False)
    core.pushed(0, push, first + 0.1)
    assert core.next_deadline() == pytest.approx(first + 1.1)


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_an_interval_that_makes_no_sense_is_five_minutes(interval_ms: int) -> None:
    core = subscribed(SUBSCRIPTION._replace(push_interval_ms=interval_ms))
    assert core.next_deadline() == 400.0


def test_a_broker_that_wants_nothing_is_asked_again_after_its_interval_with_the_id_it_gave() -> None:
    core = subscribed(SUBSCRIPTION._replace(requested_metrics=()))
    assert core.state is ClientTelemetryState.SUBSCRIPTION_NEEDED
    assert core.next_request(100.9) is None
    assert core.next_request(101.0) == GetTelemetrySubscriptions(ID)


@pytest.mark.parametrize("code", [42, 87, 35, 1], ids=error_name)
@pytest.mark.parametrize("asks", ["subscription", "push"])
def test_a_refusal_for_good_ends_it(code: int, asks: str) -> None:
    if asks == "push":
        core, push = pushing()
        core.pushed(code, push, 101.0)
    else:
        core = TelemetryExchange(now=100.0)
        _ = core.next_request(100.0)
        core.subscribed(code, SUBSCRIPTION, 100.0, 0.5)
    assert core.state is ClientTelemetryState.TERMINATED
    assert core.termination_reason == error_name(code)
    assert core.next_deadline() is None


@pytest.mark.parametrize("code", [117, 76], ids=error_name)
def test_a_subscription_that_is_old_is_asked_for_again_at_once(code: int) -> None:
    core, push = pushing()
    core.pushed(code, push, 101.0)
    assert core.next_request(101.0) == GetTelemetrySubscriptions(ID)


@pytest.mark.parametrize("code", [117, 76], ids=error_name)
def test_a_question_that_is_answered_with_a_pushs_errors_is_asked_again_later_and_later(code: int) -> None:
    core = TelemetryExchange(now=100.0)
    now, waits = 100.0, []
    for _ in range(8):
        assert core.next_request(now) == GetTelemetrySubscriptions(ZERO_ID)
        core.subscribed(code, SUBSCRIPTION, now, 0.5)
        at = core.next_deadline()
        assert at is not None
        waits.append(at - now)
        now = at
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(1.0)
    assert waits[-1] == pytest.approx(60.0)


def test_no_interval_is_shorter_than_brokers_allow() -> None:
    core = subscribed(SUBSCRIPTION._replace(push_interval_ms=1))
    assert core.next_deadline() == pytest.approx(100.1)


@pytest.mark.parametrize("code", [118, 89], ids=error_name)
def test_what_is_too_large_or_too_often_waits_for_the_next_interval(code: int) -> None:
    core, push = pushing()
    core.pushed(code, push, 101.0)
    assert core.next_request(101.9) is None
    assert core.next_request(102.0) == GetTelemetrySubscriptions(ID)


@pytest.mark.parametrize(
    ("accepted", "codec"), [((4, 3), "zstd"), ((1,), "gzip"), ((2, 1), "snappy"), ((9, 3), "lz4"), ((), "none")]
)
def test_the_first_codec_that_both_know_is_taken(accepted: tuple[int, ...], codec: Codec) -> None:
    core = subscribed(SUBSCRIPTION._replace(accepted_codecs=accepted))
    push = core.next_request(101.0)
    assert isinstance(push, PushTelemetry)
    assert push.codec == codec


def test_a_codec_that_was_refused_all_the_same_is_left_out() -> None:
    core, push = pushing()
    core.pushed(76, push, 101.0)
    _ = core.next_request(101.0)
    core.subscribed(0, SUBSCRIPTION, 101.0, 0.5)
    again = core.next_request(102.0)
    assert isinstance(again, PushTelemetry)
    assert (push.codec, again.codec) == ("zstd", "lz4")


def test_a_lost_question_is_asked_again_later_and_later() -> None:
    core = TelemetryExchange(now=100.0)
    waits = []
    now = 100.0
    for _ in range(8):
        assert core.next_request(now) == GetTelemetrySubscriptions(ZERO_ID)
        core.failed(now, 0.5)
        at = core.next_deadline()
        assert at is not None
        waits.append(at - now)
        now = at
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(1.0)
    assert waits[-1] == pytest.approx(60.0)


@pytest.mark.parametrize("after", ["subscription", "push"])
def test_after_a_success_failures_are_counted_anew(after: str) -> None:
    core = TelemetryExchange(now=100.0)
    now = 100.0
    for _ in range(6):
        _ = core.next_request(now)
        core.failed(now, 0.5)
        now = core.next_deadline() or now
    _ = core.next_request(now)
    core.subscribed(0, SUBSCRIPTION, now, 0.5)
    if after == "push":
        core.failed(now, 0.5)
        core.failed(now, 0.5)
        now = core.next_deadline() or now
        push = core.next_request(now)
        assert isinstance(push, PushTelemetry)
        core.pushed(0, push, now)
    now += 1.0
    core.failed(now, 0.5)
    assert core.next_deadline() == pytest.approx(now + 1.0)


def test_a_lost_push_is_not_pushed_again_before_the_next_interval() -> None:
    core, _ = pushing()
    core.failed(101.0, 0.5)
    assert core.state is ClientTelemetryState.PUSH_NEEDED
    assert core.next_deadline() == 102.0


def test_an_answer_without_an_id_is_no_answer() -> None:
    core = subscribed(SUBSCRIPTION._replace(client_instance_id=ZERO_ID))
    assert core.subscription is None
    assert core.state is ClientTelemetryState.SUBSCRIPTION_NEEDED


def test_a_broker_without_the_requests_is_asked_again_after_five_minutes() -> None:
    core = TelemetryExchange(now=100.0)
    core.unsupported(100.0)
    assert core.next_deadline() == 400.0


def test_the_end_pushes_once_more_though_a_push_is_on_its_way_whose_answer_then_says_nothing() -> None:
    core, push = pushing()
    core.terminate()
    last = core.next_request(101.1)
    assert last == PushTelemetry(SUBSCRIPTION, "zstd", terminating=True)
    core.pushed(0, push, 101.2)
    assert core.state is ClientTelemetryState.TERMINATING_PUSH_IN_PROGRESS
    core.pushed(0, last, 101.3)
    assert core.state is ClientTelemetryState.TERMINATED


@pytest.mark.parametrize("requested", [(), None])
def test_the_end_pushes_nothing_that_nobody_wants(requested: tuple[()] | None) -> None:
    core = (
        TelemetryExchange(now=100.0)
        if requested is None
        else subscribed(SUBSCRIPTION._replace(requested_metrics=requested))
    )
    core.terminate()
    assert core.state is ClientTelemetryState.TERMINATED
    core.terminate()
    core.stop()


def test_a_last_push_that_is_lost_or_cannot_be_made_is_the_end() -> None:
    for ending in ("failed", "unsent", "not_offered"):
        core = subscribed()
        core.terminate()
        assert isinstance(core.next_request(100.0), PushTelemetry)
        if ending == "failed":
            core.failed(100.0, 0.5)
        elif ending == "unsent":
            core.push_skipped(100.0)
        else:
            core.unsupported(100.0)
        assert core.state is ClientTelemetryState.TERMINATED


def test_every_state_has_its_row_and_only_the_last_has_no_way_on() -> None:
    assert set(TRANSITIONS) == set(ClientTelemetryState)
    assert [state for state, following in TRANSITIONS.items() if not following] == [ClientTelemetryState.TERMINATED]


@pytest.mark.parametrize(
    ("requested", "name", "wanted"),
    [
        ((), "org.apache.kafka.producer.x", False),
        (("*",), "anything", True),
        (("",), "anything", True),
        (("org.apache.kafka.producer.record.",), "org.apache.kafka.producer.record.send.total", True),
        (("org.apache.kafka.producer.record.",), "org.apache.kafka.producer.request.total", False),
        (("a.", "b."), "b.c", True),
    ],
)
def test_metrics_are_chosen_by_the_beginnings_of_their_names(
    requested: tuple[str, ...], name: str, wanted: bool
) -> None:
    assert metric_selector(requested)(name) is wanted


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_requests_are_the_bytes_of_the_protocol() -> None:
    framed = frame_subscriptions(5, "me", ID)
    assert framed == b"\0\0\0\x1e" + b"\0\x47\0\0" + b"\0\0\0\5" + b"\0\2me" + b"\0" + ID + b"\0"
    pushed = frame_push(6, "me", SUBSCRIPTION, terminating=True, codec=4, metrics=b"m" * 200)
    head = b"\0\x48\0\0" + b"\0\0\0\6" + b"\0\2me" + b"\0"
    body = ID + b"\0\0\0\7" + b"\1" + b"\4" + b"\xc9\1" + b"m" * 200 + b"\0"
    assert pushed == len(head + body).to_bytes(4, "big") + head + body


def test_answers_are_read_with_tagged_fields_nobody_knows() -> None:
    tags = b"\2\0\1x\1\2yz"
    body = b"\0\0\0\x0a" + b"\0\0" + ID + b"\0\0\0\7" + b"\3\4\3" + b"\0\0\3\xe8" + b"\0\x10\0\0" + b"\1"
    asked = b"\x1borg.apache.kafka.producer."
    assert read_subscriptions(tags + body + b"\2" + asked + tags) == (10, 0, SUBSCRIPTION)
    assert read_push(tags + b"\0\0\0\x0b" + b"\0\x76" + tags) == (11, 118)


def test_no_bytes_make_the_reader_fall() -> None:
    whole = b"\0" + b"\0\0\0\0" + b"\0\0" + ID + b"\0\0\0\7" + b"\2\4" + b"\0\0\0\1" * 2 + b"\1" + b"\2\3ab" + b"\0"
    assert read_subscriptions(whole)[2].requested_metrics == ("ab",)
    for end in range(len(whole)):
        with pytest.raises(StreamError):
            _ = read_subscriptions(whole[:end])
    for bad in (whole.replace(b"\3ab", b"\0ab"), whole.replace(b"ab", b"\xff\xfe")):
        with pytest.raises(StreamError):
            _ = read_subscriptions(bad)
    with pytest.raises(StreamError):
        _ = read_push(b"\xff" * 9)


def test_a_size_without_an_end_is_no_size_however_long_the_answer() -> None:
    # Some seconds for each MB, and more than twice as many for twice as much, where all of it is added up.
    began = time.process_time()
    for _ in range(10):
        with pytest.raises(StreamError):
            _ = read_push(b"\xff" * 1_000_000)
    assert time.process_time() - began < 1
