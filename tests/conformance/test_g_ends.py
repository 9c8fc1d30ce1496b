"""Rows of group G: commits, aborts and time-outs of a transactional producer."""

import pytest
from penstock.api.errors import TransactionStateError
from penstock.producer.transactions.operations import (
    AbortUnsent,
    TransactionEnded,
    TransactionOperation,
    TransactionOperationKind,
)
from penstock.producer.transactions.requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorKind,
    EndTxn,
    ErrorCodeResult,
    FindCoordinator,
    FindCoordinatorResult,
    InitProducerId,
    PartitionErrorsResult,
    ProducerIdResult,
    TransactionRequest,
    TransactionResponse,
)
from penstock.producer.transactions.states import (
    TRANSITIONS,
    FailedTransactionError,
    FailureKind,
    TransactionManagerState,
)

from tests.conformance.transaction_rig import (
    BROKER,
    COORDINATOR_LOAD_IN_PROGRESS,
    GROUP_AUTHORIZATION_FAILED,
    OTHER_BROKER,
    OUT_OF_ORDER,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    RETRY_S,
    SECOND,
    TOPIC_AUTHORIZATION_FAILED,
    TP0,
    TP1,
    TRANSACTION_ABORTABLE,
    UNKNOWN_SERVER_ERROR,
    TransactionRig,
)


def reasons(rig: TransactionRig) -> list[str]:
    return [event.failure.name for event in rig.told(AbortUnsent) if isinstance(event, AbortUnsent)]


@pytest.mark.row("G41")
def test_after_an_error_before_anything_was_added_an_abort_asks_nothing_and_the_next_transaction_works() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition("forbidden", 0)
    rig.refuse(AddPartitions, TOPIC_AUTHORIZATION_FAILED)
    assert reasons(rig) == ["TOPIC_AUTHORIZATION_FAILED"]
    operation = rig.manager.abort()
    rig.settle()
    assert rig.next() is None
    rig.over(operation)
    assert rig.told(TransactionEnded) == [TransactionEnded(committed=False)]
    rig.begin(TP0)
    commit = rig.manager.commit()
    rig.settle(TP0)
    rig.ended(commit=True)
    rig.see(TP0)
    rig.over(commit)


@pytest.mark.row("G41")
def test_after_an_error_with_something_added_an_abort_ends_it_and_what_was_sent_may_be_sent_again_before() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.maybe_add_partition("forbidden", 0)
    rig.refuse(AddPartitions, TOPIC_AUTHORIZATION_FAILED)
    operation = rig.manager.abort()
    assert rig.manager.may_send(*TP0)
    assert rig.next() is None
    rig.settle(TP0)
    rig.ended(commit=False)
    rig.given(SECOND)
    rig.over(operation)


def waiting(kind: TransactionOperationKind) -> tuple[TransactionRig, TransactionOperation, type[TransactionRequest]]:
    """An operation whose last request is to be asked next."""
    if kind is TransactionOperationKind.INITIALISE:
        rig = TransactionRig()
        operation = rig.manager.initialise()
        rig.found()
        return rig, operation, InitProducerId
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.added(TP0)
    operation = rig.manager.commit() if kind is TransactionOperationKind.COMMIT else rig.manager.abort()
    rig.manager.batches_completed({})
    return rig, operation, EndTxn


def call(rig: TransactionRig, kind: TransactionOperationKind) -> TransactionOperation:
    calls = {
        TransactionOperationKind.INITIALISE: rig.manager.initialise,
        TransactionOperationKind.COMMIT: rig.manager.commit,
        TransactionOperationKind.ABORT: rig.manager.abort,
        TransactionOperationKind.SEND_OFFSETS: rig.send_offsets,
    }
    return calls[kind]()


def finish(rig: TransactionRig, ask: TransactionRequest) -> None:
    answer: TransactionResponse = ProducerIdResult(0) if isinstance(ask, EndTxn) else ProducerIdResult(0, SECOND)
    rig.answer(ask, answer)


@pytest.mark.row("G42")
@pytest.mark.parametrize(
    "kind", [TransactionOperationKind.INITIALISE, TransactionOperationKind.COMMIT, TransactionOperationKind.ABORT]
)
def test_a_call_whose_caller_gave_up_goes_on_and_only_the_same_call_gets_it(kind: TransactionOperationKind) -> None:
    rig, operation, last = waiting(kind)
    finish(rig, rig.ask(last))
    assert operation.done
    others = {
        TransactionOperationKind.INITIALISE,
        TransactionOperationKind.COMMIT,
        TransactionOperationKind.ABORT,
        TransactionOperationKind.SEND_OFFSETS,
    } - {kind}
    for other in others:
        with pytest.raises(TransactionStateError):
            call(rig, other)
    with pytest.raises(TransactionStateError):
        rig.manager.begin()
    with pytest.raises(TransactionStateError):
        rig.manager.check_send()
    assert call(rig, kind) is operation
    rig.over(operation)
    rig.manager.begin()
    rig.manager.check_send()


