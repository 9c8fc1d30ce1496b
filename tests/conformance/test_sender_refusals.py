"""Rows of group F: refusals. The direct producer fails what a daemon would park; what is left goes on under a new epoch."""

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind

from tests.conformance.joined_rig import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_RECORD,
    INVALID_REQUEST,
    MESSAGE_TOO_LARGE,
    OUT_OF_ORDER,
    TOPIC,
    TOPIC_AUTHORIZATION_FAILED,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
    UNSUPPORTED_VERSION,
    JoinedRig,
    ok,
)


@pytest.mark.row("F15")
def test_a_refused_first_batch_fails_and_the_next_goes_out_as_sequence_0_of_a_new_epoch() -> None:
    rig = JoinedRig()
    refused = rig.append(0)
    rig.run()
    second = rig.append(0)
    rig.run()
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)
    assert rig.failed(0)[refused].name == "MESSAGE_TOO_LARGE"
    assert rig.failed(0)[refused].kind is DeliveryFailureKind.REFUSED
    rig.refuse(OUT_OF_ORDER, partition=0, log_start=0)

    rig.run()
    assert [(sent.first, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(second, 1, 0)]
    rig.answer()
    assert rig.delivered(0) == {second: 1}


@pytest.mark.row("F35")
def test_without_permission_for_the_cluster_everything_fails_and_so_does_what_comes_later() -> None:
    rig = JoinedRig()
    first = rig.append(0)
    rig.append(1)
    rig.run()
    rig.refuse(CLUSTER_AUTHORIZATION_FAILED, partition=0)

    assert rig.failed(0)[first].kind is DeliveryFailureKind.FATAL
    assert rig.failed(0)[first].name == "CLUSTER_AUTHORIZATION_FAILED"
    assert list(rig.failed(1)) + list(rig.delivered(1)) == [first]
    later = rig.append(0)
    assert rig.failed(0)[later].kind is DeliveryFailureKind.FATAL
    assert rig.run() == []
    assert rig.joined.failure is not None


@pytest.mark.row("F37", "F58")
@pytest.mark.parametrize("message", ["", "the broker's own words"])
@pytest.mark.parametrize(
    ("code", "name"),
    [(UNSUPPORTED_FOR_MESSAGE_FORMAT, "UNSUPPORTED_FOR_MESSAGE_FORMAT"), (INVALID_REQUEST, "INVALID_REQUEST")],
)
def test_a_refused_batch_fails_with_the_brokers_text_or_the_default_and_the_rest_goes_on(
    code: int, name: str, message: str
) -> None:
    rig = JoinedRig()
    refused = rig.append(0)
    rig.run()
    rig.refuse(code, partition=0, message=message)

    failure = rig.failed(0)[refused]
    assert (failure.kind, failure.code, failure.name) == (DeliveryFailureKind.REFUSED, code, name)
    assert (message or name) in failure.message
    assert rig.joined.failure is None
    later = rig.append(0)
    rig.until_idle()
    assert rig.delivered(0) == {later: 1}


@pytest.mark.row("F38")
def test_an_unsupported_version_of_produce_is_fatal() -> None:
    rig = JoinedRig()
    first = rig.append(0)
    rig.run()
    rig.refuse(UNSUPPORTED_VERSION, partition=0)

    assert rig.failed(0)[first].kind is DeliveryFailureKind.FATAL
    assert rig.joined.failure is not None
    assert rig.joined.failure.name == "UNSUPPORTED_VERSION"


def test_a_refusal_that_somebody_could_lift_fails_at_once() -> None:
    rig = JoinedRig()
    first = rig.append(0)
    rig.run()
    rig.refuse(TOPIC_AUTHORIZATION_FAILED, partition=0)

    assert rig.failed(0)[first].name == "TOPIC_AUTHORIZATION_FAILED"
    assert "test-0" in rig.failed(0)[first].message
    assert rig.joined.idle


@pytest.mark.row("F42", "F57")
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_batch_that_is_too_large_is_sent_in_two_one_after_the_other_under_its_own_sequences(codec: str) -> None:
    rig = JoinedRig(delivery_ms=3000, codec="gzip" if codec == "gzip" else "none")
    first = rig.append(0, count=2, value=b"v" * 6000)
    rig.run()
    assert [(sent.sequence, sent.count) for sent in rig.on_wire(0)] == [(1, 2)]
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)

    rig.run()
    assert [(sent.sequence, sent.count) for sent in rig.on_wire(0)] == [(1, 1)]
    rig.answer(answers=None if codec == "none" else {0: ok(1)})
    rig.run()
    assert [(sent.sequence, sent.count) for sent in rig.on_wire(0)] == [(2, 1)]
    rig.answer(answers=None if codec == "none" else {0: ok(2)})

    assert rig.delivered(0) == {first: 1, first + 1: 2}
    assert rig.joined.idle
    rig.pass_ms(5000)
    rig.run()
    assert rig.failed(0) == {}
    assert not rig.wire
    assert rig.pool.lent_bytes == 0


@pytest.mark.row("F42")
def test_a_batch_that_compressed_worse_than_was_hoped_ends_the_hope_and_is_counted() -> None:
    rig = JoinedRig(delivery_ms=3000, codec="gzip", batch_bytes=4096)
    table = rig.joined.table
    ratio = table.accumulator.ratios.of(TOPIC, "gzip")
    ratio.value = 0.2
    rig.append(0, count=2, value=b"v" * 2048)
    rig.run()
    (whole,) = rig.on_wire(0)
    assert (whole.sequence, whole.count, len(whole.data) < 4096) == (1, 2, True)
    assert ratio.value == pytest.approx(0.2 - 0.005)
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)
    assert table.counters["answers_split"] == 1
    assert ratio.value == 1.0
    offsets = iter((1, 2))
    while rig.run():
        rig.answer(answers={0: ok(next(offsets))})
    assert rig.delivered(0) == {1: 1, 2: 2}
    assert 1.0 - 2 * 0.005 <= ratio.value <= 1.0 - 0.005
    assert rig.joined.idle


@pytest.mark.row("F45")
def test_records_that_the_broker_names_fail_with_their_text_and_the_others_are_sent_again() -> None:
    rig = JoinedRig()
    first = rig.append(0, count=5)
    rig.run()
    rig.refuse(INVALID_RECORD, partition=0, errors=[(0, "0"), (2, "2"), (3, "")])

    failed = rig.failed(0)
    assert sorted(failed) == [first, first + 2, first + 3]
    assert {failure.name for failure in failed.values()} == {"INVALID_RECORD"}
    assert failed[first].message.endswith(": 0")
    assert failed[first + 2].message.endswith(": 2")
    assert "a record that the topic does not take" in failed[first + 3].message

    rig.run()
    seen = [(sent.first, sent.epoch, sent.sequence, sent.count) for sent in rig.on_wire(0)]
    rig.answer()
    rig.run()
    seen += [(sent.first, sent.epoch, sent.sequence, sent.count) for sent in rig.on_wire(0)]
    rig.answer()
    assert seen == [(first + 1, 1, 0, 1), (first + 4, 1, 1, 1)]
    assert rig.delivered(0) == {first + 1: 1, first + 4: 2}
    assert rig.joined.idle
