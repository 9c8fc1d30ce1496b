"""Rows of group G: what the transactional producer asks, and what answers mean."""

import pytest
from penstock.producer.transactions.operations import ProducerIdChanged, TransactionFatal, TransactionOperation
from penstock.producer.transactions.requests import (
    NO_IDENTITY,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorKind,
    EndTxn,
    ErrorCodeResult,
    FindCoordinator,
    FindCoordinatorResult,
    GroupMetadata,
    InitProducerId,
    OffsetToCommit,
    PartitionErrorsResult,
    ProducerIdResult,
    TransactionRequest,
    version_range,
)
from penstock.producer.transactions.states import FailedTransactionError, FailureKind, TransactionManagerState

from tests.conformance.transaction_rig import (
    BROKER,
    CLUSTER_AUTHORIZATION_FAILED,
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    FIRST,
    GROUP,
    GROUP_AUTHORIZATION_FAILED,
    ID,
    ILLEGAL_GENERATION,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    OFFSETS,
    OPERATION_NOT_ATTEMPTED,
    OTHER_BROKER,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    RETRY_S,
    SECOND,
    TIMEOUT_MS,
    TOPIC_AUTHORIZATION_FAILED,
    TP0,
    TP1,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
    TransactionRig,
)

RETRIABLE = [UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, CONCURRENT_TRANSACTIONS]


class Before:
    """Right before a request of one kind, everything else done; `operation`: what waits for it."""

    def __init__(self, kind: type[TransactionRequest]) -> None:
        self.rig = TransactionRig()
        self.operation: TransactionOperation | None = None
        if kind in (FindCoordinator, InitProducerId):
            self.operation = self.rig.manager.initialise()
            if kind is InitProducerId:
                self.rig.found()
            return
        self.rig.initialised()
        if kind is AddPartitions:
            self.rig.manager.begin()
            self.rig.manager.maybe_add_partition(*TP0)
            return
        self.rig.begin(TP0)
        if kind is EndTxn:
            self.operation = self.rig.manager.commit()
            self.rig.settle(TP0)
            return
        self.operation = self.rig.send_offsets()
        if kind is CommitOffsets:
            self.rig.offsets_added()
            self.rig.found(CoordinatorKind.GROUP)

    def well(self, kind: type[TransactionRequest]) -> None:
        """The next request is of this kind; it is answered well, and with that its operation, if it has one, goes on."""
        rig = self.rig
        if kind is FindCoordinator:
            rig.found()
        elif kind is InitProducerId:
            rig.given()
        elif kind is AddPartitions:
            rig.added(TP0)
        elif kind is AddOffsets:
            rig.offsets_added()
        elif kind is CommitOffsets:
            rig.offsets_committed()
        else:
            rig.ended(commit=True)


@pytest.mark.row("G24")
def test_a_whole_transaction_of_version_1() -> None:
    rig = TransactionRig()
    operation = rig.manager.initialise()
    rig.found()
    assert rig.given() == InitProducerId(ID, TIMEOUT_MS, NO_IDENTITY)
    rig.over(operation)
    assert rig.told(ProducerIdChanged) == [ProducerIdChanged(*FIRST, 1)]
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    ask = rig.ask(AddPartitions)
    assert ask == AddPartitions(ID, FIRST, (TP0,))
    assert rig.manager.target(ask) == BROKER
    rig.answer(ask, PartitionErrorsResult({TP0: 0}))
    rig.manager.batch_sent(*TP0)
    offsets = rig.send_offsets()
    add = rig.ask(AddOffsets)
    assert add == AddOffsets(ID, FIRST, GROUP.group)
    rig.answer(add, ErrorCodeResult(0))
    rig.found(CoordinatorKind.GROUP, OTHER_BROKER)
    given = rig.ask(CommitOffsets)
    assert given == CommitOffsets(ID, FIRST, GROUP, tuple(OFFSETS.items()), 1)
    assert rig.manager.target(given) == OTHER_BROKER
    rig.answer(given, PartitionErrorsResult(dict.fromkeys(OFFSETS, 0)))
    assert offsets.done
    commit = rig.manager.commit()
    rig.settle(TP0)
    assert rig.ended(commit=True) == EndTxn(ID, FIRST, commit=True, version=1)
    assert not commit.done
    rig.see(TP0, 11)
    rig.over(commit)
    assert rig.manager.state is TransactionManagerState.READY
    assert rig.manager.identity == FIRST
    assert rig.manager.next_deadline() is None


