"""The coordinator's state of one transactional id, and its transitions (KIP-98, KIP-360, KIP-588, KIP-890).

The functions are pure: they take a state and a request and return an error or the next state. Other modules store and
replicate states and act on them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from ..log.error_codes import ErrorCode

NO_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32_766
"""At this epoch a producer id is exhausted; a new id follows. 32,767 is reserved for the coordinator's fencing."""

Key = tuple[str, int]
"""Topic name and partition."""


class TransactionState(Enum):
    """States, with the names that DescribeTransactions reports."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
OUTCOME: Final = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
    TransactionState.COMPLETE_ABORT: False,
}


class TransactionOwner(NamedTuple):
    """A producer id and epoch."""

    producer_id: int
    epoch: int


class TransactionMetadata(NamedTuple):
    """The coordinator's state of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    """Time of day of the last change."""

    previous_id: int = NO_ID
    """The producer id before this one, whose epochs were exhausted."""

    last_epoch: int = NO_EPOCH
    """The epoch before this one, if the producer requested the bump: it may retry with it."""

    next_id: int = NO_ID
    """The producer id to use once the ending transaction is complete (version 2)."""

    partitions: frozenset[Key] = frozenset()
    started_ms: int = -1
    """Time of day of the first partition, or -1."""

    version: int = 1
    """Version of the protocol that ends the transaction: with 2 each end bumps the epoch."""

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the producer id has no epoch left."""
        return self.epoch >= LAST_EPOCH

    @property
    def owner(self) -> TransactionOwner:
        """The producer id and epoch that may continue."""
        return TransactionOwner(self.producer_id, self.epoch)

    @property
    def next_owner(self) -> TransactionOwner:
        """The producer id and epoch that may continue once the ending transaction is complete."""
        return self.owner if self.next_id == NO_ID else TransactionOwner(self.next_id, 0)


TransitionResult = TransactionMetadata | ErrorCode
"""The next state, or an error; NONE: the request is already fulfilled."""

NewId = Callable[[], int | None]


class FencingAbort(NamedTuple):
    """An open transaction must be aborted first, with a fencing epoch; the producer then retries."""

    next: TransactionMetadata


def new_transaction(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """Return the state of an unused transactional id; its first InitProducerId sets the epoch to 0."""
    return TransactionMetadata(transactional_id, producer_id, NO_EPOCH, timeout_ms, TransactionState.EMPTY, now_ms)


def prepare_init_producer_id(
    known: TransactionMetadata,
    expected: TransactionOwner | None,
    timeout_ms: int,
    new_id: NewId,
    now_ms: int,
    *,
    remembers: bool = True,
) -> TransitionResult | FencingAbort:
    """Apply InitProducerId; `expected` is the producer's own identity (KIP-360). `remembers`: see `prepare_fence`."""
    if expected is not None and not _is_valid_producer(known, expected):
        return ErrorCode.PRODUCER_FENCED
    if known.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if known.state is TransactionState.ONGOING:
        aborting = prepare_fence(known, new_id, now_ms, remembers=remembers)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if aborting is None else FencingAbort(aborting)
    fresh = known._replace(
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        started_ms=-1,
        partitions=frozenset(),
        next_id=NO_ID,
    )
    if known.epoch_exhausted and (expected is None or expected.epoch == known.epoch):
        producer_id = new_id()
        if producer_id is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        last = NO_EPOCH if expected is None else known.epoch
        return fresh._replace(producer_id=producer_id, epoch=0, previous_id=known.producer_id, last_epoch=last)
    if expected is None:
        return fresh._replace(epoch=known.epoch + 1, last_epoch=NO_EPOCH)
    if known.epoch in {NO_EPOCH, expected.epoch}:
        return fresh._replace(epoch=known.epoch + 1, last_epoch=known.epoch)
    # A retry after the response was lost.
    return fresh if expected.epoch == known.last_epoch else ErrorCode.PRODUCER_FENCED


def _is_valid_producer(known: TransactionMetadata, expected: TransactionOwner) -> bool:
    """Return whether the producer id fits the known one; the caller checks the epoch later."""
    renumbered = expected.producer_id == known.previous_id and expected.epoch >= LAST_EPOCH
    return known.epoch == NO_EPOCH or expected.producer_id == known.producer_id or renumbered


