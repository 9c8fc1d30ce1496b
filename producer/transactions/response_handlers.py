"""Applies responses to the transaction manager's state, using the reaction table."""

from collections.abc import Mapping
from typing import Final, NamedTuple, assert_never

from ..protocol.backoff import Backoff
from ..protocol.error_codes import NETWORK_EXCEPTION, UNSUPPORTED_VERSION, error_name
from .commit_outcome import CommitOutcome, commit_outcome_of
from .manager_state import TransactionContext
from .operations import PartitionsAdded
from .request_queue import QueuedTransactionRequest, RequestPriority
from .requests import (
    NO_IDENTITY,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    DescribeTransaction,
    DescribeTransactionResult,
    EndTxn,
    ErrorCodeResult,
    FindCoordinator,
    FindCoordinatorResult,
    InitProducerId,
    PartitionErrorsResult,
    PartitionKey,
    ProducerIdAndEpoch,
    ProducerIdResult,
    TransactionRequest,
    TransactionResponse,
    api_of,
)
from .states import (
    CONCURRENT_TRANSACTIONS,
    FailureKind,
    Reaction,
    TransactionApi,
    TransactionFailure,
    failure_of,
    reaction_to,
)

TRANSACTION_ABORTABLE: Final = 120
GROUP_AUTHORIZATION_FAILED: Final = 30
INVALID_TXN_STATE: Final = 48
OPERATION_NOT_ATTEMPTED: Final = 55
_BY_SEVERITY: Final = (
    Reaction.FENCED,
    Reaction.FATAL,
    Reaction.UNKNOWN_PRODUCER_ID,
    Reaction.COMMIT_FAILED,
    Reaction.ABORTABLE,
    Reaction.LOOK_UP,
    Reaction.RETRY,
    Reaction.SUCCESS,
)
"""Order of precedence when the partitions of one request have different reactions."""


class _ResponseContext(NamedTuple):
    """A response's context: the request it answers, and when it arrived."""

    context: TransactionContext
    queued: QueuedTransactionRequest
    now: float
    chance: float


def apply_response(
    course: TransactionContext,
    queued: QueuedTransactionRequest,
    answer: TransactionResponse,
    *,
    now: float,
    chance: float,
) -> None:
    """Apply the response to the request in flight. A response that does not fit its request is fatal, because it cannot
    be trusted (TXS-6)."""
    landed = _ResponseContext(course, queued, now, chance)
    match queued.request, answer:
        case ask, ErrorCodeResult(code=code) if code != 0 or isinstance(ask, AddOffsets):
            _apply_error_code(landed, code)
        case FindCoordinator() as ask, FindCoordinatorResult(code=0, coordinator=coordinator) if (
            coordinator is not None
        ):
            course.coordinators[ask.kind, ask.key] = coordinator
        case FindCoordinator(), FindCoordinatorResult(code=code, message=said) if code != 0:
            _apply_error_code(landed, code, said=said)
        case InitProducerId(), ProducerIdResult(code=0, identity=identity) if identity.producer_id >= 0:
            course.initialised(identity)
        case InitProducerId(), ProducerIdResult(code=code) if code != 0:
            _apply_error_code(landed, code)
        case ((AddPartitions() | CommitOffsets() as ask), PartitionErrorsResult(codes=codes)):
            _apply_partition_errors(landed, ask, codes)
        case EndTxn() as ask, ProducerIdResult(code=code, identity=identity):
            if code == 0:
                _transaction_ended(course, ask, identity, now)
            else:
                _end_failed(landed, ask, code)
        case DescribeTransaction(), DescribeTransactionResult():
            _described(landed, answer)
        case ask, _:
            _mismatched(course, ask)


def apply_unsupported_version(course: TransactionContext, queued: QueuedTransactionRequest, text: str) -> None:
    """Handle a broker that supports none of the request versions that we may send."""
    if isinstance(queued.request, EndTxn) and queued.attempts and queued.request.commit:
        course.end_failure = _unsupported(text)
        course.enqueue(DescribeTransaction(course.limits.transactional_id))
        return
    if isinstance(queued.request, EndTxn):
        course.end_sent = False
    course.abandon(queued, _unsupported(text))
    course.fail(_unsupported(text))


def apply_lost(course: TransactionContext, queued: QueuedTransactionRequest, *, now: float, chance: float) -> None:
    """Send the request again, after looking up the coordinator: the broker may no longer be the coordinator."""
    course.forget_coordinator(queued.request)
    course.reenqueue(queued, course.limits.retry.wait_s(queued.attempts, chance), now)


