"""What is told of a commit: when it can be read, and how it ended when nobody answered."""

import pytest
from penstock.producer.transactions.commit_outcome import CommitOutcome, commit_outcome_of
from penstock.producer.transactions.operations import (
    PartitionsVisible,
    TransactionAlarm,
    TransactionEnded,
    TransactionOperation,
)
from penstock.producer.transactions.requests import (
    DescribeTransaction,
    DescribeTransactionResult,
    EndTxn,
    ErrorCodeResult,
    InitProducerId,
    ProducerIdAndEpoch,
)
from penstock.producer.transactions.states import FailureKind, TransactionManagerState
from penstock.producer.transactions.visibility import (
    LastStableOffsetResult,
    OpenTransactionsResult,
    VisibilityCheck,
    VisibilityCheckKind,
)

from tests.conformance.transaction_rig import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    FIRST,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    RETRY_S,
    SECOND,
    TOPIC_AUTHORIZATION_FAILED,
    TP0,
    TP1,
    TRANSACTIONAL_ID_NOT_FOUND,
    TransactionRig,
)

EXPIRED = ProducerIdAndEpoch(FIRST.producer_id, FIRST.epoch + 1)
STRANGER = ProducerIdAndEpoch(FIRST.producer_id, FIRST.epoch + 2)


def committed(rig: TransactionRig) -> TransactionOperation:
    """EndTxn is answered; the last record of tp0 has offset 10."""
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.ended(commit=True)
    return operation


def look(
    rig: TransactionRig, kind: VisibilityCheckKind, answer: LastStableOffsetResult | OpenTransactionsResult
) -> None:
    """The next look is of this kind."""
    deadline = rig.manager.next_deadline()
    assert deadline is not None
    rig.now = max(rig.now, deadline)
    assert rig.manager.take_visibility_checks(rig.now) == [VisibilityCheck(kind, TP0)]
    rig.manager.visibility_checked(VisibilityCheck(kind, TP0), answer, now=rig.now, chance=0.5)
    rig.take()


def test_a_commit_is_done_when_the_last_stable_offset_has_passed_its_last_record() -> None:
    rig = TransactionRig().begun(TP0)
    operation = committed(rig)
    look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 10))
    assert operation.committed
    assert not operation.done
    look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 11))
    rig.over(operation)
    assert rig.told(PartitionsVisible) == [PartitionsVisible((TP0,))]


def test_another_producers_open_transaction_does_not_keep_a_commit_waiting_once_the_leader_says_so() -> None:
    rig = TransactionRig().begun(TP0)
    operation = committed(rig)
    rig.pass_s(0.6)
    look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 3))
    look(rig, VisibilityCheckKind.OPEN_TRANSACTIONS, OpenTransactionsResult(0, frozenset({FIRST.producer_id, 7})))
    look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 3))
    look(rig, VisibilityCheckKind.OPEN_TRANSACTIONS, OpenTransactionsResult(0, frozenset({7})))
    rig.over(operation)


def test_without_the_right_to_read_only_the_last_stable_offset_is_asked_for() -> None:
    rig = TransactionRig().begun(TP0)
    operation = committed(rig)
    rig.pass_s(0.6)
    look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 3))
    look(rig, VisibilityCheckKind.OPEN_TRANSACTIONS, OpenTransactionsResult(TOPIC_AUTHORIZATION_FAILED))
    for _ in range(3):
        look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 3))
    look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 11))
    rig.over(operation)


def test_a_hanging_transaction_is_told_once_and_nothing_more_goes_to_its_partition_until_it_is_seen() -> None:
    rig = TransactionRig().begun(TP0)
    operation = committed(rig)
    rig.manager.visibility_check_lost(rig.manager.take_visibility_checks(rig.now)[0], now=rig.now, chance=0.5)
    operation.acknowledge()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.manager.maybe_add_partition(*TP1)
    rig.added(TP1)
    assert not rig.manager.may_send(*TP0)
    assert rig.manager.awaiting_visibility == (TP0,)
    rig.pass_s(44.9)
    rig.manager.take_visibility_checks(rig.now)
    assert rig.told(TransactionAlarm) == []
    rig.pass_s(0.2)
    rig.manager.take_visibility_checks(rig.now)
    rig.manager.take_visibility_checks(rig.now + 100)
    (alarm,) = rig.told(TransactionAlarm)
    assert isinstance(alarm, TransactionAlarm)
    assert "hanging transaction: foo-0 was written through offset 10" in alarm.text
    rig.manager.visibility_checked(
        VisibilityCheck(VisibilityCheckKind.LAST_STABLE_OFFSET, TP0),
        LastStableOffsetResult(0, 11),
        now=rig.now,
        chance=0.5,
    )
    rig.added(TP0)
    assert rig.manager.may_send(*TP0)
    assert operation.done


