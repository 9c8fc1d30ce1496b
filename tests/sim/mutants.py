"""Faults planted in the producer, which a simulation must find: what shows that it looks.

Each with seeds that found it last, which are tried first.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.producer.accumulator.partition_queue import PartitionQueue
from penstock.producer.delivery import delivery_timeout
from penstock.producer.delivery.assignment import PartitionAssigner
from penstock.producer.delivery.deadlines import ExpiredSpans
from penstock.producer.delivery.in_process import InProcessDelivery
from penstock.producer.delivery.partition_state import PartitionState
from penstock.producer.sender import broker_link, partitions, produce_response
from penstock.producer.sender.idempotent import IdempotentPartition
from penstock.producer.sender.modes import LeaderCheck, SendMode

from tests.harness.broker_mutants import Changes, Mutant

LOOKED_AT: Final = 160
"""Seeds that are tried, at most."""
MUTANTS: Final[dict[str, tuple[tuple[int, ...], Mutant]]] = {}


def found_by(*seeds: int) -> Callable[[Mutant], Mutant]:
    def keep(change: Mutant) -> Mutant:
        MUTANTS[change.__name__] = (seeds, change)
        return change

    return keep


def first_failing(run: Callable[[int], object], seeds: Iterable[int]) -> int | None:
    """The first seed whose run fails; those that found a fault once come first, because any change of the producer or of the
    schedule makes other runs of the same seeds."""
    for seed in dict.fromkeys([*seeds, *range(LOOKED_AT)]):
        try:
            _ = run(seed)
        except (AssertionError, LookupError, ValueError):
            return seed
    return None


@found_by(1, 2)
def a_retry_has_a_new_stamp(patch: Changes) -> None:
    heard = InProcessDelivery._apply_message

    def bump(self: InProcessDelivery, message: Any, now: float) -> None:
        heard(self, message, now)
        if type(message).__name__ == "NewLeaderHint":
            part = self.partitions[message.partition]
            if part.granted and self.table.partitions[part.number].unresolved:
                self._assigner.revoke(part, now)
                if part.bump():
                    self._assigner.reconsider(part)

    patch.swap(InProcessDelivery, "_apply_message", bump)


@found_by(85)
def cuts_are_made_anew_when_a_lease_comes_back(patch: Changes) -> None:
    grant = PartitionAssigner._grant

    def without_cuts(self: PartitionAssigner, part: PartitionState, now: float) -> None:
        part.cuts = []
        grant(self, part, now)

    patch.swap(PartitionAssigner, "_grant", without_cuts)


@found_by(1, 2)
def a_lost_connection_acknowledges(patch: Changes) -> None:
    def take(lease: Any, batch: Any, flight: Any, reason: str, *, now: float, chance: float) -> None:
        outcome = broker_link._outcomes_without_acks(flight)[0]._replace(index=lease.index)
        produce_response.complete_batch(lease, batch, flight, outcome, now=now, chance=chance)

    patch.swap(partitions, "complete_without_response", take)


@found_by(17, 40)
def one_acknowledgement_is_enough(patch: Changes) -> None:
    begin = broker_link.LinkRules.__init__

    def loosely(self: Any, **given: Any) -> None:
        begin(self, **{**given, "acks": 1})

    patch.swap(broker_link.LinkRules, "__init__", loosely)


@found_by(2, 6)
def what_expires_was_never_sent(patch: Changes) -> None:
    split = delivery_timeout.split_expired

    def never(part: Any, end: int, sent_to: int) -> ExpiredSpans:
        maybe, unsent = split(part, end, sent_to)
        return ExpiredSpans((maybe[0], maybe[0]), (maybe[0], unsent[1]))

    patch.swap(delivery_timeout, "split_expired", never)


@found_by(6, 8)
def what_expires_keeps_its_stamps(patch: Changes) -> None:
    patch.swap(PartitionState, "skip", lambda self, spans: None)


@found_by(23)
def five_may_be_under_way_before_one_has_proven(patch: Changes) -> None:
    enter = IdempotentPartition.enter

    def never_careful(self: IdempotentPartition, mode: SendMode) -> None:
        enter(self, SendMode.RUNNING if mode is SendMode.ONE_IN_FLIGHT and self.mode is SendMode.RUNNING else mode)

    patch.swap(IdempotentPartition, "enter", never_careful)


@found_by(0, 1)
def requests_that_landed_keep_their_buffers(patch: Changes) -> None:
    patch.swap(PartitionQueue, "release", lambda self, batch: None)


@found_by(1, 9)
def what_lies_behind_an_epoch_is_taken_for_lost(patch: Changes) -> None:
    ask = IdempotentPartition.require_check

    def alarm(self: IdempotentPartition, question: LeaderCheck) -> None:
        if question is LeaderCheck.LOG_END:
            self.halt(-1, "acknowledged records are gone")
        else:
            ask(self, question)

    patch.swap(IdempotentPartition, "require_check", alarm)
