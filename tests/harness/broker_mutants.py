"""Ways to change one rule of the embedded broker, and to take the change back: what shows that the rule is looked at."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.broker.cluster.node import BrokerNode, BrokerPartition
from penstock.broker.log import producer_state
from penstock.broker.log.error_codes import AppendRejection, ErrorCode
from penstock.broker.log.partition_log import DuplicateAppend, PartitionLog
from penstock.broker.log.producer_state import (
    DuplicateBatch,
    NextBatch,
    OutOfOrderSequence,
    ProducerStateManager,
    StaleEpoch,
)
from penstock.broker.replication.replicated_cluster import ReplicatedCluster
from penstock.broker.requests import describe_producers, dispatch, fetch, produce

_ABSENT = object()


class Changes:
    """Attributes that were changed, and what they were."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, object]] = []

    def swap(self, owner: Any, name: str, value: object) -> None:
        """Give an attribute another value."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def take_back(self) -> None:
        """Give every attribute its old value."""
        for owner, name, value in reversed(self._before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._before.clear()


Mutant = Callable[[Changes], None]
MUTANTS: dict[str, Mutant] = {}
"""Changes that a recorded exchange must notice."""

OF_REPLICAS: dict[str, tuple[Mutant, str]] = {}
"""Changes of what replicas do, with the name of the scenario that must notice as well."""


def mutant(change: Mutant) -> Mutant:
    MUTANTS[change.__name__] = change
    return change


def of_replicas(notices: str) -> Callable[[Mutant], Mutant]:
    def keep(change: Mutant) -> Mutant:
        OF_REPLICAS[change.__name__] = (change, notices)
        return change

    return keep


@mutant
def a_window_of_four(patch: Changes) -> None:
    patch.swap(producer_state, "REMEMBERED_BATCHES", 4)


@mutant
def a_window_of_six(patch: Changes) -> None:
    patch.swap(producer_state, "REMEMBERED_BATCHES", 6)


@mutant
def contents_are_compared(patch: Changes) -> None:
    place = PartitionLog.prepare_append

    def compare(self: PartitionLog, head: Any, data: bytes, *rest: Any, **more: Any) -> Any:
        found = place(self, head, data, *rest, **more)
        if isinstance(found, DuplicateAppend):
            (stored, *_) = self.read(found.base_offset, 1, below=1 << 62)
            if stored[61:] != data[61:]:
                return AppendRejection(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "other contents", has_log_start_offset=True
                )
        return found

    patch.swap(PartitionLog, "prepare_append", compare)


def judging(patch: Changes, changed: Callable[[Any], Any]) -> None:
    judge = ProducerStateManager.check_batch
    patch.swap(ProducerStateManager, "check_batch", lambda self, *batch: changed(judge(self, *batch)))


@mutant
def a_gap_is_accepted(patch: Changes) -> None:
    judging(
        patch, lambda verdict: NextBatch() if isinstance(verdict, OutOfOrderSequence) and verdict.expected else verdict
    )


@mutant
def a_bump_may_begin_anywhere(patch: Changes) -> None:
    judging(patch, lambda verdict: NextBatch() if verdict == OutOfOrderSequence(0) else verdict)


@mutant
def an_old_epoch_is_accepted(patch: Changes) -> None:
    judging(patch, lambda verdict: NextBatch() if isinstance(verdict, StaleEpoch) else verdict)


@mutant
def only_the_first_sequence_makes_a_duplicate(patch: Changes) -> None:
    judge = ProducerStateManager.check_batch

    def loosely(self: ProducerStateManager, producer_id: int, epoch: int, first: int, last: int, *kind: Any) -> Any:
        for key, producer in self.snapshot():
            if key == producer_id and producer.epoch == epoch:
                for stored in producer.batches:
                    if stored.first_sequence == first:
                        return DuplicateBatch(stored)
        return judge(self, producer_id, epoch, first, last, *kind)

    patch.swap(ProducerStateManager, "check_batch", loosely)


@mutant
def an_unknown_id_must_begin_at_zero(patch: Changes) -> None:
    judge = ProducerStateManager.check_batch

    def strictly(self: ProducerStateManager, producer_id: int, epoch: int, first: int, last: int, *kind: Any) -> Any:
        known = producer_id in dict(self.snapshot())
        return judge(self, producer_id, epoch, first, last, *kind) if known or first == 0 else OutOfOrderSequence(0)

    patch.swap(ProducerStateManager, "check_batch", strictly)


@mutant
def state_is_kept_for_ever(patch: Changes) -> None:
    patch.swap(ProducerStateManager, "expire", lambda self, **clock: None)


@mutant
def age_is_measured_from_the_append(patch: Changes) -> None:
    appended: dict[int, int] = defaultdict(int)
    place = PartitionLog.prepare_append

    def note(self: PartitionLog, head: Any, *rest: Any, wall_ms: int, **more: Any) -> Any:
        appended[head.producer_id] = wall_ms
        return place(self, head, *rest, wall_ms=wall_ms, **more)

    def expire(self: ProducerStateManager, *, wall_ms: int, after_ms: int) -> None:
        for key in [key for key in self._producers if wall_ms - appended[key] >= after_ms]:
            del self._producers[key]

    patch.swap(PartitionLog, "prepare_append", note)
    patch.swap(ProducerStateManager, "expire", expire)


@mutant
def duplicates_are_looked_for_first(patch: Changes) -> None:
    check = produce.validate_batch
    append = produce._append

    def first(node: BrokerNode, partition: BrokerPartition, part: Any, **more: Any) -> Any:
        def lenient(data: bytes, rules: Any, **limits: Any) -> Any:
            found = check(data, rules, **limits)
            plain = check(data, type(rules)(), **limits)
            if isinstance(found, AppendRejection) and not isinstance(plain, AppendRejection):
                kind = partition.rules.timestamp_type
                placed = partition.log.prepare_append(plain, data, kind, wall_ms=limits["wall_ms"])
                return plain if isinstance(placed, DuplicateAppend) else found
            return found

        patch.swap(produce, "validate_batch", lenient)
        return append(node, partition, part, **more)

    patch.swap(produce, "_append", first)


@mutant
def five_are_remembered_after_a_restart(patch: Changes) -> None:
    patch.swap(ProducerStateManager, "keep_last_batches", lambda self: None)


@mutant
def a_restart_with_an_emptied_log_keeps_the_state(patch: Changes) -> None:
    def reload(self: PartitionLog, *, clean: bool, wall_ms: int, after_ms: int) -> None:
        self.producers.keep_last_batches()
        self.producers.expire(wall_ms=wall_ms, after_ms=after_ms)

    patch.swap(PartitionLog, "reload", reload)


@mutant
def deleting_records_forgets_their_producers(patch: Changes) -> None:
    delete = PartitionLog.delete_before

    def forget(self: PartitionLog, offset: int, **how: bool) -> None:
        delete(self, offset, **how)
        if self.start_offset == self.end_offset:
            self.producers = ProducerStateManager()

    patch.swap(PartitionLog, "delete_before", forget)


@mutant
def followers_refuse_describe_producers(patch: Changes) -> None:
    describe = describe_producers._producers

    def refuse(node: BrokerNode, name: str, index: int, call: Any) -> Any:
        topic = node.topic(name)
        answer = describe(node, name, index, call)
        if topic is not None and isinstance(node.partition(topic, index), ErrorCode):
            answer.error_code, answer.active_producers = ErrorCode.NOT_LEADER_OR_FOLLOWER, []
        return answer

    patch.swap(describe_producers, "_producers", refuse)


@mutant
def the_answer_to_a_duplicate_tells_no_time(patch: Changes) -> None:
    place = PartitionLog.prepare_append

    def silent(self: PartitionLog, *batch: Any, **more: Any) -> Any:
        found = place(self, *batch, **more)
        return found._replace(log_append_time=-1) if isinstance(found, DuplicateAppend) else found

    patch.swap(PartitionLog, "prepare_append", silent)


@mutant
def all_replicas_are_not_waited_for(patch: Changes) -> None:
    patch.swap(produce, "_is_complete", lambda node, expected, version: True)


@mutant
def too_few_replicas_refuse_nothing(patch: Changes) -> None:
    patch.swap(BrokerPartition, "min_in_sync", 0)


@mutant
def leader_epochs_are_not_checked(patch: Changes) -> None:
    patch.swap(fetch, "_leader_partition", lambda node, topic, index, epoch: node.partition(topic, index))


@mutant
@of_replicas("test_a_deposed_leader_answers_from_its_own_log_until_it_hears_of_it_and_its_tail_is_cut")
def tails_are_not_cut(patch: Changes) -> None:
    patch.swap(PartitionLog, "truncate", lambda self, end: None)


@mutant
@of_replicas("test_a_lonely_leader_with_a_minimum_of_one_goes_on_acknowledging_what_is_lost")
def a_leader_cut_off_steps_down(patch: Changes) -> None:
    reaches = ReplicatedCluster.serves

    def step_down(self: ReplicatedCluster, node_id: int) -> bool:
        return reaches(self, node_id) and self._reaches(node_id, -1)

    def refuse(self: ReplicatedCluster, node_id: int, *rest: Any) -> Any:
        assert step_down(self, node_id)
        return apply(self, node_id, *rest)

    apply = ReplicatedCluster.apply
    patch.swap(ReplicatedCluster, "apply", refuse)


@of_replicas("test_replicas_lost_after_they_had_the_batch_are_told_with_the_offset")
def replicas_lost_after_the_append_are_not_told(patch: Changes) -> None:
    finish = produce.try_complete_produce

    def kindly(node: BrokerNode, request: Any, call: Any, written: Any) -> Any:
        outcome = finish(node, request, call, written)
        for answer in written.answers:
            for part in answer.partition_responses:
                if part.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                    part.error_code = ErrorCode.NONE
        return outcome

    patch.swap(dispatch, "try_complete_produce", kindly)


@mutant
@of_replicas("test_readers_do_not_see_what_is_not_on_all_in_sync_replicas")
def readers_see_everything(patch: Changes) -> None:
    everything = property(lambda self: self.end_offset, lambda self, value: None)
    patch.swap(PartitionLog, "high_watermark", everything)


@mutant
@of_replicas("test_a_follower_that_was_down_while_batches_were_written_and_deleted_does_not_know_the_id")
def a_follower_that_was_left_behind_keeps_its_memory(patch: Changes) -> None:
    restart_at = PartitionLog.truncate_fully_and_start_at

    def keep(self: PartitionLog, offset: int) -> None:
        kept = self.producers
        restart_at(self, offset)
        self.producers = kept

    patch.swap(PartitionLog, "truncate_fully_and_start_at", keep)


@contextmanager
def changed(mutant_: Mutant) -> Iterator[None]:
    """With this change, and without it again behind."""
    changes = Changes()
    mutant_(changes)
    try:
        yield
    finally:
        changes.take_back()
