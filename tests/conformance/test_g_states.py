"""Rows of group G: states of the transactional producer, and the gate before its partitions."""

import pytest
from penstock.api.errors import TransactionStateError
from penstock.producer.transactions.operations import TransactionFatal
from penstock.producer.transactions.requests import (
    AddPartitions,
    EndTxn,
    ErrorCodeResult,
    PartitionErrorsResult,
    ProducerIdResult,
)
from penstock.producer.transactions.states import FailureKind, TransactionManagerState

from tests.conformance.transaction_rig import (
    OUT_OF_ORDER,
    PRODUCER_FENCED,
    SECOND,
    TOPIC_AUTHORIZATION_FAILED,
    TP0,
    TP1,
    UNKNOWN_SERVER_ERROR,
    TransactionRig,
)


def abortable(rig: TransactionRig) -> None:
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")


def fatal(rig: TransactionRig) -> None:
    rig.manager.batch_failed(PRODUCER_FENCED, "PRODUCER_FENCED", "fenced")


@pytest.mark.row("G1")
def test_a_send_before_init_or_begin_is_an_error_of_the_program() -> None:
    rig = TransactionRig()
    with pytest.raises(TransactionStateError):
        rig.manager.check_send()
    rig.initialised()
    with pytest.raises(TransactionStateError):
        rig.manager.check_send()
    rig.manager.begin()
    rig.manager.check_send()


@pytest.mark.row("G1")
def test_a_send_after_an_error_raises_that_error() -> None:
    rig = TransactionRig().begun(TP0)
    abortable(rig)
    assert rig.refusal().name == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    rig = TransactionRig().begun(TP0)
    fatal(rig)
    assert rig.refusal().kind is FailureKind.FENCED


@pytest.mark.row("G2")
def test_a_transaction_is_ongoing_until_it_has_ended_also_after_an_abortable_error() -> None:
    rig = TransactionRig().initialised()
    assert not rig.manager.ongoing
    rig.begin(TP0)
    assert rig.manager.ongoing
    abortable(rig)
    assert rig.manager.ongoing
    operation = rig.manager.abort()
    rig.settle()
    ask = rig.ask(EndTxn)
    assert rig.manager.ongoing
    rig.answer(ask, ProducerIdResult(0))
    assert not rig.manager.ongoing
    rig.given(SECOND)
    rig.over(operation)


@pytest.mark.row("G2")
def test_a_committed_transaction_is_over_with_the_answer_and_a_fatal_error_ends_it() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.commit()
    rig.settle(TP0)
    ask = rig.ask(EndTxn)
    assert rig.manager.ongoing
    rig.answer(ask, ProducerIdResult(0))
    assert not rig.manager.ongoing
    rig = TransactionRig().begun(TP0)
    fatal(rig)
    assert not rig.manager.ongoing


@pytest.mark.row("G3")
def test_a_partition_is_asked_for_once_and_wanting_it_again_changes_nothing() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.manager.maybe_add_partition(*TP0)
    ask = rig.ask(AddPartitions)
    assert ask.partitions == (TP0,)
    rig.manager.maybe_add_partition(*TP0)
    assert not rig.manager.may_send(*TP0)
    rig.answer(ask, PartitionErrorsResult({TP0: 0}))
    assert rig.manager.may_send(*TP0)
    rig.manager.maybe_add_partition(*TP0)
    assert rig.next() is None


@pytest.mark.row("G4")
def test_only_added_partitions_may_be_sent_also_after_an_abortable_error_and_none_after_a_fatal_one() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.maybe_add_partition(*TP1)
    assert not rig.manager.may_send(*TP1)
    ask = rig.ask(AddPartitions)
    assert not rig.manager.may_send(*TP1)
    abortable(rig)
    assert rig.manager.may_send(*TP0)
    assert not rig.manager.may_send(*TP1)
    rig.answer(ask, PartitionErrorsResult({TP1: 0}))
    assert rig.manager.may_send(*TP0)
    rig.manager.abort()
    assert rig.manager.may_send(*TP0)
    fatal(rig)
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR
    assert not rig.manager.may_send(*TP0)


