"""Ways to change one rule of the embedded broker's transactions, as in broker_mutants.py."""

from collections.abc import Callable
from typing import Any

from penstock.broker.cluster.responses import ImmediateResponse
from penstock.broker.groups import offsets_table
from penstock.broker.groups.membership import ClassicGroup
from penstock.broker.groups.offsets_table import GroupTable
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.log.partition_log import PartitionLog
from penstock.broker.log.producer_state import NextBatch, NotInTransaction, ProducerStateManager, TransactionalFlags
from penstock.broker.requests import (
    coordinator,
    group_offsets,
    join_group,
    periodic_tasks,
    produce,
    transaction_markers,
    transactions,
)
from penstock.broker.transactions import states
from penstock.broker.transactions.states import NO_EPOCH, PREPARED, TransactionMetadata, TransactionState
from penstock.broker.transactions.table import TransactionTable

from .broker_mutants import Changes, Mutant, judging

MUTANTS: dict[str, Mutant] = {}
"""Changes that a recorded conversation must notice."""

OF_SCENARIOS: dict[str, tuple[Mutant, str]] = {}
"""Changes of what is not recorded, such as what coordinators do in a cluster, with the name of the scenario that must notice."""


def mutant(change: Mutant) -> Mutant:
    MUTANTS[change.__name__] = change
    return change


def of_scenarios(notices: str) -> Callable[[Mutant], Mutant]:
    def keep(change: Mutant) -> Mutant:
        OF_SCENARIOS[change.__name__] = (change, notices)
        return change

    return keep


def altered(patch: Changes, owner: Any, name: str, how: Callable[[Any], Any]) -> None:
    """Give what a function returns through another one."""
    before = getattr(owner, name)
    patch.swap(owner, name, lambda *given, **more: how(before(*given, **more)))


@mutant
def fencing_takes_no_epoch(patch: Changes) -> None:
    altered(patch, states, "prepare_fence", lambda told: told and told._replace(epoch=told.epoch - 1))


@mutant
def fencing_forgets_the_epoch_before(patch: Changes) -> None:
    altered(patch, states, "prepare_fence", lambda told: told and told._replace(last_epoch=NO_EPOCH))


@mutant
def any_epoch_may_add_and_end(patch: Changes) -> None:
    def owned(known: TransactionMetadata, who: states.TransactionOwner) -> ErrorCode:
        mine = known.producer_id == who.producer_id
        return ErrorCode.NONE if mine else ErrorCode.INVALID_PRODUCER_ID_MAPPING

    patch.swap(states, "_check_owner", owned)


@mutant
def any_producer_may_add_and_end(patch: Changes) -> None:
    def owned(known: TransactionMetadata, who: states.TransactionOwner) -> ErrorCode:
        return ErrorCode.NONE if known.epoch == who.epoch else ErrorCode.PRODUCER_FENCED

    patch.swap(states, "_check_owner", owned)


@mutant
def partitions_need_not_be_added(patch: Changes) -> None:
    patch.swap(states, "verify_partition", lambda *_: ErrorCode.NONE)


@mutant
def an_open_transaction_is_not_seen_in_the_log(patch: Changes) -> None:
    patch.swap(ProducerStateManager, "has_open_transaction", lambda *_: True)


@mutant
def version_2_may_begin_anywhere(patch: Changes) -> None:
    patch.swap(produce, "transactional_flags_of", lambda head, _: TransactionalFlags(bool(head.attributes & 0x10)))


@mutant
def what_was_refused_before_does_not_matter(patch: Changes) -> None:
    patch.swap(ProducerStateManager, "_lowest_sequence", lambda _, __, otherwise: otherwise)


@mutant
def a_plain_batch_may_be_in_between(patch: Changes) -> None:
    judging(patch, lambda verdict: NextBatch() if isinstance(verdict, NotInTransaction) else verdict)


@mutant
def an_end_is_not_told_again(patch: Changes) -> None:
    patch.swap(states, "_check_already_ended", lambda known, *, commit: ErrorCode.INVALID_TXN_STATE)


