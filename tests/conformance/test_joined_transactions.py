"""Rows about records in transactions: what is sent when, what an abort leaves out, and what makes a transaction fail."""

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind
from penstock.producer.transactions.requests import (
    AddPartitions,
    CommitOffsets,
    CoordinatorKind,
    EndTxn,
    ErrorCodeResult,
    FindCoordinator,
    GroupMetadata,
    InitProducerId,
    OffsetToCommit,
    PartitionErrorsResult,
)
from penstock.producer.transactions.states import FailedTransactionError, TransactionManagerState

from .joined_rig import (
    INVALID_REQUEST,
    LEADER_NOT_AVAILABLE,
    MESSAGE_TOO_LARGE,
    NOT_LEADER,
    OUT_OF_ORDER,
    TOPIC,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_PRODUCER_ID,
    ok,
)
from .joined_transaction_rig import JoinedTransactionRig

INVALID_TXN_STATE = 48
PRODUCER_FENCED = 90
SEQUENCE_MAX = (1 << 31) - 1
TRANSACTION_ABORTABLE = 120
BOTH = pytest.mark.parametrize("version", [1, 2])


def ended(rig: JoinedTransactionRig) -> list[bool]:
    """How transactions were ended at the coordinator."""
    return [ask.commit for ask in rig.asked(EndTxn)]