def _unsupported(text: str) -> TransactionFailure:
    return TransactionFailure(UNSUPPORTED_VERSION, error_name(UNSUPPORTED_VERSION), text, FailureKind.FATAL)


def _mismatched(course: TransactionContext, ask: TransactionRequest) -> None:
    text = f"the answer to {api_of(ask).value} makes no sense"
    course.fail(TransactionFailure(-1, "", text, FailureKind.FATAL))


def _retry(case: _ResponseContext, code: int) -> None:
    course, queued = case.context, case.queued
    wait_s = course.limits.retry.wait_s(queued.attempts, case.chance)
    if code == CONCURRENT_TRANSACTIONS and _first_of_transaction(course, queued.request):
        shortly = Backoff(course.limits.concurrent_wait_s, course.limits.retry.max_s)
        wait_s = min(wait_s, shortly.wait_s(queued.attempts, case.chance))
    course.reenqueue(queued, wait_s, case.now)


def _first_of_transaction(course: TransactionContext, ask: TransactionRequest) -> bool:
    """Whether the transaction is empty. The request then waits for the last one's markers, which take a moment."""
    if isinstance(ask, AddPartitions | AddOffsets | CommitOffsets):
        return not course.partitions.has_partitions
    return isinstance(ask, InitProducerId)


def _subject(ask: TransactionRequest) -> str:
    match ask:
        case FindCoordinator(key=key):
            return key
        case AddOffsets(group=group):
            return f"group {group}"
        case CommitOffsets(group=group):
            return f"group {group.group}"
        case _:
            return ask.transactional_id


def _apply_error_code(case: _ResponseContext, code: int, *, said: str | None = None) -> None:
    """Apply one error code to the whole request."""
    match case.queued.request:
        case AddPartitions(partitions=parts) as ask:
            _apply_partition_errors(case, ask, dict.fromkeys(parts, code))
        case CommitOffsets(offsets=offsets) as ask:
            _apply_partition_errors(case, ask, dict.fromkeys((part for part, _ in offsets), code))
        case EndTxn() as ask:
            _end_failed(case, ask, code)
        case DescribeTransaction():
            _described(case, DescribeTransactionResult(code))
        case ask:
            _apply_reaction(case, code, about=_subject(ask), said=said)


def _apply_reaction(case: _ResponseContext, code: int, *, about: str, said: str | None = None) -> None:
    course, queued = case.context, case.queued
    request = api_of(queued.request)
    reaction = reaction_to(request, code)
    match reaction:
        case Reaction.SUCCESS:
            _succeeded(course, queued)
        case Reaction.RETRY:
            _retry(case, code)
        case Reaction.LOOK_UP:
            course.forget_coordinator(queued.request)
            _retry(case, code)
        case (
            Reaction.ABORTABLE
            | Reaction.COMMIT_FAILED
            | Reaction.UNKNOWN_PRODUCER_ID
            | Reaction.UNAUTHORIZED
            | Reaction.FENCED
            | Reaction.FATAL
            | Reaction.OUTCOME_UNKNOWN
        ):
            failure = failure_of(request, code, about=about, said=said)
            # The producer id was forgotten, or no epoch was assigned: the next transaction begins with InitProducerId.
            course.epoch_bump_required = (
                course.epoch_bump_required
                or reaction is Reaction.UNKNOWN_PRODUCER_ID
                or isinstance(queued.request, InitProducerId)
            )
            # Only this attempt certainly had no effect: an earlier one may have, with its response lost.
            queued.sent = queued.attempts > 0
            course.abandon(queued, failure)
            course.fail(failure)
        case _:
            assert_never(reaction)


def _succeeded(course: TransactionContext, queued: QueuedTransactionRequest) -> None:
    match queued.request:
        case AddPartitions(partitions=partitions):
            course.partitions.add(partitions)
            course.events.append(PartitionsAdded(partitions))
        case AddOffsets():
            course.partitions.has_offsets = True
            _send_offsets(course, queued)
        case CommitOffsets():
            if queued.operation is not None and not queued.operation.done:
                course.finish(queued.operation)
        case _:
            _mismatched(course, queued.request)


def _send_offsets(course: TransactionContext, queued: QueuedTransactionRequest) -> None:
    """Queue the offsets, now that the group's offsets partition is part of the transaction."""
    operation = queued.operation
    if operation is not None and not operation.done and operation.offsets is not None:
        assert course.identity is not None
        group, offsets = operation.offsets
        course.enqueue(
            CommitOffsets(course.limits.transactional_id, course.identity, group, offsets, course.version), operation
        )