@pytest.mark.row("G24")
def test_a_whole_transaction_of_version_2_needs_two_requests_and_ends_with_the_next_identity() -> None:
    rig = TransactionRig().begun(TP0, tv2=True)
    offsets = rig.send_offsets()
    rig.found(CoordinatorKind.GROUP)
    given = rig.ask(CommitOffsets)
    assert version_range(given) == (5, 5)
    rig.answer(given, PartitionErrorsResult(dict.fromkeys(OFFSETS, 0)))
    assert offsets.done
    commit = rig.manager.commit()
    rig.settle(TP0)
    end = rig.ended(commit=True, following=SECOND)
    assert version_range(end) == (5, 5)
    rig.see(TP0, 11)
    rig.over(commit)
    assert rig.told(ProducerIdChanged) == [ProducerIdChanged(*FIRST, 2), ProducerIdChanged(*SECOND, 2)]


@pytest.mark.row("G25")
def test_partitions_that_wait_are_added_before_a_commit_ends_it() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.manager.commit()
    rig.added(TP0)
    assert rig.manager.may_send(*TP0)
    assert rig.next() is None
    rig.manager.batch_sent(*TP0)
    rig.settle(TP0)
    rig.ended(commit=True)


@pytest.mark.row("G26")
def test_a_partition_that_comes_while_another_is_being_added_is_added_next() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    ask = rig.ask(AddPartitions)
    rig.manager.maybe_add_partition(*TP1)
    assert rig.next() is None
    rig.answer(ask, PartitionErrorsResult({TP0: 0}))
    assert rig.manager.may_send(*TP0)
    assert not rig.manager.may_send(*TP1)
    rig.added(TP1)
    assert rig.manager.may_send(*TP1)


@pytest.mark.row("G27")
@pytest.mark.parametrize(
    ("code", "first", "wait_s"),
    [
        (CONCURRENT_TRANSACTIONS, True, 0.02),
        (COORDINATOR_LOAD_IN_PROGRESS, True, RETRY_S),
        (CONCURRENT_TRANSACTIONS, False, RETRY_S),
    ],
)
def test_the_markers_of_the_last_transaction_are_waited_for_shortly_before_the_first_partition(
    code: int, first: bool, wait_s: float
) -> None:
    rig = TransactionRig().initialised()
    rig.begin(*(() if first else (TP1,)))
    rig.manager.maybe_add_partition(*TP0)
    rig.refuse(AddPartitions, code)
    assert rig.next() is None
    assert rig.manager.next_deadline() == pytest.approx(rig.now + wait_s)
    rig.pass_s(wait_s - 0.001)
    assert rig.next() is None
    rig.pass_s(0.0011)
    rig.added(TP0)


@pytest.mark.row("G28")
@pytest.mark.parametrize("code", RETRIABLE)
@pytest.mark.parametrize("kind", [InitProducerId, AddPartitions, AddOffsets, EndTxn])
def test_a_passing_error_has_the_request_sent_again_to_the_same_coordinator(
    kind: type[TransactionRequest], code: int
) -> None:
    before = Before(kind)
    before.rig.refuse(kind, code)
    assert before.rig.next() is None
    before.rig.pass_s(RETRY_S + 0.001)
    before.well(kind)
    assert before.rig.manager.state is not TransactionManagerState.FATAL_ERROR


@pytest.mark.row("G28")
@pytest.mark.parametrize(
    "code", [COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, REQUEST_TIMED_OUT]
)
def test_a_passing_error_has_the_coordinator_looked_up_again(code: int) -> None:
    rig = TransactionRig()
    rig.manager.initialise()
    rig.answer(rig.ask(FindCoordinator), FindCoordinatorResult(code))
    assert rig.next() is None
    rig.pass_s(RETRY_S + 0.001)
    rig.found()
    rig.given()