@BOTH
@pytest.mark.row("G25")
def test_records_are_sent_after_their_partition_was_added_and_the_end_comes_last(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    first = rig.append(0)
    rig.finish(rig.commit())
    assert list(rig.delivered(0)) == [first]
    assert [type(ask) for ask in rig.asks] == ([AddPartitions, EndTxn] if version == 1 else [EndTxn])


@BOTH
def test_batches_say_that_they_are_transactional_and_bear_the_one_identity(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    _ = rig.append(0), rig.append(1)
    rig.run()
    sent = [one for request in rig.wire for one in request.sent]
    assert len(sent) == 2
    assert {(one.producer_id, one.epoch) for one in sent} == {tuple(rig.identity)}
    assert all(one.data[22] & 0x10 for one in sent)


def test_sequences_go_on_over_transactions_of_version_one_and_begin_again_in_version_two() -> None:
    for version, following in ((1, 1), (2, 0)):
        rig = JoinedTransactionRig(version=version)
        rig.begin()
        _ = rig.append(0)
        rig.run()
        assert [one.sequence for one in rig.on_wire(0)] == [following]


@pytest.mark.row("E16")
@BOTH
def test_an_abort_fails_what_was_never_sent_and_leaves_alone_what_was(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    sent = rig.append(0)
    rig.run()
    unsent = [rig.append(0) for _ in range(8)], [rig.append(1) for _ in range(3)]
    abort = rig.abort()
    rig.run()
    assert set(rig.failed(0)) == set(unsent[0])
    assert set(rig.failed(1)) == set(unsent[1])
    assert {failure.kind for failure in rig.failed(0).values()} == {DeliveryFailureKind.ABORTED}
    assert [one.first for one in rig.on_wire(0)] == [sent]
    assert not abort.done
    assert ended(rig) == []
    rig.answer()
    rig.finish(abort)
    assert list(rig.delivered(0)) == [sent]
    assert ended(rig) == [False]


@pytest.mark.row("E22")
@BOTH
def test_nothing_lingers_when_the_transaction_is_to_end(version: int) -> None:
    rig = JoinedTransactionRig(version=version, linger_ms=10_000)
    rig.begin()
    _ = rig.append(0)
    rig.run()
    assert not rig.wire
    _ = rig.commit()
    rig.run()
    assert len(rig.wire) == 1


@pytest.mark.row("F24", "G51")
@BOTH
def test_a_record_that_expires_makes_its_transaction_abortable_and_never_fatal(version: int) -> None:
    rig = JoinedTransactionRig(version=version, delivery_ms=1500)
    rig.begin()
    first, other = rig.append(0), rig.append(1)
    rig.run()
    second = rig.append(0)
    rig.pass_ms(1500)
    rig.run()
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    assert rig.failed(0)[first].kind is DeliveryFailureKind.EXPIRED
    assert rig.failed(0)[second].kind is DeliveryFailureKind.EXPIRED
    assert rig.failed(1)[other].kind is DeliveryFailureKind.EXPIRED
    assert "transaction can only be aborted" in rig.failed(0)[first].message
    assert rig.ghosts(0) == []


@pytest.mark.row("G52")
@BOTH
def test_a_commit_whose_record_expires_fails_unsent_and_after_an_abort_the_producer_goes_on(version: int) -> None:
    rig = JoinedTransactionRig(version=version, delivery_ms=1500)
    rig.begin()
    _ = rig.append(0)
    rig.run()
    commit = rig.commit()
    rig.run()
    rig.lose(0)
    rig.down.add(0)
    rig.pass_ms(1500)
    rig.run()
    assert commit.done
    assert commit.failure is not None
    commit.acknowledge()
    assert ended(rig) == []
    rig.down.clear()
    before = rig.identity
    rig.finish(rig.abort())
    assert ended(rig) == [False]
    assert rig.identity.epoch == before.epoch + 1
    rig.begin()
    again = rig.append(0)
    rig.finish(rig.commit())
    assert list(rig.delivered(0)) == [again]


@pytest.mark.row("F30")
@BOTH
def test_a_broker_that_forgot_the_producer_ends_the_transaction_and_no_sequence_begins_again_in_it(
    version: int,
) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    first = rig.append(0)
    rig.run()
    rig.answer()
    _ = rig.append(0, count=2)
    rig.run()
    sent = rig.on_wire(0)
    rig.refuse(UNKNOWN_PRODUCER_ID, partition=0, log_start=1010)
    rig.run()
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    assert list(rig.delivered(0)) == [first]
    assert set(rig.failed(0)) == {first + 1, first + 2}
    assert rig.on_wire(0) == []
    assert {one.epoch for one in sent} == {rig.identity.epoch}


@pytest.mark.row("F36")
@BOTH
def test_a_fenced_producer_fails_everything_and_what_comes_later_changes_nothing(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    here, there = rig.append(0), rig.append(2)
    rig.run()
    late = rig.request_of(2)
    rig.refuse(PRODUCER_FENCED, partition=0)
    assert rig.state is TransactionManagerState.FATAL_ERROR
    assert rig.failed(0)[here].kind is DeliveryFailureKind.FENCED
    assert rig.failed(2)[there].kind is DeliveryFailureKind.FENCED
    rig.answer(late, {2: ok(7)})
    rig.run()
    assert rig.delivered(2) == {}
    assert rig.joined.failure is not None


@pytest.mark.row("F52")
@BOTH
def test_linger_counts_again_in_the_next_transaction(version: int) -> None:
    rig = JoinedTransactionRig(version=version, linger_ms=50)
    rig.begin()
    _ = rig.append(0)
    rig.run()
    assert not rig.wire
    commit = rig.commit()
    rig.run()
    assert len(rig.wire) == 1
    rig.finish(commit)
    rig.begin()
    _ = rig.append(0)
    rig.pass_ms(49)
    rig.run()
    assert not rig.wire
    rig.pass_ms(1)
    rig.run()
    assert len(rig.wire) == 1


@pytest.mark.row("F53", "G46")
@BOTH
def test_a_commit_waits_for_what_is_on_the_wire_and_for_what_waits_behind_it(version: int) -> None:
    rig = JoinedTransactionRig(version=version, in_flight=1)
    rig.begin()
    first = rig.append(0)
    rig.run()
    second = rig.append(0)
    commit = rig.commit()
    for _ in range(5):
        rig.run()
    assert [one.first for one in rig.on_wire(0)] == [first]
    assert ended(rig) == []
    rig.answer()
    for _ in range(5):
        rig.run()
    assert [one.first for one in rig.on_wire(0)] == [second]
    assert ended(rig) == []
    rig.answer()
    rig.finish(commit)
    assert ended(rig) == [True]
    assert set(rig.delivered(0)) == {first, second}


@pytest.mark.row("F55", "G48")
@BOTH
def test_an_abort_of_what_nobody_knows_of_asks_nothing_and_fails_its_records_as_aborted(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    record = rig.append(0)
    rig.finish(rig.abort())
    assert rig.failed(0)[record].kind is DeliveryFailureKind.ABORTED
    assert rig.asks == []
    assert rig.requests == 0
    assert rig.state is TransactionManagerState.READY


@pytest.mark.row("F60")
@BOTH
def test_an_answer_that_comes_after_the_record_expired_changes_nothing(version: int) -> None:
    rig = JoinedTransactionRig(version=version, delivery_ms=1500)
    rig.begin()
    record = rig.append(0)
    rig.run()
    late = rig.request_of(0)
    rig.pass_ms(2000)
    rig.run()
    assert rig.failed(0)[record].kind is DeliveryFailureKind.EXPIRED
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    rig.refuse(INVALID_TXN_STATE, partition=0, request=late)
    rig.run()
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    assert len(rig.failed(0)) == 1
    rig.finish(rig.abort())
    assert rig.state is TransactionManagerState.READY


@pytest.mark.row("F61")
@pytest.mark.parametrize("code", [INVALID_TXN_STATE, TRANSACTION_ABORTABLE])
@BOTH
def test_answers_about_the_transactions_state_fail_the_record_and_leave_an_abort(version: int, code: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    record = rig.append(0)
    rig.run()
    rig.refuse(code, partition=0)
    assert rig.failed(0)[record].code == code
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    with pytest.raises(FailedTransactionError):
        _ = rig.commit()
    before = rig.identity
    rig.finish(rig.abort())
    assert rig.identity.epoch == before.epoch + 1
    rig.begin()
    assert rig.state is TransactionManagerState.IN_TRANSACTION


@pytest.mark.row("F69")
@BOTH
def test_a_coordinator_that_does_not_answer_holds_up_no_records(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    _ = rig.append(0)
    rig.run()
    rig.hold(FindCoordinator)
    offsets = rig.manager.send_offsets({("in", 0): OffsetToCommit(3)}, GroupMetadata("readers"))
    rig.run()
    assert rig.open_ask == FindCoordinator(CoordinatorKind.GROUP, "readers")
    delivered = 0
    for _ in range(30):
        rig.answer()
        _ = rig.append(0)
        rig.run()
        rig.pass_ms(1000)
        delivered = len(rig.delivered(0))
    assert delivered == 30
    assert not offsets.done
    rig.go_on()
    rig.run()
    assert offsets.done
    assert rig.asked(CommitOffsets)


@pytest.mark.row("G6", "H25")
def test_in_version_one_nothing_goes_out_before_its_partition_is_added_and_added_ones_go_on_after_an_error() -> None:
    rig = JoinedTransactionRig(version=1)
    rig.begin()
    rig.hold(AddPartitions)
    early = rig.append(0)
    rig.run()
    assert rig.asked(AddPartitions)[0].partitions == (rig.place(0),)
    assert not rig.wire
    rig.go_on()
    rig.run()
    assert [one.first for one in rig.on_wire(0)] == [early]
    rig.hold(AddPartitions)
    _ = rig.append(1)
    rig.run()
    assert rig.on_wire(1) == []
    rig.refuse(NOT_LEADER, partition=0)
    rig.manager.batch_failed(TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED", "no rights")
    rig.run()
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    assert [one.first for one in rig.on_wire(0)] == [early]
    assert rig.on_wire(1) == []


@pytest.mark.row("G6", "H25")
def test_a_partition_of_which_nothing_was_ever_sent_waits_for_its_addition_too() -> None:
    rig = JoinedTransactionRig(version=1, warm=False)
    rig.begin()
    rig.hold(AddPartitions)
    early = rig.append(0)
    rig.run()
    assert rig.asked(AddPartitions)[0].partitions == (rig.place(0),)
    assert not rig.wire
    rig.go_on()
    rig.run()
    assert [one.first for one in rig.on_wire(0)] == [early]


def test_records_that_come_while_the_addition_is_answered_keep_their_order() -> None:
    rig = JoinedTransactionRig(version=1)
    rig.begin()
    rig.hold(AddPartitions)
    first = rig.append(0)
    rig.run()
    ask = rig.open_ask
    assert isinstance(ask, AddPartitions)
    rig.manager.answered(ask, PartitionErrorsResult({rig.place(0): 0}), now=rig.now, chance=0.5)
    rig.open_ask = None
    second = rig.append(0)
    rig.go_on()
    rig.finish(rig.commit())
    assert list(rig.delivered(0)) == [first, second]


@pytest.mark.row("H25")
def test_a_partition_is_added_when_it_has_records_and_once() -> None:
    rig = JoinedTransactionRig(version=1)
    rig.begin()
    for _ in range(3):
        _ = rig.append(1, count=2)
        rig.run()
    rig.finish(rig.commit())
    assert [ask.partitions for ask in rig.asked(AddPartitions)] == [(rig.place(1),)]
    assert len(rig.delivered(1)) == 6


@pytest.mark.row("G41")
@BOTH
def test_after_an_error_an_abort_ends_what_was_begun_and_the_next_transaction_works(version: int) -> None:
    for begun in (False, True):
        rig = JoinedTransactionRig(version=version)
        rig.begin()
        first = rig.append(0)
        if begun:
            rig.run()
            rig.answer()
        rig.manager.batch_failed(TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED", "no rights")
        second = rig.append(0)
        rig.run()
        assert set(rig.failed(0)) == ({second} if begun else {first, second})
        rig.finish(rig.abort())
        assert ended(rig) == ([False] if begun else [])
        rig.begin()
        again = rig.append(0)
        rig.finish(rig.commit())
        assert again in rig.delivered(0)


@pytest.mark.row("G41", "G49", "G54")
@BOTH
def test_a_batch_that_is_being_retried_is_sent_on_after_an_error_and_its_records_end_well(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    record = rig.append(0)
    rig.run()
    rig.refuse(LEADER_NOT_AVAILABLE, partition=0)
    rig.manager.batch_failed(TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED", "no rights")
    abort = rig.abort()
    rig.run()
    assert [one.first for one in rig.on_wire(0)] == [record]
    assert ended(rig) == []
    rig.answer()
    rig.finish(abort)
    assert list(rig.delivered(0)) == [record]
    assert rig.failed(0) == {}
    assert ended(rig) == [False]


@pytest.mark.row("G54")
@BOTH
def test_a_batch_whose_leader_moves_while_its_transaction_is_aborted_is_sent_on_to_the_next_one(version: int) -> None:
    rig = JoinedTransactionRig(version=version, delivery_ms=60_000)
    rig.begin()
    record = rig.append(0)
    rig.run()
    abort = rig.abort()
    rig.refuse(NOT_LEADER, partition=0)
    rig.lead(0, node=1, epoch=5)
    rig.run()
    assert [(request.node, request.of(0).first) for request in rig.wire] == [(1, record)]
    rig.finish(abort)
    assert list(rig.delivered(0)) == [record]
    assert rig.failed(0) == {}


@pytest.mark.row("G49")
def test_an_addition_that_is_being_retried_ends_before_the_abort() -> None:
    rig = JoinedTransactionRig(version=1)
    rig.begin()
    record = rig.append(0)
    rig.told(AddPartitions, ErrorCodeResult(14))
    rig.run()
    abort = rig.abort()
    rig.finish(abort)
    assert [type(ask) for ask in rig.asks][:3] == [AddPartitions, AddPartitions, EndTxn]
    assert rig.failed(0)[record].kind is DeliveryFailureKind.ABORTED


@pytest.mark.row("G53")
@BOTH
def test_a_retried_batch_that_expires_leaves_an_abort_because_every_broker_used_can_move_an_epoch(version: int) -> None:
    rig = JoinedTransactionRig(version=version, delivery_ms=1500)
    rig.begin()
    record = rig.append(0)
    rig.run()
    rig.refuse(LEADER_NOT_AVAILABLE, partition=0)
    rig.pass_ms(1500)
    rig.run()
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    assert rig.failed(0)[record].kind is DeliveryFailureKind.EXPIRED
    rig.finish(rig.abort())


def test_in_version_one_an_abort_moves_the_epoch_where_something_was_maybe_sent() -> None:
    rig = JoinedTransactionRig(version=1)
    rig.begin()
    _ = rig.append(0)
    rig.run()
    rig.refuse(OUT_OF_ORDER, partition=0)
    before = rig.identity
    rig.finish(rig.abort())
    assert [type(ask) for ask in rig.asks[-2:]] == [EndTxn, InitProducerId]
    assert rig.identity.epoch == before.epoch + 1
    rig.begin()
    _ = rig.append(0)
    rig.run()
    assert [(one.epoch, one.sequence) for one in rig.on_wire(0)] == [(rig.identity.epoch, 0)]


@pytest.mark.row("G55")
@BOTH
def test_a_commit_that_is_under_way_is_brought_to_its_end_by_an_orderly_close(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    record = rig.append(0)
    rig.run()
    commit = rig.commit()
    rig.joined.close(rig.now + 60, now=rig.now)
    rig.finish(commit)
    assert list(rig.delivered(0)) == [record]
    assert ended(rig) == [True]


@pytest.mark.row("G57")
@BOTH
def test_parts_of_a_split_batch_that_fail_end_their_transaction_and_nothing_stays_open(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    first = rig.append(0, count=4)
    rig.run()
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)
    rig.run()
    assert [one.count for one in rig.on_wire(0)] == [2]
    rig.refuse(INVALID_REQUEST, partition=0)
    rig.run()
    assert set(rig.failed(0)) == set(range(first, first + 4))
    assert rig.joined.idle
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR


@pytest.mark.row("G58")
@BOTH
def test_order_and_acknowledgements_are_right_where_sequences_begin_again_at_zero(version: int) -> None:
    rig = JoinedTransactionRig(version=version, warm=False)
    _ = rig.log(0)
    rig.begin()
    part = rig.joined.partitions[rig.joined.number_of(TOPIC, 0)]
    part.rows = [row._replace(base=-(SEQUENCE_MAX - 3)) for row in part.rows]
    _ = rig.append(0, value=b"0")
    rig.run()
    assert [one.sequence for one in rig.on_wire(0)] == [SEQUENCE_MAX - 3]
    rig.logs[0].from_zero = False
    rig.answer(rig.wire[0], {0: rig.logs[0].produce(rig.on_wire(0)[0].data)})
    for number in (1, 2, 3):
        _ = rig.append(0, count=2, value=b"%d" % number)
        rig.run()
    assert [one.sequence for one in rig.on_wire(0)] == [SEQUENCE_MAX - 2, SEQUENCE_MAX, 1]
    # The first arrived and its answer is lost; those behind it come too early when it is asked for again.
    rig.lose(0, arrived=1)
    rig.run()
    rig.refuse(NOT_LEADER, partition=0)
    rig.finish(rig.commit())
    assert list(rig.delivered(0)) == list(range(7))
    assert rig.logs[0].records == [b"0", b"1", b"1", b"2", b"2", b"3", b"3"]


@BOTH
def test_everything_of_a_partition_behind_a_refused_batch_fails_and_other_partitions_end_well(version: int) -> None:
    rig = JoinedTransactionRig(version=version)
    rig.begin()
    warm = rig.append(0)
    rig.run()
    rig.answer()
    first, other = rig.append(0), rig.append(2)
    rig.run()
    second = rig.append(0)
    rig.run()
    assert len(rig.on_wire(0)) == 2
    rig.refuse(INVALID_REQUEST, partition=0)
    rig.run()
    assert rig.failed(0)[first].kind is DeliveryFailureKind.REFUSED
    assert rig.failed(0)[second].kind is DeliveryFailureKind.ABORTED
    rig.answer(rig.request_of(2))
    rig.run()
    assert list(rig.delivered(2)) == [other]
    assert list(rig.delivered(0)) == [warm]
    rig.finish(rig.abort())


def test_records_of_a_partition_whose_commit_is_not_visible_wait_until_it_is() -> None:
    rig = JoinedTransactionRig(version=2, delivery_ms=60_000)
    rig.begin()
    _ = rig.append(0)
    rig.run()
    rig.answer()
    rig.visible = False
    commit = rig.commit()
    rig.run()
    assert commit.committed
    assert not commit.done
    commit.acknowledge()
    rig.begin()
    waits, free = rig.append(0), rig.append(1)
    rig.run()
    assert rig.on_wire(0) == []
    assert [one.first for one in rig.on_wire(1)] == [free]
    rig.visible = True
    rig.pass_ms(5000)
    rig.run()
    rig.run()
    assert [one.first for one in rig.on_wire(0)] == [waits]


def test_a_topic_made_again_in_a_transaction_leaves_an_abort() -> None:
    rig = JoinedTransactionRig(version=2)
    rig.begin()
    record = rig.append(0)
    rig.run()
    rig.topic_id = b"\x08" * 16
    rig.metadata()
    rig.run()
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    assert record in rig.failed(0)
    rig.finish(rig.abort())
    rig.begin()
    again = rig.append(0)
    rig.run()
    assert [(one.first, one.epoch, one.sequence) for one in rig.on_wire(0)][-1] == (again, rig.identity.epoch, 0)


def test_a_refused_addition_fails_the_records_of_all_its_partitions() -> None:
    rig = JoinedTransactionRig(version=1)
    rig.begin()
    records = rig.append(0), rig.append(1)
    rig.told(AddPartitions, PartitionErrorsResult({rig.place(0): TOPIC_AUTHORIZATION_FAILED, rig.place(1): 55}))
    rig.run()
    assert rig.state is TransactionManagerState.ABORTABLE_ERROR
    assert rig.failed(0)[records[0]].kind is DeliveryFailureKind.ABORTED
    assert rig.failed(1)[records[1]].kind is DeliveryFailureKind.ABORTED
    assert "TOPIC_AUTHORIZATION_FAILED" in rig.failed(0)[records[0]].message
