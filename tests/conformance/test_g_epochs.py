"""Rows of group G: when a transactional producer gets another epoch."""

import pytest
from penstock.producer.transactions.operations import ProducerIdChanged
from penstock.producer.transactions.requests import (
    AddOffsets,
    AddPartitions,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    PartitionErrorsResult,
    ProducerIdAndEpoch,
    ProducerIdResult,
    version_range,
)
from penstock.producer.transactions.states import FailureKind, TransactionManagerState

from tests.conformance.transaction_rig import (
    FIRST,
    ID,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    OTHER_BROKER,
    OUT_OF_ORDER,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    RETRY_S,
    SECOND,
    TIMEOUT_MS,
    TOPIC_AUTHORIZATION_FAILED,
    TP0,
    TP1,
    UNKNOWN_PRODUCER_ID,
    TransactionRig,
)


@pytest.mark.row("G18")
def test_after_a_fatal_error_no_failure_asks_for_another_epoch() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.batch_failed(PRODUCER_FENCED, "PRODUCER_FENCED", "fenced")
    rig.manager.batch_failed(UNKNOWN_PRODUCER_ID, "UNKNOWN_PRODUCER_ID", "later")
    assert rig.next() is None
    assert rig.manager.next_deadline() is None
    assert rig.manager.identity == FIRST


@pytest.mark.row("G19", "G20", "G53")
def test_brokers_that_cannot_move_an_epoch_are_refused_when_the_id_is_initialised() -> None:
    rig = TransactionRig()
    operation = rig.manager.initialise()
    rig.found()
    ask = rig.ask(InitProducerId)
    assert version_range(ask)[0] == 3, "the first that moves an epoch"
    rig.manager.unsupported_version(ask, "InitProducerId only up to 2")
    failure = rig.heard(operation)
    assert failure.fatal
    assert "up to 2" in failure.text
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR


@pytest.mark.row("G21")
@pytest.mark.parametrize("code", [TOPIC_AUTHORIZATION_FAILED, OUT_OF_ORDER, UNKNOWN_PRODUCER_ID, REQUEST_TIMED_OUT])
def test_after_a_failed_batch_an_abort_ends_and_then_moves_the_epoch_for_all_partitions(code: int) -> None:
    rig = TransactionRig().begun(TP0, TP1)
    rig.manager.batch_failed(code, "", "a batch failed")
    operation = rig.manager.abort()
    assert rig.next() is None
    rig.settle()
    assert rig.ended(commit=False) == EndTxn(ID, FIRST, commit=False, version=1)
    assert not operation.done
    assert rig.given(SECOND) == InitProducerId(ID, TIMEOUT_MS, FIRST)
    rig.over(operation)
    assert rig.told(ProducerIdChanged)[-1] == ProducerIdChanged(*SECOND, 1)
    rig.closed(TP0, TP1)
    rig.begin(TP0)


@pytest.mark.row("G22")
def test_an_id_that_was_forgotten_is_asked_for_anew_without_an_end_where_nothing_had_been_added() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.refuse(AddPartitions, INVALID_PRODUCER_ID_MAPPING)
    assert rig.refusal().kind is FailureKind.ABORTABLE
    operation = rig.manager.abort()
    rig.settle()
    rig.given(SECOND)
    rig.over(operation)


@pytest.mark.row("G22")
def test_an_id_that_was_forgotten_at_the_offsets_is_asked_for_anew_after_the_end() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.send_offsets()
    rig.refuse(AddOffsets, INVALID_PRODUCER_ID_MAPPING)
    assert rig.heard(operation).kind is FailureKind.ABORTABLE
    abort = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False)
    rig.given(SECOND)
    rig.over(abort)


@pytest.mark.parametrize("code", [INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID])
def test_where_the_end_itself_finds_the_id_forgotten_the_abort_has_nothing_left_to_end(code: int) -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.abort()
    rig.settle()
    rig.refuse(EndTxn, code)
    rig.given(ProducerIdAndEpoch(13132, 0))
    rig.over(operation)


@pytest.mark.row("G23")
def test_a_coordinator_that_is_gone_does_not_keep_the_epoch_from_being_moved() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    operation = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False)
    rig.lose(rig.ask(InitProducerId))
    rig.pass_s(RETRY_S + 0.001)
    rig.found(broker=OTHER_BROKER)
    rig.given(SECOND)
    rig.over(operation)


def test_in_version_1_an_abort_of_what_was_sent_moves_the_epoch_even_without_an_error() -> None:
    """A late copy would land in the next transaction as soon as the partition is added to it (TRX-4)."""
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.abort()
    rig.settle(TP0)
    rig.ended(commit=False)
    rig.given(SECOND)
    rig.over(operation)


@pytest.mark.parametrize("code", [0, INVALID_TXN_STATE])
def test_in_version_1_an_addition_that_was_given_up_without_an_answer_is_ended_whether_it_began_or_not(
    code: int,
) -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.lose(rig.ask(AddPartitions))
    rig.manager.batch_failed(REQUEST_TIMED_OUT, "REQUEST_TIMED_OUT", "expired")
    operation = rig.manager.abort()
    rig.settle()
    rig.found()
    rig.answer(rig.ask(EndTxn), ProducerIdResult(code))
    rig.given(SECOND)
    rig.over(operation)


def test_with_the_epochs_used_up_another_producer_id_follows_like_any_other_identity() -> None:
    last, fresh = ProducerIdAndEpoch(13131, 32766), ProducerIdAndEpoch(13132, 0)
    rig = TransactionRig().initialised(tv2=True, identity=last)
    rig.begin(TP0)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.ended(commit=True, following=fresh)
    rig.see(TP0)
    rig.over(operation)
    assert rig.told(ProducerIdChanged)[-1] == ProducerIdChanged(*fresh, 2)
    assert rig.manager.identity == fresh


def test_an_end_in_version_2_without_the_next_identity_has_it_asked_for() -> None:
    rig = TransactionRig().begun(TP0, tv2=True)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.ended(commit=True)
    rig.see(TP0)
    assert not operation.done
    rig.given(SECOND)
    rig.over(operation)


def test_an_identity_that_did_not_move_is_fatal() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False)
    rig.given(FIRST)
    assert "did not move" in rig.heard(operation).text
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR


def test_an_error_while_a_partition_was_being_added_leaves_its_late_answer_without_effect() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.maybe_add_partition(*TP1)
    ask = rig.ask(AddPartitions)
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    operation = rig.manager.abort()
    rig.settle()
    assert rig.next() is None, "the end waits for what may be added before it"
    rig.answer(ask, PartitionErrorsResult({TP1: 0}))
    rig.ended(commit=False)
    rig.given(SECOND)
    rig.over(operation)
    assert not isinstance(rig.next(), FindCoordinator)