@pytest.mark.row("G29")
@pytest.mark.parametrize("kind", [InitProducerId, AddPartitions, AddOffsets, EndTxn])
def test_a_lost_request_has_the_coordinator_looked_up_and_is_sent_again(kind: type[TransactionRequest]) -> None:
    before = Before(kind)
    rig = before.rig
    rig.lose(rig.ask(kind))
    assert rig.next() is None
    rig.pass_s(RETRY_S + 0.001)
    rig.found(broker=OTHER_BROKER)
    again = rig.ask(kind)
    assert rig.manager.target(again) == OTHER_BROKER
    rig.answer(again, ErrorCodeResult(NOT_COORDINATOR))
    rig.pass_s(1.0)
    rig.found()
    before.well(kind)


@pytest.mark.row("G29")
def test_a_lost_look_up_is_repeated_and_init_ends_once() -> None:
    rig = TransactionRig()
    operation = rig.manager.initialise()
    rig.lose(rig.ask(FindCoordinator))
    rig.pass_s(RETRY_S + 0.001)
    rig.found()
    rig.lose(rig.ask(InitProducerId))
    rig.pass_s(RETRY_S + 0.001)
    rig.found()
    rig.given()
    rig.over(operation)
    assert rig.next() is None


@pytest.mark.row("G29")
def test_the_coordinator_of_a_group_is_looked_up_again_after_a_time_out_too() -> None:
    rig = Before(CommitOffsets).rig
    rig.answer(rig.ask(CommitOffsets), PartitionErrorsResult(dict.fromkeys(OFFSETS, REQUEST_TIMED_OUT)))
    rig.pass_s(RETRY_S + 0.001)
    rig.found(CoordinatorKind.GROUP)
    rig.offsets_committed()


@pytest.mark.row("G30")
@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId])
def test_brokers_without_the_request_are_refused_for_transactions(kind: type[TransactionRequest]) -> None:
    before = Before(kind)
    before.rig.manager.unsupported_version(before.rig.ask(kind), "too old")
    assert before.operation is not None
    failure = before.rig.heard(before.operation)
    assert (failure.name, failure.kind) == ("UNSUPPORTED_VERSION", FailureKind.FATAL)
    with pytest.raises(FailedTransactionError):
        before.rig.manager.begin()
    assert version_range(InitProducerId(ID, TIMEOUT_MS, NO_IDENTITY))[0] == 3