@pytest.mark.row("G43")
@pytest.mark.parametrize("kind", [TransactionOperationKind.COMMIT, TransactionOperationKind.ABORT])
def test_the_end_is_sent_again_after_a_disconnect_and_the_same_call_waits_for_it(
    kind: TransactionOperationKind,
) -> None:
    rig, operation, last = waiting(kind)
    rig.lose(rig.ask(last))
    assert call(rig, kind) is operation
    with pytest.raises(TransactionStateError):
        call(
            rig,
            TransactionOperationKind.ABORT
            if kind is TransactionOperationKind.COMMIT
            else TransactionOperationKind.COMMIT,
        )
    rig.pass_s(RETRY_S + 0.001)
    rig.found(broker=OTHER_BROKER)
    finish(rig, rig.ask(last))
    rig.over(operation)
    rig.manager.begin()


@pytest.mark.row("G44")
def test_a_commit_after_a_failed_batch_is_refused_with_its_reason_and_an_abort_leads_on() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    with pytest.raises(FailedTransactionError) as raised:
        rig.manager.commit()
    assert raised.value.failure.name == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    operation = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False)
    rig.given(SECOND)
    rig.over(operation)
    assert rig.manager.state is TransactionManagerState.READY


@pytest.mark.row("G44")
def test_a_batch_that_fails_while_committing_fails_the_commit_before_its_end_is_asked() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.commit()
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    assert rig.heard(operation).name == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    rig.settle()
    assert rig.next() is None
    rig.manager.abort()
    rig.settle()
    rig.ended(commit=False)


@pytest.mark.row("G45")
def test_a_batch_that_fails_while_aborting_changes_nothing() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.abort()
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    assert rig.manager.state is TransactionManagerState.ABORTING
    assert rig.manager.error is None
    rig.settle()
    rig.ended(commit=False)
    rig.given(SECOND)
    rig.over(operation)


@pytest.mark.row("G46")
def test_the_end_of_a_commit_is_not_asked_while_a_batch_is_open() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.commit()
    for _ in range(4):
        assert rig.next() is None
        rig.pass_s(1.0)
    rig.settle(TP0)
    rig.ended(commit=True)
    rig.see(TP0)
    rig.over(operation)


@pytest.mark.row("G47")
def test_a_coordinator_is_looked_up_after_an_abortable_error_too() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.send_offsets()
    rig.offsets_added()
    ask = rig.ask(FindCoordinator)
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    rig.heard(operation)
    rig.answer(ask, FindCoordinatorResult(COORDINATOR_LOAD_IN_PROGRESS))
    rig.pass_s(RETRY_S + 0.001)
    rig.found(CoordinatorKind.GROUP)
    assert rig.manager.state is TransactionManagerState.ABORTABLE_ERROR
    assert rig.next() is None


@pytest.mark.row("G47")
def test_a_look_up_that_waits_to_be_repeated_is_not_given_up_by_an_error() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.send_offsets()
    rig.offsets_added()
    rig.answer(rig.ask(FindCoordinator), FindCoordinatorResult(COORDINATOR_LOAD_IN_PROGRESS))
    rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    rig.heard(operation)
    assert rig.next() is None
    rig.pass_s(RETRY_S + 0.001)
    rig.found(CoordinatorKind.GROUP)
    assert rig.manager.state is TransactionManagerState.ABORTABLE_ERROR


@pytest.mark.row("G48")
def test_an_abort_before_anything_was_asked_asks_nothing() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    operation = rig.manager.abort()
    (told,) = rig.told(AbortUnsent)
    assert isinstance(told, AbortUnsent)
    assert told.failure.kind is FailureKind.ABORTED
    assert not operation.done
    rig.settle()
    assert rig.next() is None
    rig.take()
    rig.over(operation)
    assert not rig.manager.may_send(*TP0)


@pytest.mark.row("G49")
def test_an_addition_that_is_being_repeated_ends_before_the_abort_does() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.refuse(AddPartitions, COORDINATOR_LOAD_IN_PROGRESS)
    operation = rig.manager.abort()
    rig.settle()
    assert rig.next() is None
    rig.pass_s(RETRY_S + 0.001)
    rig.added(TP0)
    rig.ended(commit=False)
    rig.over(operation)


@pytest.mark.row("G50")
def test_an_abort_after_only_refused_additions_asks_for_no_end() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition("forbidden", 0)
    ask = rig.ask(AddPartitions)
    operation = rig.manager.abort()
    rig.settle()
    rig.answer(ask, PartitionErrorsResult({("forbidden", 0): TOPIC_AUTHORIZATION_FAILED}))
    assert rig.manager.state is TransactionManagerState.ABORTING
    assert rig.next() is None
    rig.over(operation)


