"""The direct producer's transaction methods for applications.

When a call times out, its operation continues, and only the same call may follow: it waits for the same operation
(TXN-3). The rules are in the transaction manager (`producer/transactions/manager.py`).
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol, TypeVar, cast

from ...api.errors import (
    ClosedError,
    CommittedNotVisibleError,
    CommitTimeoutError,
    PenstockError,
    TransactionStateError,
    WaitTimeoutError,
)
from ...runtime.clock import monotonic
from ..transactions.operations import TransactionOperation, TransactionOperationKind
from ..transactions.requests import GroupMetadata, OffsetToCommit, PartitionKey
from ..transactions.states import FailedTransactionError
from .completion import TRANSACTION_OVER
from .errors import error_of_transaction
from .front import Front
from .sender_thread import SenderThread
from .transactions_thread import PendingOperation, Transactions

AnswerT = TypeVar("AnswerT")

_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_TEXT_BYTES_MAX: Final = (1 << 15) - 1
"""Limit for a string in Kafka's older requests."""
_COMMAND_TIMEOUT_MIN_S: Final = 0.5
"""Least time for the sender thread to accept a call, and time to ask it for the reason after a timeout."""
_COMMITTED: Final = "the transaction is committed"
_METRIC_NAMES: Final = {
    TransactionOperationKind.INITIALISE: "init",
    TransactionOperationKind.SEND_OFFSETS: "send-offsets",
    TransactionOperationKind.COMMIT: "commit",
    TransactionOperationKind.ABORT: "abort",
}
"""The names of the calls in the metrics of their durations."""