@mutant
def the_other_end_is_told_as_well(patch: Changes) -> None:
    patch.swap(states, "_check_already_ended", lambda known, *, commit: ErrorCode.NONE)


@mutant
def version_2_ends_within_the_epoch(patch: Changes) -> None:
    def same(told: Any) -> Any:
        return told._replace(epoch=told.epoch - 1) if isinstance(told, TransactionMetadata) else told

    altered(patch, states, "prepare_end_with_epoch_bump", same)


@mutant
def version_2_commits_nothing_as_well(patch: Changes) -> None:
    ended = states.prepare_end_with_epoch_bump

    def loosely(known: TransactionMetadata, *given: Any, **more: Any) -> Any:
        opened = known if known.state in PREPARED else known._replace(state=TransactionState.ONGOING)
        return ended(opened, *given, **more)

    patch.swap(states, "prepare_end_with_epoch_bump", loosely)


@mutant
def the_last_epoch_is_given_away(patch: Changes) -> None:
    patch.swap(states, "LAST_EPOCH", 32_767)


@mutant
def what_a_producer_thinks_is_not_looked_at(patch: Changes) -> None:
    initialised = states.prepare_init_producer_id
    patch.swap(
        states, "prepare_init_producer_id", lambda known, _, *rest, **more: initialised(known, None, *rest, **more)
    )


@mutant
def a_successor_leaves_the_outcome_visible(patch: Changes) -> None:
    initialised = states.prepare_init_producer_id

    def keep(known: TransactionMetadata, *rest: Any, **more: Any) -> Any:
        told = initialised(known, *rest, **more)
        return told._replace(state=known.state) if isinstance(told, TransactionMetadata) else told

    patch.swap(states, "prepare_init_producer_id", keep)


@mutant
def a_marker_leaves_the_window(patch: Changes) -> None:
    def of(self: ProducerStateManager, producer_id: int, epoch: int) -> Any:
        producer = self._producers.get(producer_id)
        if producer is None:
            return before(self, producer_id, epoch)
        producer.epoch = epoch
        return producer

    before = ProducerStateManager._entry
    patch.swap(ProducerStateManager, "_entry", of)


@mutant
def every_marker_empties_the_window(patch: Changes) -> None:
    ended = ProducerStateManager.transaction_ended

    def empty(self: ProducerStateManager, producer_id: int, *rest: Any) -> Any:
        told = ended(self, producer_id, *rest)
        self._producers[producer_id].batches.clear()
        return told

    patch.swap(ProducerStateManager, "transaction_ended", empty)


@mutant
def readers_see_open_transactions(patch: Changes) -> None:
    patch.swap(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))


@mutant
def readers_are_not_told_what_was_aborted(patch: Changes) -> None:
    patch.swap(PartitionLog, "aborted_transactions", lambda *_: [])


@of_scenarios("test_readers_of_committed_records_stop_at_an_open_transaction_and_learn_of_aborted_ones")
def all_aborted_transactions_are_told_to_everybody(patch: Changes) -> None:
    patch.swap(
        PartitionLog, "aborted_transactions", lambda self, *_: [one for one in self._completed_txns if not one.commit]
    )


@mutant
def offsets_count_before_the_commit(patch: Changes) -> None:
    patch.swap(offsets_table, "TRANSACTIONAL_BIT", 0)


@mutant
def aborted_offsets_count(patch: Changes) -> None:
    altered(patch, offsets_table, "read_marker", lambda told: told._replace(commit=True))


@mutant
def offsets_are_told_as_stable(patch: Changes) -> None:
    patch.swap(GroupTable, "has_pending_offset", lambda *_: False)


@mutant
def the_later_counted_offset_wins(patch: Changes) -> None:
    def apply(offsets: Any, told: Any) -> None:
        offsets.update({place: one for place, one in told.items() if one is not None})

    patch.swap(offsets_table, "_apply", apply)


@mutant
def anybody_commits_for_a_generation(patch: Changes) -> None:
    patch.swap(group_offsets, "_member_error", lambda *_, **__: ErrorCode.NONE)