@pytest.mark.row("G4")
def test_nothing_may_be_sent_outside_of_a_transaction() -> None:
    rig = TransactionRig()
    assert not rig.manager.may_send(*TP0)
    rig.initialised()
    assert not rig.manager.may_send(*TP0)


def test_in_version_2_a_partition_needs_no_gate_and_after_an_error_only_what_was_sent_may_be_sent_again() -> None:
    rig = TransactionRig().begun(TP0, tv2=True)
    rig.manager.maybe_add_partition(*TP1)
    assert rig.next() is None
    assert rig.manager.may_send(*TP1)
    abortable(rig)
    assert rig.manager.may_send(*TP0)
    assert not rig.manager.may_send(*TP1)


@pytest.mark.row("G5")
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_waits_until_no_batch_is_open(commit: bool) -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.commit() if commit else rig.manager.abort()
    assert rig.next() is None
    rig.settle(TP0)
    rig.ended(commit=commit)


@pytest.mark.row("G6")
def test_the_gate_opens_with_the_answer_for_the_partition() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.manager.maybe_add_partition(*TP1)
    ask = rig.ask(AddPartitions)
    assert ask.partitions == (TP0, TP1)
    assert not rig.manager.may_send(*TP0)
    rig.answer(ask, PartitionErrorsResult({TP0: 0, TP1: 0}))
    assert rig.manager.may_send(*TP0)
    assert rig.manager.may_send(*TP1)


@pytest.mark.row("G7")
def test_an_answer_that_fits_no_transition_is_fatal_and_every_call_is_refused() -> None:
    rig = TransactionRig().initialised()
    abortable(rig)
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR
    (told,) = rig.told(TransactionFatal)
    assert isinstance(told, TransactionFatal)
    assert told.failure.kind is FailureKind.ILLEGAL_STATE
    manager = rig.manager
    for call in (manager.begin, manager.commit, manager.abort, manager.initialise, manager.check_send):
        with pytest.raises(TransactionStateError):
            call()
    with pytest.raises(TransactionStateError):
        rig.send_offsets()


@pytest.mark.row("G7")
def test_an_answer_to_what_was_not_asked_is_fatal() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.maybe_add_partition(*TP1)
    ask = rig.ask(AddPartitions)
    rig.answer(ask._replace(partitions=(TP0,)), ErrorCodeResult(UNKNOWN_SERVER_ERROR))
    assert rig.manager.error is not None
    assert rig.manager.error.kind is FailureKind.ILLEGAL_STATE


@pytest.mark.row("G8")
def test_a_call_out_of_place_changes_nothing() -> None:
    rig = TransactionRig()
    with pytest.raises(TransactionStateError):
        rig.manager.abort()
    with pytest.raises(TransactionStateError):
        rig.manager.commit()
    assert rig.manager.state is TransactionManagerState.UNINITIALIZED
    rig.begun(TP0)
    with pytest.raises(TransactionStateError):
        rig.manager.begin()
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.ended(commit=True)
    rig.see(TP0)
    rig.over(operation)


@pytest.mark.row("G9")
def test_to_initialise_twice_is_an_error_of_the_program() -> None:
    rig = TransactionRig().initialised()
    with pytest.raises(TransactionStateError):
        rig.manager.initialise()
    assert rig.manager.state is TransactionManagerState.READY


@pytest.mark.parametrize("first", [abortable, fatal])
def test_after_one_error_another_changes_nothing_that_was_told(first: object) -> None:
    assert callable(first)
    rig = TransactionRig().begun(TP0)
    first(rig)
    before = rig.refusal()
    rig.manager.batch_failed(TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED", "later")
    assert rig.refusal() == before