@pytest.mark.row("G31")
def test_no_right_to_the_transactional_id_at_the_look_up_is_fatal() -> None:
    before = Before(FindCoordinator)
    before.rig.answer(before.rig.ask(FindCoordinator), FindCoordinatorResult(TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    assert before.operation is not None
    assert before.rig.heard(before.operation).kind is FailureKind.FATAL
    assert before.rig.manager.state is TransactionManagerState.FATAL_ERROR


@pytest.mark.row("G31")
@pytest.mark.parametrize("code", [TRANSACTIONAL_ID_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED])
def test_no_right_to_initialise_fails_the_call_which_may_be_made_again(code: int) -> None:
    before = Before(InitProducerId)
    rig = before.rig
    rig.refuse(InitProducerId, code)
    assert before.operation is not None
    assert rig.heard(before.operation).code == code
    assert rig.manager.state is TransactionManagerState.UNINITIALIZED
    again = rig.manager.initialise()
    rig.given()
    rig.over(again)


@pytest.mark.row("G31")
def test_no_right_to_the_group_is_abortable_and_names_it() -> None:
    rig = Before(AddOffsets).rig
    rig.refuse(AddOffsets, GROUP_AUTHORIZATION_FAILED)
    failure = rig.refusal()
    assert failure.kind is FailureKind.ABORTABLE
    assert GROUP.group in failure.text


@pytest.mark.row("G31")
@pytest.mark.parametrize("at", [FindCoordinator, CommitOffsets])
def test_no_right_to_the_group_at_its_own_coordinator_is_abortable_too(at: type[TransactionRequest]) -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.send_offsets()
    rig.offsets_added()
    if at is FindCoordinator:
        rig.answer(rig.ask(FindCoordinator), FindCoordinatorResult(GROUP_AUTHORIZATION_FAILED))
    else:
        rig.found(CoordinatorKind.GROUP)
        rig.answer(rig.ask(CommitOffsets), PartitionErrorsResult(dict.fromkeys(OFFSETS, GROUP_AUTHORIZATION_FAILED)))
    failure = rig.heard(operation)
    assert GROUP.group in failure.text
    assert rig.manager.state is TransactionManagerState.ABORTABLE_ERROR


@pytest.mark.row("G31")
def test_no_right_to_a_topic_is_abortable_names_it_and_no_partition_of_the_request_may_be_sent() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    rig.manager.maybe_add_partition("other", 0)
    ask = rig.ask(AddPartitions)
    rig.answer(ask, PartitionErrorsResult({TP0: OPERATION_NOT_ATTEMPTED, ("other", 0): TOPIC_AUTHORIZATION_FAILED}))
    failure = rig.refusal()
    assert failure.name == "TOPIC_AUTHORIZATION_FAILED"
    assert "other" in failure.text
    assert failure.text.endswith("topics other)")
    assert not rig.manager.may_send(*TP0)
    assert not rig.manager.may_send("other", 0)


@pytest.mark.row("G31")
@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTxn])
def test_no_right_to_the_transactional_id_later_is_fatal(kind: type[TransactionRequest]) -> None:
    before = Before(kind)
    before.rig.refuse(kind, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert before.rig.manager.state is TransactionManagerState.FATAL_ERROR
    if before.operation is not None:
        assert before.rig.heard(before.operation).kind is FailureKind.FATAL


@pytest.mark.row("G32")
def test_a_commit_fails_with_the_topic_that_could_not_be_added() -> None:
    rig = TransactionRig().initialised()
    rig.manager.begin()
    rig.manager.maybe_add_partition(*TP0)
    ask = rig.ask(AddPartitions)
    operation = rig.manager.commit()
    assert not operation.done
    rig.answer(ask, PartitionErrorsResult({TP0: TOPIC_AUTHORIZATION_FAILED}))
    assert rig.heard(operation).name == "TOPIC_AUTHORIZATION_FAILED"
    abort = rig.manager.abort()
    rig.settle()
    assert rig.next() is None
    rig.over(abort)


@pytest.mark.row("G33")
@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets])
def test_an_invalid_state_at_the_coordinator_is_fatal(kind: type[TransactionRequest]) -> None:
    before = Before(kind)
    before.rig.refuse(kind, INVALID_TXN_STATE)
    assert before.rig.manager.state is TransactionManagerState.FATAL_ERROR


@pytest.mark.row("G34")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (FENCED_INSTANCE_ID, FailureKind.ABORTABLE),
        (UNKNOWN_MEMBER_ID, FailureKind.COMMIT_FAILED),
        (ILLEGAL_GENERATION, FailureKind.COMMIT_FAILED),
    ],
)
def test_a_consumer_that_its_group_replaced_spoils_the_transaction_only(code: int, kind: FailureKind) -> None:
    before = Before(CommitOffsets)
    before.rig.answer(before.rig.ask(CommitOffsets), PartitionErrorsResult(dict.fromkeys(OFFSETS, code)))
    assert before.operation is not None
    failure = before.rig.heard(before.operation)
    assert (failure.kind, failure.code) == (kind, code)
    assert before.rig.manager.state is TransactionManagerState.ABORTABLE_ERROR
    assert before.rig.refusal() == failure