class ConsumerGroup(Protocol):
    """A consumer's membership in its group, such as kafka-python's `ConsumerGroupMetadata`."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


class TopicPartition(Protocol):
    """A topic and a partition number, as an object with these attributes; a pair is accepted too."""

    topic: str
    partition: int


Offsets = Mapping[tuple[str, int] | TopicPartition, int | tuple[object, ...]]
"""The next offset to read of each partition: a number, or (offset, leader epoch or None, metadata or None)."""


class TransactionsApi:
    """A mix-in for `DirectProducer`, whose front and sender thread it uses."""

    _front: Front

    @property
    def _sender(self) -> SenderThread:
        thread = self._front.sender
        assert isinstance(thread, SenderThread), "transactions want the real sender thread"
        return thread

    def _forbid_callback(self, name: str) -> None:
        """
        Raises:
            RuntimeError: called by a callback.
        """
        if self._front.sender.is_current:
            raise RuntimeError(f"{name} inside a delivery callback of this producer would deadlock")

    # --- calls -------------------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float | None = None) -> None:
        """Take over the transactional id, once: fence earlier producers with it, and abort their open transaction.

        Waits at most `timeout` seconds, `max.block.ms` by default, like all these calls.

        Raises:
            WaitTimeoutError: not in time; the operation continues: call it again.
            InitTransactionsRefusedError: no right to write under the id; may be called again.
            TransactionStateError: it was called before, or there is no `transactional.id`.
            ClosedError: the producer is closed or has failed.
        """
        self._run_operation(TransactionOperationKind.INITIALISE, Transactions.initialise, timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction: all records sent from now on belong to it.

        Raises:
            TransactionStateError: one is open, or `init_transactions` was not called.
            ClosedError: the producer is closed or has failed; its subclass ProducerFencedError: it was fenced.
        """
        with self._front.meters.time_transaction_call("begin"):
            self._call_sender("begin_transaction", Transactions.begin, self._front.settings.max_block_ms / 1000)

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: str | ConsumerGroup, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction: the next offset to read of each partition.

        `group_metadata`: the group's id, or an object with `group_id`, `generation_id`, `member_id` and
        `group_instance_id`, which lets brokers reject a replaced member (KIP-447). Without offsets it does nothing.

        Raises:
            ValueError, TypeError: the offsets or the group are not valid.
            CommitFailedError: the group has rebalanced; the transaction can only be aborted.
            TransactionAbortableError: the transaction can only be aborted, for another reason.
            WaitTimeoutError: not in time; the operation continues: call it again.
            TransactionStateError: no transaction is open.
            ClosedError: the producer is closed or has failed; its subclass ProducerFencedError: it was fenced.
        """
        group = group_of(group_metadata)
        parts = {part_of(place): offset_of(offset) for place, offset in offsets.items()}
        if group.generation > 0 and not group.member_id:
            raise ValueError(f"generation {group.generation} of group {group.group} without a member id")
        self._run_operation(TransactionOperationKind.SEND_OFFSETS, lambda one: one.send_offsets(parts, group), timeout)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send the buffered records, and commit the transaction. When it returns, readers of committed records see it.

        Raises:
            TransactionAbortableError: the transaction failed; call `abort_transaction`.
            CommittedNotVisibleError: it is committed, but was not visible to readers in time.
            CommitTimeoutError: not in time; the operation continues: call it again.
            TransactionStateError: no transaction is open.
            ClosedError: the producer is closed or has failed; or a subclass: ProducerFencedError, CommitUnknownError.
        """
        self._run_operation(TransactionOperationKind.COMMIT, lambda one: one.complete(commit=True), timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction: readers of committed records never see any of it. Records not yet sent fail with
        TransactionAbortedError; the outcomes of the others are awaited.

        Raises:
            WaitTimeoutError: not in time; the operation continues: call it again.
            TransactionStateError: no transaction is open.
            ClosedError: the producer is closed or has failed; its subclass ProducerFencedError: it was fenced.
        """
        self._run_operation(TransactionOperationKind.ABORT, lambda one: one.complete(commit=False), timeout)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _prepare_transactions(self) -> None:
        """Reject all records of a new front until a transaction is open, if the producer is transactional."""
        if self._front.settings.transactional_id is None:
            return
        self._front.set_append_error(
            TransactionStateError("records can be sent only in a transaction: init_transactions comes first")
        )
        front, thread = self._front, self._sender

        def dooms(error: PenstockError) -> None:
            if front.appender.refusal is None and getattr(error, "code", "") != TRANSACTION_OVER:
                thread.mark_abortable(error)

        front.completion.on_send_error = dooms

    def _call_sender(self, name: str, question: Callable[[Transactions], AnswerT], timeout_s: float) -> AnswerT:
        self._forbid_callback(name)
        if self._front.settings.transactional_id is None:
            raise TransactionStateError(f"{name}: the producer has no transactional.id")
        self._front.metadata.ensure_started()
        try:
            return self._sender.call_transactions(
                question, min(max(timeout_s, _COMMAND_TIMEOUT_MIN_S), threading.TIMEOUT_MAX)
            )
        except FailedTransactionError as failed:
            raise error_of_transaction(failed.failure) from None
        except ClosedError as closed:
            raise (self._front.closed_error or closed) from None

    def _run_operation(
        self, kind: TransactionOperationKind, begin: Callable[[Transactions], PendingOperation], timeout: float | None
    ) -> None:
        limit = self._front.settings.max_block_ms / 1000 if timeout is None else timeout
        with self._front.meters.time_transaction_call(_METRIC_NAMES[kind]):
            began = monotonic()
            try:
                waiting = self._call_sender(kind.value, begin, limit)
            except WaitTimeoutError as late:
                raise CommitTimeoutError(str(late)) if kind is TransactionOperationKind.COMMIT else late from None
            left = max(0.0, began + limit - monotonic())
            _ = waiting.ended.wait(min(left, threading.TIMEOUT_MAX))
        operation = waiting.operation
        if _has_ended(operation):
            return
        if self._front.closed_error is not None and waiting.ended.is_set():
            raise self._front.closed_error.with_traceback(None)
        if operation.committed:
            operation.acknowledge()
            raise CommittedNotVisibleError(f"{_COMMITTED}, but not all of it can be read within {limit:g} s")
        problem = ""
        with suppress(WaitTimeoutError, ClosedError):
            problem = self._call_sender(kind.value, Transactions.problem, _COMMAND_TIMEOUT_MIN_S)
        if _has_ended(operation):
            return
        because = f" ({problem})" if problem else ""
        again = f"{kind.value} took longer than {limit:g} s{because}; it is still running: call it again to wait for it"
        raise CommitTimeoutError(again) if kind is TransactionOperationKind.COMMIT else WaitTimeoutError(again)


def _has_ended(operation: TransactionOperation) -> bool:
    """Whether the operation succeeded; raises its failure. Acknowledges it, because the caller now knows the result."""
    if not operation.done:
        return False
    operation.acknowledge()
    if operation.failure is not None:
        raise _operation_error(operation)
    return True


def _operation_error(operation: TransactionOperation) -> PenstockError:
    """The exception for a failed operation. A committed transaction stays committed, even if the producer fails."""
    assert operation.failure is not None
    if operation.committed:
        return CommittedNotVisibleError(f"{_COMMITTED}, but it was not seen to be readable: {operation.failure.text}")
    return error_of_transaction(operation.failure)


def group_of(given: object) -> GroupMetadata:
    """The consumer group as `send_offsets_to_transaction` takes it.

    Raises:
        TypeError, ValueError: it is neither a group's id nor an object that describes a group.
    """
    if isinstance(given, str):
        if not given:
            raise ValueError("the id of a consumer group is empty")
        return GroupMetadata(_checked_text(given, "the id of a consumer group"))
    if given is None or not isinstance(getattr(given, "group_id", None), str):
        raise TypeError(f"{given!r} is neither the id of a consumer group nor an object with a group_id")
    group = cast("ConsumerGroup", given)
    generation, instance = getattr(group, "generation_id", -1), getattr(group, "group_instance_id", None)
    return GroupMetadata(
        _checked_text(group.group_id, "the id of a consumer group"),
        -1 if generation is None else _checked_number(generation, -(1 << 31), _INT32_MAX, "a generation"),
        _checked_text(getattr(group, "member_id", "") or "", "a member id"),
        None if instance is None else _checked_text(instance, "a group instance id"),
    )


def _checked_text(given: object, what: str) -> str:
    """Check that a request can carry the text: an error on the sender thread would reach no caller."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is text, not {given!r}")
    try:
        size = len(given.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} cannot be encoded as UTF-8: {error}") from None
    if size > _TEXT_BYTES_MAX:
        raise ValueError(f"{what} has {size} bytes; at most {_TEXT_BYTES_MAX} are possible")
    return given