def prepare_fence(
    known: TransactionMetadata, new_id: NewId, now_ms: int, *, remembers: bool = True
) -> TransactionMetadata | None:
    """Abort an open transaction with a fencing epoch, for a successor or after its timeout.

    Return None if a new producer id is needed and none is left. Brokers from 4.0 on (`remembers`) keep the old epoch:
    its producer may name it to request the next epoch, and gets the fencing one. If the fencing epoch is the last, they
    switch to a new producer id at once.
    """
    last = known.epoch if remembers else NO_EPOCH
    next_id = new_id() if remembers and known.epoch_exhausted else NO_ID
    if next_id is None:
        return None
    return known._replace(
        state=TransactionState.PREPARE_ABORT, epoch=known.epoch + 1, last_epoch=last, next_id=next_id, updated_ms=now_ms
    )


def _check_owner(known: TransactionMetadata, who: TransactionOwner) -> ErrorCode:
    if known.producer_id != who.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.NONE if known.epoch == who.epoch else ErrorCode.PRODUCER_FENCED


def prepare_add_partitions(
    known: TransactionMetadata, who: TransactionOwner, partitions: frozenset[Key], version: int, now_ms: int
) -> TransitionResult:
    """Apply AddPartitionsToTxn, or its implicit form in a Produce or TxnOffsetCommit request of version 2."""
    error = _check_owner(known, who)
    if error is not ErrorCode.NONE:
        return error
    if known.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if known.state is TransactionState.ONGOING:
        if partitions <= known.partitions:
            return ErrorCode.NONE
        return known._replace(partitions=known.partitions | partitions, version=version, updated_ms=now_ms)
    return known._replace(
        state=TransactionState.ONGOING,
        partitions=partitions,
        started_ms=now_ms,
        updated_ms=now_ms,
        version=version,
        next_id=NO_ID,
    )


def verify_partition(known: TransactionMetadata, who: TransactionOwner, partition: Key) -> ErrorCode:
    """Check that a partition is in the producer's open transaction (version 1 adds partitions beforehand)."""
    error = _check_owner(known, who)
    if error is not ErrorCode.NONE:
        return error
    if known.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    there = known.state is TransactionState.ONGOING and partition in known.partitions
    return ErrorCode.NONE if there else ErrorCode.TRANSACTION_ABORTABLE


def prepare_end(known: TransactionMetadata, who: TransactionOwner, *, commit: bool, now_ms: int) -> TransitionResult:
    """Apply EndTxn of version 1: producer id and epoch stay."""
    error = _check_owner(known, who)
    if error is not ErrorCode.NONE:
        return error
    if known.state is TransactionState.ONGOING:
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return known._replace(state=state, updated_ms=now_ms, version=1)
    return _check_already_ended(known, commit=commit)


def _check_already_ended(known: TransactionMetadata, *, commit: bool) -> ErrorCode:
    if OUTCOME.get(known.state) is not commit:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if known.state in PREPARED else ErrorCode.NONE


def prepare_end_with_epoch_bump(
    known: TransactionMetadata, who: TransactionOwner, *, commit: bool, new_id: NewId, now_ms: int
) -> TransitionResult:
    """Apply EndTxn of version 2: bump the epoch or switch to a new id; NONE: a retry, `known` is the result."""
    renumbered = known.previous_id == who.producer_id and who.epoch == LAST_EPOCH and known.epoch == 0
    if known.producer_id != who.producer_id and not renumbered:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    again = known.epoch == who.epoch + 1 or renumbered
    current = known.epoch == who.epoch
    if known.state in PREPARED:
        return _check_already_ended(known, commit=commit) if again else ErrorCode.PRODUCER_FENCED
    if known.state in COMPLETE and again:
        return _check_already_ended(known, commit=commit)
    if not current:
        return ErrorCode.PRODUCER_FENCED
    if known.state is not TransactionState.ONGOING and commit:
        return ErrorCode.INVALID_TXN_STATE
    next_id = new_id() if known.epoch_exhausted else NO_ID
    if next_id is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return known._replace(
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        epoch=known.epoch + 1,
        last_epoch=known.epoch,
        next_id=next_id,
        version=2,
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
    )


def prepare_complete(known: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Return the state after all markers are written."""
    done = known._replace(
        state=TransactionState.COMPLETE_COMMIT
        if known.state is TransactionState.PREPARE_COMMIT
        else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
        next_id=NO_ID,
    )
    if known.next_id == NO_ID:
        return done
    return done._replace(producer_id=known.next_id, epoch=0, previous_id=known.producer_id)