@pytest.mark.row("G35")
@pytest.mark.parametrize("code", [PRODUCER_FENCED, INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("kind", [InitProducerId, AddPartitions, AddOffsets, CommitOffsets, EndTxn])
def test_a_fenced_producer_says_so_to_every_later_call(kind: type[TransactionRequest], code: int) -> None:
    before = Before(kind)
    rig = before.rig
    rig.refuse(kind, code)
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR
    if before.operation is not None:
        assert rig.heard(before.operation).kind is FailureKind.FENCED
    for call in (rig.manager.begin, rig.manager.commit, rig.manager.abort, rig.manager.check_send, rig.send_offsets):
        with pytest.raises(FailedTransactionError) as raised:
            call()
        assert raised.value.failure.kind is FailureKind.FENCED
    assert len(rig.told(TransactionFatal)) == 1


@pytest.mark.row("G36")
@pytest.mark.parametrize("tv2", [False, True])
def test_an_invalid_epoch_as_the_answer_to_produce_is_abortable_and_the_next_transaction_has_another_epoch(
    tv2: bool,
) -> None:
    rig = TransactionRig().begun(TP0, tv2=tv2)
    rig.manager.batch_failed(INVALID_PRODUCER_EPOCH, "INVALID_PRODUCER_EPOCH", "an old epoch")
    assert rig.manager.state is TransactionManagerState.ABORTABLE_ERROR
    operation = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False, following=SECOND if tv2 else None)
    if not tv2:
        assert rig.given(SECOND) == InitProducerId(ID, TIMEOUT_MS, FIRST)
    rig.over(operation)
    assert rig.manager.identity == SECOND


@pytest.mark.row("G37")
@pytest.mark.parametrize("code", [UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS])
def test_only_the_offsets_that_failed_are_sent_again(code: int) -> None:
    rig = TransactionRig().begun(TP0)
    one, two = ("bar", 0), ("bar", 1)
    operation = rig.manager.send_offsets({one: OffsetToCommit(1), two: OffsetToCommit(2)}, GROUP)
    rig.offsets_added()
    rig.found(CoordinatorKind.GROUP)
    rig.answer(rig.ask(CommitOffsets), PartitionErrorsResult({one: 0, two: code}))
    assert not operation.done
    rig.pass_s(RETRY_S + 0.001)
    if code == NOT_COORDINATOR:
        rig.found(CoordinatorKind.GROUP)
    again = rig.ask(CommitOffsets)
    assert again.offsets == ((two, OffsetToCommit(2)),)
    rig.answer(again, PartitionErrorsResult({two: 0}))
    rig.over(operation)


@pytest.mark.row("G37")
@pytest.mark.parametrize(
    "code",
    [
        UNKNOWN_SERVER_ERROR,
        UNSUPPORTED_FOR_MESSAGE_FORMAT,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        INVALID_PRODUCER_EPOCH,
    ],
)
def test_a_fatal_error_for_one_offset_ends_the_call_and_the_producer(code: int) -> None:
    before = Before(CommitOffsets)
    before.rig.answer(before.rig.ask(CommitOffsets), PartitionErrorsResult(dict.fromkeys(OFFSETS, code)))
    assert before.operation is not None
    assert before.rig.heard(before.operation).fatal
    assert before.rig.manager.state is TransactionManagerState.FATAL_ERROR


@pytest.mark.row("G38")
def test_a_consumers_membership_goes_with_its_offsets() -> None:
    group = GroupMetadata("consumer", 5, "member", "instance")
    rig = TransactionRig().begun(TP0)
    rig.manager.send_offsets(OFFSETS, group)
    rig.offsets_added()
    rig.found(CoordinatorKind.GROUP)
    ask = rig.ask(CommitOffsets)
    assert ask.group == group
    assert version_range(ask) == (3, 4)


@pytest.mark.row("G38")
def test_a_coordinator_that_cannot_take_the_membership_is_fatal_and_nothing_is_left_out_for_it() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.manager.send_offsets(OFFSETS, GroupMetadata("consumer", 5, "member"))
    rig.offsets_added()
    rig.found(CoordinatorKind.GROUP)
    rig.manager.unsupported_version(rig.ask(CommitOffsets), "only up to 2")
    assert rig.heard(operation).name == "UNSUPPORTED_VERSION"
    assert rig.manager.state is TransactionManagerState.FATAL_ERROR


@pytest.mark.row("G39")
@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId, AddPartitions, AddOffsets, CommitOffsets, EndTxn])
def test_what_a_broker_calls_abortable_is(kind: type[TransactionRequest]) -> None:
    before = Before(kind)
    before.rig.refuse(kind, TRANSACTION_ABORTABLE)
    assert before.rig.manager.state is TransactionManagerState.ABORTABLE_ERROR
    if before.operation is not None:
        assert before.rig.heard(before.operation).kind is FailureKind.ABORTABLE
    operation = before.rig.manager.abort()
    before.rig.settle()
    ask = before.rig.next()
    if isinstance(ask, EndTxn):
        before.rig.answer(ask, ProducerIdResult(0))
        ask = before.rig.next()
    if isinstance(ask, FindCoordinator):
        before.rig.answer(ask, FindCoordinatorResult(0, coordinator=BROKER))
        ask = before.rig.next()
    if isinstance(ask, InitProducerId):
        before.rig.answer(ask, ProducerIdResult(0, SECOND))
    before.rig.over(operation)
    assert before.rig.manager.state is TransactionManagerState.READY