def _apply_partition_errors(
    case: _ResponseContext, ask: AddPartitions | CommitOffsets, codes: Mapping[PartitionKey, int]
) -> None:
    request = api_of(ask)
    parts = ask.partitions if isinstance(ask, AddPartitions) else tuple(part for part, _ in ask.offsets)
    # A partition missing from the response is requested again.
    told = {part: codes.get(part, NETWORK_EXCEPTION) for part in parts}
    code = min(
        told.values(), key=lambda one: (_BY_SEVERITY.index(reaction_to(request, one)), one == OPERATION_NOT_ATTEMPTED)
    )
    if isinstance(ask, CommitOffsets):
        left = tuple((part, offset) for part, offset in ask.offsets if told[part] != 0)
        case.queued.request = ask._replace(offsets=left or ask.offsets)
    topics = sorted({topic for (topic, _), one in told.items() if one == code})
    about = _subject(ask) if code == GROUP_AUTHORIZATION_FAILED else f"{_subject(ask)}, topics {', '.join(topics)}"
    _apply_reaction(case, code, about=about)


def _transaction_ended(course: TransactionContext, ask: EndTxn, identity: ProducerIdAndEpoch, now: float) -> None:
    following = NO_IDENTITY if ask.version == 1 else identity
    # EndTxn in version 2 returned no identity for the next transaction: InitProducerId must request it.
    course.epoch_bump_required = course.epoch_bump_required or (ask.version != 1 and identity == NO_IDENTITY)
    course.ended(following, committed=ask.commit, now=now)


def _end_failed(case: _ResponseContext, ask: EndTxn, code: int) -> None:
    course = case.context
    reaction = reaction_to(TransactionApi.END, code)
    if reaction in (Reaction.RETRY, Reaction.LOOK_UP):
        _apply_reaction(case, code, about=_subject(ask))
        return
    failure = failure_of(TransactionApi.END, code, about=_subject(ask))
    if ask.commit and case.queued.attempts:
        # An earlier EndTxn may have succeeded; the coordinator would then answer every repetition with this error.
        course.end_failure = failure
        course.enqueue(DescribeTransaction(ask.transactional_id))
        return
    course.end_sent = False
    course.epoch_bump_required = course.epoch_bump_required or reaction is Reaction.UNKNOWN_PRODUCER_ID
    if not ask.commit and (reaction is Reaction.UNKNOWN_PRODUCER_ID or _nothing_added(course, code)):
        course.ended(NO_IDENTITY, committed=False, now=case.now)
    elif not ask.commit and code == TRANSACTION_ABORTABLE:
        # Aborting is the only remedy, and the abort itself was refused (KAFKA-19250).
        course.fail(failure._replace(kind=FailureKind.FATAL))
    else:
        course.fail(failure)


def _nothing_added(course: TransactionContext, code: int) -> bool:
    """Whether there is nothing to end: unanswered additions were not applied either."""
    return code == INVALID_TXN_STATE and course.partitions.empty


def _described(case: _ResponseContext, answer: DescribeTransactionResult) -> None:
    """Decide how a commit ended whose response was lost."""
    course = case.context
    cause = course.end_failure
    identity = course.identity
    assert cause is not None
    assert identity is not None
    if reaction_to(TransactionApi.DESCRIBE, answer.code) in (Reaction.RETRY, Reaction.LOOK_UP):
        _apply_reaction(case, answer.code, about="")
        return
    outcome = CommitOutcome.UNKNOWN if answer.code != 0 else commit_outcome_of(answer, identity, course.version)
    match outcome:
        case CommitOutcome.COMMITTED:
            # InitProducerId will show whether another producer has taken over since.
            course.epoch_bump_required = True
            course.ended(NO_IDENTITY, committed=True, now=case.now)
        case CommitOutcome.ABORTED:
            course.end_sent = False
            course.epoch_bump_required = True
            course.partitions.forget()
            text = f"the transaction was aborted by its coordinator ({answer.state}): {cause.text}"
            course.fail(TransactionFailure(cause.code, cause.name, text, FailureKind.ABORTED))
        case CommitOutcome.OPEN:
            again = EndTxn(course.limits.transactional_id, identity, commit=True, version=course.version)
            repeated = QueuedTransactionRequest(again, RequestPriority.END_TXN)
            course.reenqueue(repeated, course.limits.retry.wait_s(case.queued.attempts, case.chance), case.now)
        case CommitOutcome.UNKNOWN:
            course.fail(cause if cause.fatal else cause._replace(kind=FailureKind.FATAL))
        case _:
            assert_never(outcome)
