"""The coordinator's state of one transactional id, and how requests change it (KIP-98, KIP-360, KIP-588, KIP-890).

Everything here is a rule: a state and a question give an error or the next state. Writing states down, copying them and
acting on them is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from ..log.error_codes import ErrorCode

NO_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32_766
"""An epoch from here on is used up: what follows is a new producer id. 32,767 is kept for the coordinator's own fencing."""

Key = tuple[str, int]
"""Topic name and partition."""


class TransactionState(Enum):
    """By the names that DescribeTransactions tells."""

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
    """A producer id and an epoch of it."""

    producer_id: int
    epoch: int


class TransactionMetadata(NamedTuple):
    """What is known of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    """Time of day."""

    previous_id: int = NO_ID
    """The producer id before this one, after the epochs of that one were used up."""

    last_epoch: int = NO_EPOCH
    """The epoch before this one, if the producer asked for the change: it may ask again."""

    next_id: int = NO_ID
    """The producer id that begins when the transaction that is being ended is complete (version 2)."""

    partitions: frozenset[Key] = frozenset()
    started_ms: int = -1
    """Time of day of the first partition, or -1."""

    version: int = 1
    """Of the protocol that ends the transaction: with 2 each end takes an epoch."""

    @property
    def epoch_exhausted(self) -> bool:
        """Whether no epoch is left to be given."""
        return self.epoch >= LAST_EPOCH

    @property
    def owner(self) -> TransactionOwner:
        """Who may go on."""
        return TransactionOwner(self.producer_id, self.epoch)

    @property
    def next_owner(self) -> TransactionOwner:
        """Who may go on when the transaction that is being ended is complete."""
        return self.owner if self.next_id == NO_ID else TransactionOwner(self.next_id, 0)


TransitionResult = TransactionMetadata | ErrorCode
"""The next state, or why there is none; NONE: what was asked for is so already."""

NewId = Callable[[], int | None]


class FencingAbort(NamedTuple):
    """An open transaction that must be aborted first, with an epoch that its producer does not have; then ask again."""

    next: TransactionMetadata


def new_transaction(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """A transactional id that nobody used before: its first InitProducerId makes the epoch 0."""
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
    """InitProducerId; `expected` is what the producer thinks it is (KIP-360). `remembers` as with `prepare_fence`."""
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
    # The same question again, after its answer was lost.
    return fresh if expected.epoch == known.last_epoch else ErrorCode.PRODUCER_FENCED


def _is_valid_producer(known: TransactionMetadata, expected: TransactionOwner) -> bool:
    """Whether a producer may be the one that is known: its epoch is looked at later."""
    renumbered = expected.producer_id == known.previous_id and expected.epoch >= LAST_EPOCH
    return known.epoch == NO_EPOCH or expected.producer_id == known.producer_id or renumbered


def prepare_fence(
    known: TransactionMetadata, new_id: NewId, now_ms: int, *, remembers: bool = True
) -> TransactionMetadata | None:
    """The coordinator's own end of an open transaction, for a successor or after its time-out; None: no new id can be had.

    Brokers from 4.0 on remember the epoch: its producer may then ask for the next one by naming it, and gets the fencing one;
    and if the fencing one is the last, they go over to a new producer id at once.
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
    """AddPartitionsToTxn, or what stands for it in a Produce or TxnOffsetCommit request of version 2."""
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
    """Whether a partition is in the producer's open transaction (version 1, which adds partitions beforehand)."""
    error = _check_owner(known, who)
    if error is not ErrorCode.NONE:
        return error
    if known.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    there = known.state is TransactionState.ONGOING and partition in known.partitions
    return ErrorCode.NONE if there else ErrorCode.TRANSACTION_ABORTABLE


def prepare_end(known: TransactionMetadata, who: TransactionOwner, *, commit: bool, now_ms: int) -> TransitionResult:
    """EndTxn of version 1: identity and epoch stay."""
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
    """EndTxn of version 2: the next transaction has the next epoch, or a new id; NONE tells that `known` is the answer again."""
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
    """All markers are written."""
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