@pytest.mark.row("G40")
def test_a_cluster_that_turns_to_version_2_changes_nothing_before_an_identity_of_its_own() -> None:
    rig = TransactionRig().begun(TP0)
    rig.manager.update_features(2, offers_v2=True)
    assert rig.manager.version == 1
    rig.manager.maybe_add_partition(*TP1)
    rig.added(TP1)
    operation = rig.manager.commit()
    rig.settle(TP0)
    end = rig.ended(commit=True)
    assert version_range(end) == (0, 4)
    assert rig.given(SECOND) == InitProducerId(ID, TIMEOUT_MS, FIRST)
    rig.see(TP0)
    rig.over(operation)
    rig.manager.begin()
    assert rig.manager.version == 2
    assert rig.manager.may_send(*TP1)
    assert rig.told(ProducerIdChanged) == [ProducerIdChanged(*FIRST, 1), ProducerIdChanged(*SECOND, 2)]


@pytest.mark.row("G40")
def test_back_to_version_1_also_goes_by_an_identity_of_its_own() -> None:
    rig = TransactionRig().begun(TP0, tv2=True)
    rig.manager.update_features(1, offers_v2=True)
    operation = rig.manager.abort()
    rig.settle()
    rig.ended(commit=False, following=SECOND)
    third = SECOND._replace(epoch=3)
    assert rig.given(third) == InitProducerId(ID, TIMEOUT_MS, SECOND)
    rig.over(operation)
    assert rig.told(ProducerIdChanged) == [ProducerIdChanged(*FIRST, 2), ProducerIdChanged(*third, 1)]


def test_the_level_alone_does_not_make_version_2() -> None:
    rig = TransactionRig()
    rig.manager.update_features(2, offers_v2=False)
    rig.manager.initialise()
    rig.found()
    rig.given()
    assert rig.manager.version == 1


def test_an_answer_of_another_kind_is_fatal() -> None:
    before = Before(InitProducerId)
    before.rig.answer(before.rig.ask(InitProducerId), PartitionErrorsResult({}))
    assert before.rig.manager.state is TransactionManagerState.FATAL_ERROR


def test_a_group_that_cannot_be_found_keeps_no_partition_from_being_added() -> None:
    rig = TransactionRig().begun(TP0)
    operation = rig.send_offsets()
    rig.offsets_added()
    rig.answer(rig.ask(FindCoordinator), FindCoordinatorResult(COORDINATOR_NOT_AVAILABLE))
    rig.manager.maybe_add_partition(*TP1)
    rig.added(TP1)
    commit = rig.manager.commit()
    rig.settle(TP0)
    assert rig.next() is None, "the offsets belong to it, so the end waits for them"
    rig.pass_s(RETRY_S + 0.001)
    rig.found(CoordinatorKind.GROUP)
    rig.offsets_committed()
    rig.over(operation)
    rig.ended(commit=True)
    rig.see(TP0)
    rig.over(commit)


def test_a_producer_may_send_a_generation_only_with_its_member() -> None:
    rig = TransactionRig().begun()
    with pytest.raises(ValueError, match="member"):
        rig.manager.send_offsets(OFFSETS, GroupMetadata("consumer", 2))
    assert rig.manager.send_offsets({}, GROUP).done
    assert rig.next() is None
