"""What answers lead to: the reaction table applied to the request that was answered."""

from collections.abc import Mapping
from typing import Final, NamedTuple, assert_never

from ..protocol.backoff import Backoff
from ..protocol.error_codes import NETWORK_EXCEPTION, UNSUPPORTED_VERSION, error_name
from .commit_outcome import Outcome, judge_outcome
from .manager_state import Course
from .operations import PartitionsAdded
from .request_queue import Queued, Urgency
from .requests import (
    NO_IDENTITY,
    AddOffsets,
    AddPartitions,
    Answer,
    Ask,
    CodeTold,
    CommitOffsets,
    CoordinatorTold,
    DescribeTransaction,
    EndTxn,
    FindCoordinator,
    Identity,
    IdentityTold,
    InitProducerId,
    Part,
    PartsTold,
    TransactionTold,
    request_of,
)
from .states import CONCURRENT_TRANSACTIONS, FailureKind, Reaction, Request, TransactionFailure, failure_of, judge

TRANSACTION_ABORTABLE: Final = 120
GROUP_AUTHORIZATION_FAILED: Final = 30
INVALID_TXN_STATE: Final = 48
OPERATION_NOT_ATTEMPTED: Final = 55
_GRAVEST_FIRST: Final = (
    Reaction.FENCED,
    Reaction.FATAL,
    Reaction.FORGOTTEN,
    Reaction.COMMIT_FAILED,
    Reaction.ABORTABLE,
    Reaction.LOOK_UP,
    Reaction.RETRY,
    Reaction.FINE,
)
"""What counts when partitions of one request were answered differently."""


class _Case(NamedTuple):
    """An answer's circumstances: what was asked, and when the answer came."""

    course: Course
    queued: Queued
    now: float
    chance: float


def settle(course: Course, queued: Queued, answer: Answer, *, now: float, chance: float) -> None:
    """Apply the answer to what was in flight. One that does not fit its request cannot be trusted: fatal (TXS-6)."""
    landed = _Case(course, queued, now, chance)
    match queued.ask, answer:
        case ask, CodeTold(code=code) if code != 0 or isinstance(ask, AddOffsets):
            _one_code(landed, code)
        case FindCoordinator() as ask, CoordinatorTold(code=0, coordinator=coordinator) if coordinator is not None:
            course.coordinators[ask.kind, ask.key] = coordinator
        case FindCoordinator(), CoordinatorTold(code=code, said=said) if code != 0:
            _one_code(landed, code, said=said)
        case InitProducerId(), IdentityTold(code=0, identity=identity) if identity.producer_id >= 0:
            course.initialised(identity)
        case InitProducerId(), IdentityTold(code=code) if code != 0:
            _one_code(landed, code)
        case ((AddPartitions() | CommitOffsets() as ask), PartsTold(codes=codes)):
            _by_part(landed, ask, codes)
        case EndTxn() as ask, IdentityTold(code=code, identity=identity):
            if code == 0:
                _ended(course, ask, identity, now)
            else:
                _end_refused(landed, ask, code)
        case DescribeTransaction(), TransactionTold():
            _described(landed, answer)
        case ask, _:
            _unreadable(course, ask)


def refuse_version(course: Course, queued: Queued, text: str) -> None:
    """The broker offers no version of the request that we may send."""
    if isinstance(queued.ask, EndTxn) and queued.attempts and queued.ask.commit:
        course.end_failure = _unsupported(text)
        course.put(DescribeTransaction(course.limits.transactional_id))
        return
    if isinstance(queued.ask, EndTxn):
        course.end_sent = False
    course.give_up(queued, _unsupported(text))
    course.fail(_unsupported(text))


def lost(course: Course, queued: Queued, *, now: float, chance: float) -> None:
    """No answer: whom we asked may not be the coordinator any more."""
    course.forget_coordinator(queued.ask)
    course.put_back(queued, course.limits.retry.wait_s(queued.attempts, chance), now)


def _unsupported(text: str) -> TransactionFailure:
    return TransactionFailure(UNSUPPORTED_VERSION, error_name(UNSUPPORTED_VERSION), text, FailureKind.FATAL)