def test_an_abort_is_done_at_once_and_its_partitions_wait_until_its_end_is_seen_there() -> None:
    """Where its marker got lost, the next commit would commit what was aborted."""
    rig = TransactionRig().begun(TP0, tv2=True)
    operation = rig.manager.abort()
    rig.settle(TP0)
    rig.ended(commit=False, following=SECOND)
    rig.over(operation)
    rig.manager.begin()
    assert not rig.manager.may_send(*TP0)
    rig.see(TP0, 11)
    assert rig.manager.may_send(*TP0)


@pytest.mark.parametrize("forbidden", [False, True])
def test_after_an_abort_with_a_batch_that_nobody_answered_the_leader_is_asked_if_it_may_be(forbidden: bool) -> None:
    rig = TransactionRig().begun(TP0, tv2=True)
    operation = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False, following=SECOND)
    rig.over(operation)
    rig.manager.begin()
    if not forbidden:
        look(rig, VisibilityCheckKind.OPEN_TRANSACTIONS, OpenTransactionsResult(0, frozenset({FIRST.producer_id})))
        assert not rig.manager.may_send(*TP0)
    look(
        rig,
        VisibilityCheckKind.OPEN_TRANSACTIONS,
        OpenTransactionsResult(TOPIC_AUTHORIZATION_FAILED if forbidden else 0),
    )
    assert rig.manager.may_send(*TP0)


def test_in_version_2_nothing_goes_to_a_partition_whose_last_commit_is_not_visible_either() -> None:
    rig = TransactionRig().begun(TP0, tv2=True)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.ended(commit=True, following=SECOND)
    operation.acknowledge()
    rig.manager.begin()
    assert not rig.manager.may_send(*TP0)
    assert rig.manager.may_send(*TP1)


def test_a_fatal_error_after_the_coordinators_answer_leaves_the_commit_a_commit() -> None:
    rig = TransactionRig().begun(TP0)
    operation = committed(rig)
    rig.manager.batch_failed(PRODUCER_FENCED, "PRODUCER_FENCED", "fenced")
    assert not operation.done
    look(rig, VisibilityCheckKind.LAST_STABLE_OFFSET, LastStableOffsetResult(0, 11))
    rig.over(operation)
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR


# --- the answer to EndTxn is lost ------------------------------------------------------------------------------------


def lost_end(code: int, *, tv2: bool = False) -> tuple[TransactionRig, TransactionOperation]:
    """EndTxn(commit) went out and was lost; sent again it was answered with this."""
    rig = TransactionRig().begun(TP0, tv2=tv2)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.lose(rig.ask(EndTxn))
    rig.pass_s(RETRY_S + 0.001)
    rig.found()
    rig.refuse(EndTxn, code)
    return rig, operation


def describe(rig: TransactionRig, answer: DescribeTransactionResult) -> None:
    rig.answer(rig.ask(DescribeTransaction), answer)


def test_an_end_that_is_repeated_and_answered_is_a_commit() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.lose(rig.ask(EndTxn))
    rig.pass_s(RETRY_S + 0.001)
    rig.found()
    rig.refuse(EndTxn, CONCURRENT_TRANSACTIONS)
    rig.pass_s(1.0)
    rig.ended(commit=True)
    rig.see(TP0)
    rig.over(operation)


@pytest.mark.parametrize("code", [PRODUCER_FENCED, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING])
@pytest.mark.parametrize("state", ["PrepareCommit", "CompleteCommit"])
def test_a_lost_end_that_the_coordinator_describes_as_a_commit_is_one(code: int, state: str) -> None:
    rig, operation = lost_end(code)
    describe(rig, DescribeTransactionResult(COORDINATOR_LOAD_IN_PROGRESS))
    rig.pass_s(1.0)
    describe(rig, DescribeTransactionResult(0, state, FIRST))
    rig.given(SECOND)
    rig.see(TP0)
    rig.over(operation)
    assert rig.told(TransactionEnded) == [TransactionEnded(committed=True)]


def test_a_committed_producer_that_was_fenced_since_hears_both() -> None:
    rig, operation = lost_end(PRODUCER_FENCED, tv2=True)
    describe(rig, DescribeTransactionResult(0, "CompleteCommit", EXPIRED))
    rig.refuse(InitProducerId, PRODUCER_FENCED)
    rig.see(TP0)
    rig.over(operation)
    assert rig.refusal().kind is FailureKind.FENCED


@pytest.mark.parametrize(("state", "identity"), [("CompleteAbort", EXPIRED), ("PrepareAbort", FIRST), ("Empty", FIRST)])
def test_a_lost_end_that_the_coordinator_describes_as_an_abort_is_told_as_aborted(
    state: str, identity: ProducerIdAndEpoch
) -> None:
    rig, operation = lost_end(INVALID_TXN_STATE)
    describe(rig, DescribeTransactionResult(0, state, identity))
    assert rig.heard(operation).kind is FailureKind.ABORTED
    abort = rig.manager.abort()
    rig.settle()
    rig.given(STRANGER)
    rig.over(abort)
    assert rig.told(TransactionEnded) == [TransactionEnded(committed=False)]