@pytest.mark.row("G50")
def test_an_abort_after_only_refused_offsets_asks_for_no_end() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    offsets = rig.send_offsets()
    ask = rig.ask(AddOffsets)
    operation = rig.manager.abort()
    rig.settle()
    rig.answer(ask, ErrorCodeResult(GROUP_AUTHORIZATION_FAILED))
    assert rig.heard(offsets).code == GROUP_AUTHORIZATION_FAILED
    assert rig.next() is None
    rig.over(operation)


@pytest.mark.row("G50")
def test_a_fatal_error_for_offsets_fails_the_abort() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.send_offsets()
    ask = rig.ask(AddOffsets)
    operation = rig.manager.abort()
    rig.settle()
    rig.answer(ask, ErrorCodeResult(UNKNOWN_SERVER_ERROR))
    assert rig.heard(operation).fatal


@pytest.mark.row("G50")
def test_a_partition_that_waits_is_not_added_after_another_was_refused() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition("forbidden", 0)
    ask = rig.ask(AddPartitions)
    rig.manager.maybe_add_partition(*TP0)
    rig.answer(ask, PartitionErrorsResult({("forbidden", 0): TOPIC_AUTHORIZATION_FAILED}))
    assert rig.next() is None
    assert not rig.manager.may_send(*TP0)


@pytest.mark.row("G51", "G52")
def test_records_that_expire_make_the_transaction_abortable_and_fail_its_commit() -> None:
    rig = TransactionRig().begun(TP0, TP1)
    operation = rig.manager.commit()
    for _ in range(2):
        rig.manager.batch_failed(REQUEST_TIMED_OUT, "REQUEST_TIMED_OUT", "not sent within delivery.timeout.ms")
    assert rig.heard(operation).kind is FailureKind.ABORTABLE
    abort = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False)
    rig.given(SECOND)
    rig.over(abort)


FATAL_EVENTS = ["failed", "abort", "answer", "lost", "settled", "features", "close"]


@pytest.mark.row("G56")
@pytest.mark.parametrize("what", FATAL_EVENTS)
def test_nothing_leads_out_of_a_fatal_error(what: str) -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.maybe_add_partition(*TP1)
    ask = rig.ask(AddPartitions)
    rig.manager.batch_failed(PRODUCER_FENCED, "PRODUCER_FENCED", "fenced")
    before = rig.manager.error
    if what == "failed":
        rig.manager.batch_failed(OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "a gap")
    elif what == "abort":
        with pytest.raises(FailedTransactionError):
            rig.manager.abort()
    elif what == "answer":
        rig.answer(ask, PartitionErrorsResult({TP1: 0}))
    elif what == "lost":
        rig.lose(ask)
    elif what == "settled":
        rig.settle()
    elif what == "features":
        rig.manager.update_features(2, offers_v2=True)
    else:
        rig.manager.close("closed")
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR
    assert rig.manager.error == before
    assert rig.next() is None
    assert not TRANSITIONS[TransactionManagerState.FATAL_ERROR]


def test_the_same_offsets_sent_again_while_they_are_on_their_way_are_one_call() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.send_offsets()
    assert rig.send_offsets() is operation
    rig.offsets_added()
    rig.found(CoordinatorKind.GROUP)
    rig.offsets_committed()
    assert rig.send_offsets() is not operation


def test_a_broker_that_calls_an_abort_abortable_ends_the_producer() -> None:
    rig, operation, last = waiting(TransactionOperationKind.ABORT)
    rig.refuse(last, TRANSACTION_ABORTABLE)
    assert rig.heard(operation).fatal
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR


def test_offsets_of_a_transaction_that_is_being_aborted_are_not_committed() -> None:
    rig = TransactionRig().begun(TP0)
    offsets = rig.send_offsets()
    rig.offsets_added()
    operation = rig.manager.abort()
    assert rig.heard(offsets).kind is FailureKind.ABORTED
    rig.settle()
    assert rig.manager.state is not TransactionManagerState.READY
    ask = rig.next()
    while not isinstance(ask, EndTxn):
        assert isinstance(ask, FindCoordinator)
        assert not isinstance(ask, CommitOffsets)
        rig.answer(ask, FindCoordinatorResult(0, coordinator=BROKER))
        ask = rig.next()
    rig.answer(ask, ProducerIdResult(0))
    rig.given(SECOND)
    rig.over(operation)


def test_closing_fails_what_is_pending_and_asks_nothing_more() -> None:
    rig, operation, last = waiting(TransactionOperationKind.ABORT)
    rig.ask(last)
    rig.manager.close("the producer was closed")
    assert rig.heard(operation).kind is FailureKind.CLOSED
    assert rig.next() is None
    assert rig.manager.take_visibility_checks(rig.now) == []
    with pytest.raises(FailedTransactionError):
        rig.manager.begin()


def test_closing_a_commit_whose_end_went_out_says_that_it_may_be_committed() -> None:
    rig, operation, last = waiting(TransactionOperationKind.COMMIT)
    rig.ask(last)
    rig.manager.close("the producer was closed")
    assert rig.heard(operation).kind is FailureKind.OUTCOME_UNKNOWN