def _unreadable(course: Course, ask: Ask) -> None:
    text = f"the answer to {request_of(ask).value} makes no sense"
    course.fail(TransactionFailure(-1, "", text, FailureKind.FATAL))


def _again(case: _Case, code: int) -> None:
    course, queued = case.course, case.queued
    wait_s = course.limits.retry.wait_s(queued.attempts, case.chance)
    if code == CONCURRENT_TRANSACTIONS and _first_of_transaction(course, queued.ask):
        shortly = Backoff(course.limits.concurrent_wait_s, course.limits.retry.max_s)
        wait_s = min(wait_s, shortly.wait_s(queued.attempts, case.chance))
    course.put_back(queued, wait_s, case.now)


def _first_of_transaction(course: Course, ask: Ask) -> bool:
    """Nothing is in the transaction yet: what it waits for are the markers of the last one, which take a moment."""
    if isinstance(ask, AddPartitions | AddOffsets | CommitOffsets):
        return not course.contents.has_partitions
    return isinstance(ask, InitProducerId)


def _about(ask: Ask) -> str:
    match ask:
        case FindCoordinator(key=key):
            return key
        case AddOffsets(group=group):
            return f"group {group}"
        case CommitOffsets(group=group):
            return f"group {group.group}"
        case _:
            return ask.transactional_id


def _one_code(case: _Case, code: int, *, said: str | None = None) -> None:
    """One code for all that was asked."""
    match case.queued.ask:
        case AddPartitions(partitions=parts) as ask:
            _by_part(case, ask, dict.fromkeys(parts, code))
        case CommitOffsets(offsets=offsets) as ask:
            _by_part(case, ask, dict.fromkeys((part for part, _ in offsets), code))
        case EndTxn() as ask:
            _end_refused(case, ask, code)
        case DescribeTransaction():
            _described(case, TransactionTold(code))
        case ask:
            _react(case, code, about=_about(ask), said=said)


def _react(case: _Case, code: int, *, about: str, said: str | None = None) -> None:
    course, queued = case.course, case.queued
    request = request_of(queued.ask)
    reaction = judge(request, code)
    match reaction:
        case Reaction.FINE:
            _fine(course, queued)
        case Reaction.RETRY:
            _again(case, code)
        case Reaction.LOOK_UP:
            course.forget_coordinator(queued.ask)
            _again(case, code)
        case (
            Reaction.ABORTABLE
            | Reaction.COMMIT_FAILED
            | Reaction.FORGOTTEN
            | Reaction.REFUSED
            | Reaction.FENCED
            | Reaction.FATAL
            | Reaction.UNTOLD
        ):
            failure = failure_of(request, code, about=about, said=said)
            # An id that was forgotten, and an epoch that nobody could give: the next transaction begins with InitProducerId.
            course.bump = course.bump or reaction is Reaction.FORGOTTEN or isinstance(queued.ask, InitProducerId)
            # Of earlier attempts we know less: they may have been lost on the way back.
            queued.sent = queued.attempts > 0
            course.give_up(queued, failure)
            course.fail(failure)
        case _:
            assert_never(reaction)


def _fine(course: Course, queued: Queued) -> None:
    match queued.ask:
        case AddPartitions(partitions=partitions):
            course.contents.add(partitions)
            course.events.append(PartitionsAdded(partitions))
        case AddOffsets():
            course.contents.has_offsets = True
            _send_offsets(course, queued)
        case CommitOffsets():
            if queued.operation is not None and not queued.operation.done:
                course.finish(queued.operation)
        case _:
            _unreadable(course, queued.ask)


def _send_offsets(course: Course, queued: Queued) -> None:
    """The group's partition of offsets is part of the transaction: now the offsets themselves."""
    operation = queued.operation
    if operation is not None and not operation.done and operation.offsets is not None:
        assert course.identity is not None
        group, offsets = operation.offsets
        course.put(
            CommitOffsets(course.limits.transactional_id, course.identity, group, offsets, course.version), operation
        )


