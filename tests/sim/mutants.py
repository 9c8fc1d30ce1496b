"""Faults planted in the producer, which a simulation must find: what shows that it looks.

Each with seeds that found it last, which are tried first.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.producer.accumulator.partition_queue import PartitionQueue
from penstock.producer.delivery import delivery_timeout
from penstock.producer.delivery.assignment import Placing
from penstock.producer.delivery.deadlines import Expired
from penstock.producer.delivery.in_process import Joined
from penstock.producer.delivery.partition_state import Partition
from penstock.producer.sender import broker_link, partitions, produce_response
from penstock.producer.sender.idempotent import Lease
from penstock.producer.sender.modes import Mode, Question

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
    heard = Joined._heard

    def bump(self: Joined, message: Any, now: float) -> None:
        heard(self, message, now)
        if type(message).__name__ == "Hint":
            part = self.partitions[message.partition]
            if part.held and self.table.leases[part.number].unresolved:
                self._placing.recall(part, now)
                if part.bump():
                    self._placing.reconsider(part)

    patch.swap(Joined, "_heard", bump)


@found_by(85)
def cuts_are_made_anew_when_a_lease_comes_back(patch: Changes) -> None:
    grant = Placing._grant

    def without_cuts(self: Placing, part: Partition, now: float) -> None:
        part.cuts = []
        grant(self, part, now)

    patch.swap(Placing, "_grant", without_cuts)


@found_by(1, 2)
def a_lost_connection_acknowledges(patch: Changes) -> None:
    def take(lease: Any, batch: Any, flight: Any, reason: str, *, now: float, chance: float) -> None:
        outcome = broker_link._written(flight)[0]._replace(index=lease.index)
        produce_response.settle(lease, batch, flight, outcome, now=now, chance=chance)

    patch.swap(partitions, "unanswered", take)


@found_by(17, 40)
def one_acknowledgement_is_enough(patch: Changes) -> None:
    begin = broker_link.LinkRules.__init__

    def loosely(self: Any, **given: Any) -> None:
        begin(self, **{**given, "acks": 1})

    patch.swap(broker_link.LinkRules, "__init__", loosely)


@found_by(2, 6)
def what_expires_was_never_sent(patch: Changes) -> None:
    split = delivery_timeout.split

    def never(part: Any, end: int, sent_to: int) -> Expired:
        maybe, unsent = split(part, end, sent_to)
        return Expired((maybe[0], maybe[0]), (maybe[0], unsent[1]))

    patch.swap(delivery_timeout, "split", never)


@found_by(6, 8)
def what_expires_keeps_its_stamps(patch: Changes) -> None:
    patch.swap(Partition, "skip", lambda self, spans: None)


@found_by(23)
def five_may_be_under_way_before_one_has_proven(patch: Changes) -> None:
    enter = Lease.enter

    def never_careful(self: Lease, mode: Mode) -> None:
        enter(self, Mode.RUNNING if mode is Mode.CAREFUL and self.mode is Mode.RUNNING else mode)

    patch.swap(Lease, "enter", never_careful)


@found_by(0, 1)
def requests_that_landed_keep_their_buffers(patch: Changes) -> None:
    patch.swap(PartitionQueue, "landed", lambda self, batch: None)


@found_by(1, 9)
def what_lies_behind_an_epoch_is_taken_for_lost(patch: Changes) -> None:
    ask = Lease.ask

    def alarm(self: Lease, question: Question) -> None:
        if question is Question.LENGTH:
            self.halt(-1, "acknowledged records are gone")
        else:
            ask(self, question)

    patch.swap(Lease, "ask", alarm)