@mutant
def transactions_stay_open_for_ever(patch: Changes) -> None:
    patch.swap(periodic_tasks, "abort_timed_out", lambda *_: None)


@mutant
def nobody_asks_for_rights_to_transactional_ids(patch: Changes) -> None:
    patch.swap(transactions, "is_authorized", lambda *_: True)


@of_scenarios("test_an_end_is_not_told_before_the_replicas_know_it")
def an_answer_does_not_wait_for_replicas(patch: Changes) -> None:
    patch.swap(transactions, "try_complete_write", lambda node, call, written: ImmediateResponse(written.answer))


@of_scenarios("test_until_its_marker_is_written_a_late_batch_falls_into_the_ended_transaction_and_the_next_epoch_waits")
def the_next_epoch_does_not_wait_for_markers(patch: Changes) -> None:
    added = states.prepare_add_partitions

    def at_once(known: TransactionMetadata, *rest: Any) -> Any:
        return added(
            known._replace(state=TransactionState.COMPLETE_COMMIT) if known.state in PREPARED else known, *rest
        )

    patch.swap(states, "prepare_add_partitions", at_once)


@of_scenarios("test_the_next_coordinator_writes_the_markers_that_the_last_one_owed")
def a_new_coordinator_owes_nothing(patch: Changes) -> None:
    patch.swap(transaction_markers, "PREPARED", frozenset())


@of_scenarios("test_a_marker_that_is_lost_with_its_leader_is_written_again")
def a_marker_is_written_once(patch: Changes) -> None:
    def look(_node: Any, key: Any, _sent: Any, ending: Any) -> None:
        del ending.unreplicated[key]

    patch.swap(transaction_markers, "_check_replicated", look)


@of_scenarios("test_a_marker_that_is_lost_with_its_leader_is_written_again")
def a_marker_counts_before_it_is_copied(patch: Changes) -> None:
    def stable(self: PartitionLog) -> int:
        opened = self.producers.first_undecided_offset()
        return self.high_watermark if opened is None else min(opened, self.high_watermark)

    patch.swap(PartitionLog, "last_stable_offset", property(stable))


@of_scenarios("test_too_few_replicas_of_the_coordinators_log_decide_nothing")
def one_replica_is_enough_for_a_coordinator(patch: Changes) -> None:
    append = coordinator.append

    def always(node: Any, partition: Any, *rest: Any) -> Any:
        placement = partition.placement
        partition.placement = placement._replace(in_sync=placement.replicas)
        told = append(node, partition, *rest)
        partition.placement = placement
        return told

    patch.swap(coordinator, "append", always)


@of_scenarios("test_a_new_coordinator_may_take_a_while_to_read_its_log")
def a_coordinator_answers_while_it_loads(patch: Changes) -> None:
    patch.swap(TransactionTable, "loading", lambda *_: False)


@of_scenarios("test_an_open_transaction_goes_on_under_the_next_coordinator")
def a_new_coordinator_reads_nothing(patch: Changes) -> None:
    load = TransactionTable.load
    patch.swap(TransactionTable, "load", lambda self, index, _, ready_at: load(self, index, [], ready_at))


@of_scenarios("test_offsets_of_a_transaction_are_those_of_the_next_group_coordinator")
def a_new_group_coordinator_forgets_what_is_pending(patch: Changes) -> None:
    load = GroupTable.load

    def forget(self: GroupTable, index: int, *rest: Any) -> None:
        load(self, index, *rest)
        self._known[index].pending.clear()

    patch.swap(GroupTable, "load", forget)


@mutant
def any_generation_is_the_present_one(patch: Changes) -> None:
    error_of = ClassicGroup.validate_member
    patch.swap(ClassicGroup, "validate_member", lambda self, name, instance, _=None: error_of(self, name, instance))


@mutant
def whoever_left_is_still_there(patch: Changes) -> None:
    patch.swap(ClassicGroup, "leave", lambda *_: None)


@mutant
def a_consumer_needs_no_name_to_join(patch: Changes) -> None:
    patch.swap(join_group, "NAMED_FIRST", 99)