def _by_part(case: _Case, ask: AddPartitions | CommitOffsets, codes: Mapping[Part, int]) -> None:
    request = request_of(ask)
    parts = ask.partitions if isinstance(ask, AddPartitions) else tuple(part for part, _ in ask.offsets)
    # One that is left out is asked for again.
    told = {part: codes.get(part, NETWORK_EXCEPTION) for part in parts}
    code = min(
        told.values(), key=lambda one: (_GRAVEST_FIRST.index(judge(request, one)), one == OPERATION_NOT_ATTEMPTED)
    )
    if isinstance(ask, CommitOffsets):
        left = tuple((part, offset) for part, offset in ask.offsets if told[part] != 0)
        case.queued.ask = ask._replace(offsets=left or ask.offsets)
    topics = sorted({topic for (topic, _), one in told.items() if one == code})
    about = _about(ask) if code == GROUP_AUTHORIZATION_FAILED else f"{_about(ask)}, topics {', '.join(topics)}"
    _react(case, code, about=about)


def _ended(course: Course, ask: EndTxn, identity: Identity, now: float) -> None:
    following = NO_IDENTITY if ask.version == 1 else identity
    # An end in version 2 without the identity for the next transaction: it has to be asked for.
    course.bump = course.bump or (ask.version != 1 and identity == NO_IDENTITY)
    course.ended(following, committed=ask.commit, now=now)


def _end_refused(case: _Case, ask: EndTxn, code: int) -> None:
    course = case.course
    reaction = judge(Request.END, code)
    if reaction in (Reaction.RETRY, Reaction.LOOK_UP):
        _react(case, code, about=_about(ask))
        return
    failure = failure_of(Request.END, code, about=_about(ask))
    if ask.commit and case.queued.attempts:
        # An earlier one may have done its work, and this is what the coordinator says ever since.
        course.end_failure = failure
        course.put(DescribeTransaction(ask.transactional_id))
        return
    course.end_sent = False
    course.bump = course.bump or reaction is Reaction.FORGOTTEN
    if not ask.commit and (reaction is Reaction.FORGOTTEN or _never_began(course, code)):
        course.ended(NO_IDENTITY, committed=False, now=case.now)
    elif not ask.commit and code == TRANSACTION_ABORTABLE:
        # There is nothing left to do about it but to abort, and that is what was refused (KAFKA-19250).
        course.fail(failure._replace(kind=FailureKind.FATAL))
    else:
        course.fail(failure)


def _never_began(course: Course, code: int) -> bool:
    """What was asked to be added, and never answered, was not: there is nothing to end."""
    return code == INVALID_TXN_STATE and course.contents.empty


def _described(case: _Case, answer: TransactionTold) -> None:
    """How a commit ended whose answer was lost."""
    course = case.course
    cause = course.end_failure
    identity = course.identity
    assert cause is not None
    assert identity is not None
    if judge(Request.DESCRIBE, answer.code) in (Reaction.RETRY, Reaction.LOOK_UP):
        _react(case, answer.code, about="")
        return
    outcome = Outcome.UNTOLD if answer.code != 0 else judge_outcome(answer, identity, course.version)
    match outcome:
        case Outcome.COMMITTED:
            # Whether another producer has taken over since, InitProducerId tells.
            course.bump = True
            course.ended(NO_IDENTITY, committed=True, now=case.now)
        case Outcome.ABORTED:
            course.end_sent = False
            course.bump = True
            course.contents.forget()
            text = f"the transaction was aborted by its coordinator ({answer.state}): {cause.text}"
            course.fail(TransactionFailure(cause.code, cause.name, text, FailureKind.ABORTED))
        case Outcome.OPEN:
            again = EndTxn(course.limits.transactional_id, identity, commit=True, version=course.version)
            repeated = Queued(again, Urgency.END)
            course.put_back(repeated, course.limits.retry.wait_s(case.queued.attempts, case.chance), case.now)
        case Outcome.UNTOLD:
            course.fail(cause if cause.fatal else cause._replace(kind=FailureKind.FATAL))
        case _:
            assert_never(outcome)
