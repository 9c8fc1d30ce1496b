"""Faults planted in what the direct producer does with transactions, with seeds whose runs find them."""

from collections.abc import Callable
from typing import Any

from penstock.producer.transactions.manager import TransactionManager
from penstock.producer.transactions.requests import EndTxn

from tests.harness.broker_mutants import Changes, Mutant

MUTANTS: dict[str, tuple[tuple[int, ...], Mutant]] = {}


def found_by(*seeds: int) -> Callable[[Mutant], Mutant]:
    def keep(plant: Mutant) -> Mutant:
        MUTANTS[plant.__name__] = (seeds, plant)
        return plant

    return keep


@found_by(1, 5)
def a_commit_does_not_wait_for_its_records(patch: Changes) -> None:
    commit = TransactionManager.commit

    def at_once(self: TransactionManager) -> Any:
        operation = commit(self)
        self.batches_completed({})
        return operation

    patch.swap(TransactionManager, "commit", at_once)


@found_by(0, 1)
def a_failed_batch_is_no_reason_to_abort(patch: Changes) -> None:
    patch.swap(TransactionManager, "batch_failed", lambda *_, **__: None)


@found_by(3)
def an_abort_is_asked_for_as_a_commit(patch: Changes) -> None:
    send = TransactionManager._send

    def turned(self: TransactionManager, queued: Any) -> Any:
        ask = send(self, queued)
        return ask._replace(commit=True) if isinstance(ask, EndTxn) else ask

    patch.swap(TransactionManager, "_send", turned)