@pytest.mark.parametrize(
    "answer",
    [
        DescribeTransactionResult(0, "Empty", STRANGER),
        DescribeTransactionResult(0, "CompleteCommit", STRANGER),
        DescribeTransactionResult(0, "Ongoing", EXPIRED),
        DescribeTransactionResult(0, "CompleteCommit", ProducerIdAndEpoch(99, 0)),
        DescribeTransactionResult(TRANSACTIONAL_ID_NOT_FOUND),
        ErrorCodeResult(PRODUCER_FENCED),
    ],
)
def test_where_nobody_can_tell_the_application_hears_that_it_may_be_committed(
    answer: DescribeTransactionResult | ErrorCodeResult,
) -> None:
    rig, operation = lost_end(PRODUCER_FENCED)
    rig.answer(rig.ask(DescribeTransaction), answer)
    failure = rig.heard(operation)
    assert failure.kind is FailureKind.OUTCOME_UNKNOWN
    assert "may be committed" in failure.text
    assert rig.refusal().kind is FailureKind.FENCED
    assert len(rig.told(TransactionAlarm)) == 1


def test_brokers_that_do_not_describe_transactions_leave_the_outcome_open() -> None:
    rig, operation = lost_end(PRODUCER_FENCED)
    rig.manager.unsupported_version(rig.ask(DescribeTransaction), "no such request")
    assert rig.heard(operation).kind is FailureKind.OUTCOME_UNKNOWN


def test_a_transaction_that_is_still_open_is_ended_again() -> None:
    rig, operation = lost_end(INVALID_TXN_STATE)
    describe(rig, DescribeTransactionResult(0, "Ongoing", FIRST))
    rig.pass_s(1.0)
    rig.ended(commit=True)
    rig.see(TP0)
    rig.over(operation)


def test_an_end_that_is_refused_at_once_is_no_commit_and_nothing_has_to_be_asked() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.refuse(EndTxn, PRODUCER_FENCED)
    assert rig.heard(operation).kind is FailureKind.FENCED
    assert rig.told(TransactionAlarm) == []


def test_an_end_that_a_second_coordinator_cannot_take_after_the_first_was_lost_is_described() -> None:
    rig = TransactionRig().begun(TP0, tv2=True)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.lose(rig.ask(EndTxn))
    rig.pass_s(RETRY_S + 0.001)
    rig.found()
    rig.manager.unsupported_version(rig.ask(EndTxn), "EndTxn only up to 4")
    describe(rig, DescribeTransactionResult(0, "CompleteCommit", SECOND))
    rig.given(STRANGER)
    rig.see(TP0)
    rig.over(operation)


@pytest.mark.parametrize(
    ("version", "state", "later", "outcome"),
    [
        (1, "CompleteCommit", 0, CommitOutcome.COMMITTED),
        (1, "CompleteCommit", 1, CommitOutcome.UNKNOWN),
        (2, "CompleteCommit", 1, CommitOutcome.COMMITTED),
        (2, "PrepareCommit", 0, CommitOutcome.COMMITTED),
        (2, "CompleteCommit", 2, CommitOutcome.UNKNOWN),
        (2, "CompleteAbort", 1, CommitOutcome.ABORTED),
        (2, "CompleteAbort", 2, CommitOutcome.UNKNOWN),
        (1, "PrepareEpochFence", 1, CommitOutcome.ABORTED),
        (1, "Empty", 1, CommitOutcome.UNKNOWN),
        (1, "CompleteCommit", -1, CommitOutcome.UNKNOWN),
        (1, "Dead", 0, CommitOutcome.UNKNOWN),
    ],
)
def test_only_an_epoch_of_ours_tells_of_our_transaction(
    version: int, state: str, later: int, outcome: CommitOutcome
) -> None:
    told = DescribeTransactionResult(0, state, ProducerIdAndEpoch(FIRST.producer_id, FIRST.epoch + later))
    assert commit_outcome_of(told, FIRST, version) is outcome


@pytest.mark.parametrize("late", ["record", "failure"])
def test_what_comes_after_all_was_said_to_be_settled_is_fatal_and_the_commit_may_be_one(late: str) -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.commit()
    rig.settle(TP0)
    rig.ask(EndTxn)
    rig.manager.maybe_add_partition(*TP0)
    assert rig.manager.state is TransactionManagerState.COMMITTING
    if late == "record":
        rig.manager.maybe_add_partition(*TP1)
    else:
        rig.manager.batch_failed(TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED", "late")
    assert rig.heard(operation).kind is FailureKind.OUTCOME_UNKNOWN
    assert rig.manager.error is not None
    assert rig.manager.error.kind is FailureKind.ILLEGAL_STATE