def _checked_number(given: object, least: int, most: int, what: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{what} is a number, not {given!r}")
    if not least <= given <= most:
        raise ValueError(f"{what} is {given}; {least} to {most} are possible")
    return given


def part_of(place: object) -> PartitionKey:
    """Topic and partition number, from a pair or an object.

    Raises:
        TypeError, ValueError: it does not name a partition.
    """
    if isinstance(place, tuple):
        if len(place) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise ValueError(f"{place!r} is no pair of topic and partition")
        topic, index = cast("tuple[object, object]", place)
    else:
        topic, index = getattr(place, "topic", None), getattr(place, "partition", None)
    if not isinstance(topic, str) or not isinstance(index, int) or isinstance(index, bool):
        raise TypeError(f"{place!r} is no topic and partition")
    return _checked_text(topic, "a topic"), _checked_number(index, 0, _INT32_MAX, f"the partition of {topic}")


def offset_of(given: object) -> OffsetToCommit:
    """The offset to commit, from a number, a tuple or an object.

    Raises:
        TypeError, ValueError: it is not an offset.
    """
    offset: object = given
    epoch: object = None
    metadata: object = None
    if isinstance(given, tuple):
        offset, epoch, metadata = (*cast("tuple[object, ...]", given), None, None, None)[:3]
    elif not isinstance(given, int):
        offset = getattr(given, "offset", None)
        epoch, metadata = getattr(given, "leader_epoch", None), getattr(given, "metadata", None)
    if (
        isinstance(offset, bool)
        or not isinstance(offset, int)
        or not isinstance(epoch, int | None)
        or not isinstance(metadata, str | None)
    ):
        raise TypeError(f"{given!r} is no offset: give a number, or (offset, leader epoch, metadata)")
    epoch_told = -1 if epoch is None else _checked_number(epoch, -1, _INT32_MAX, "a leader epoch")
    return OffsetToCommit(
        _checked_number(offset, 0, _INT64_MAX, "an offset"),
        epoch_told,
        _checked_text(metadata or "", "an offset's metadata"),
    )
