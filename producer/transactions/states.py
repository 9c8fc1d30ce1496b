"""States of a transactional producer, and the reactions to error codes: one table each, and no other code decides. The
page `docs/design/transactions.md` is generated from both.

Sources: KIP-98, KIP-360, KIP-447, KIP-890, KIP-1050; rules TXN-* and TRX-*.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from ..protocol.error_codes import error_name


class TransactionManagerState(Enum):
    """State of the transactional producer. The value is the name in the diagram."""

    UNINITIALIZED = "Uninitialized"
    """No usable identity."""
    INITIALIZING = "Initializing"
    """InitProducerId is pending: for the first identity, or for the next epoch after a transaction."""
    READY = "Ready"
    IN_TRANSACTION = "InTransaction"
    COMMITTING = "Committing"
    ABORTING = "Aborting"
    ABORTABLE_ERROR = "AbortableError"
    """The transaction can only be aborted; afterwards the producer can begin the next one."""
    FATAL_ERROR = "FatalError"
    """Another producer uses the transactional id, or a fatal error occurred: the producer can only be closed."""


def _with_fatal(*states: TransactionManagerState) -> frozenset[TransactionManagerState]:
    return frozenset({*states, TransactionManagerState.FATAL_ERROR})


TRANSITIONS: Final[Mapping[TransactionManagerState, frozenset[TransactionManagerState]]] = {
    TransactionManagerState.UNINITIALIZED: _with_fatal(TransactionManagerState.INITIALIZING),
    # Not authorised yet: through ABORTABLE_ERROR back to UNINITIALIZED, so that it can be repeated.
    TransactionManagerState.INITIALIZING: _with_fatal(
        TransactionManagerState.READY, TransactionManagerState.ABORTABLE_ERROR
    ),
    TransactionManagerState.READY: _with_fatal(TransactionManagerState.IN_TRANSACTION),
    TransactionManagerState.IN_TRANSACTION: _with_fatal(
        TransactionManagerState.COMMITTING, TransactionManagerState.ABORTING, TransactionManagerState.ABORTABLE_ERROR
    ),
    # To INITIALIZING if the next transaction needs a new epoch, for example to change the version of transactions.
    TransactionManagerState.COMMITTING: _with_fatal(
        TransactionManagerState.READY, TransactionManagerState.INITIALIZING, TransactionManagerState.ABORTABLE_ERROR
    ),
    TransactionManagerState.ABORTING: _with_fatal(TransactionManagerState.READY, TransactionManagerState.INITIALIZING),
    TransactionManagerState.ABORTABLE_ERROR: _with_fatal(
        TransactionManagerState.ABORTING, TransactionManagerState.UNINITIALIZED
    ),
    # Nothing that was sent can be trusted any more (TXN-8).
    TransactionManagerState.FATAL_ERROR: frozenset(),
}


class TransactionApi(Enum):
    """Kinds of requests to brokers. The value is the name in the page's table."""

    FIND_COORDINATOR = "FindCoordinator"
    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"
    DESCRIBE = "DescribeTransactions"
    PRODUCE = "Produce"


class Reaction(Enum):
    """Reaction to a response's error code. The value is the word in the page's table."""

    SUCCESS = "done"
    RETRY = "again"
    """Send the same request again after the backoff."""
    LOOK_UP = "look up, again"
    """The coordinator has moved: FindCoordinator first."""
    ABORTABLE = "abortable"
    COMMIT_FAILED = "abortable (commit failed)"
    """The consumer group has reassigned the partitions. Reported as a failed commit; abortable."""
    UNKNOWN_PRODUCER_ID = "abortable (forgotten)"
    """The coordinator no longer knows the producer id: abortable; while aborting there is nothing left to end."""
    UNAUTHORIZED = "back to the beginning"
    """Not authorised: the operation fails, and may be repeated."""
    FENCED = "fatal (fenced)"
    """Another producer with the same transactional id has taken over."""
    FATAL = "fatal"
    OUTCOME_UNKNOWN = "outcome unknown"
    """It cannot be determined how the transaction ended."""


class FailureKind(Enum):
    """Meaning of a failure for the application."""

    ABORTABLE = "abortable"
    COMMIT_FAILED = "commit failed"
    """Abortable: the group has replaced the consumer whose offsets were sent."""
    ABORTED = "aborted"
    """The transaction ended aborted."""
    UNAUTHORIZED = "refused"
    """Not authorised for the transactional id yet: initialising may be repeated."""
    FENCED = "fenced"
    FATAL = "fatal"
    OUTCOME_UNKNOWN = "may be committed"
    """Fatal, and it cannot be determined whether the transaction was committed."""
    CLOSED = "closed"
    ILLEGAL_STATE = "lost track"
    """Fatal: a transition that is missing from the table (TXN-1)."""


_FATAL: Final = frozenset(
    {FailureKind.FENCED, FailureKind.FATAL, FailureKind.OUTCOME_UNKNOWN, FailureKind.ILLEGAL_STATE}
)


class TransactionFailure(NamedTuple):
    """Why a transaction or the producer failed. `code` and `name` are Kafka's (-1 and "" if we detected the
    failure)."""

    code: int
    name: str
    text: str
    kind: FailureKind

    @property
    def fatal(self) -> bool:
        """Whether the producer can only be closed."""
        return self.kind in _FATAL


class FailedTransactionError(Exception):
    """A call that the stored failure forbids. The shell converts it to an error of `api.errors`."""

    def __init__(self, failure: TransactionFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


NOT_COORDINATOR: Final = 16
COORDINATOR_NOT_AVAILABLE: Final = 15
CONCURRENT_TRANSACTIONS: Final = 51
_REQUEST_TIMED_OUT: Final = 7
RETRIABLE: Final = frozenset(
    {2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 51, 56, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103}
)
"""Kafka's RetriableException codes, and BROKER_NOT_AVAILABLE, which is temporary."""

_COMMON_REACTIONS: Final = {
    0: Reaction.SUCCESS,
    35: Reaction.FATAL,  # UNSUPPORTED_VERSION
    53: Reaction.FATAL,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    90: Reaction.FENCED,  # PRODUCER_FENCED
    120: Reaction.ABORTABLE,  # TRANSACTION_ABORTABLE (KIP-1050)
}
_COORDINATOR_REACTIONS: Final = {
    **dict.fromkeys(RETRIABLE, Reaction.RETRY),
    COORDINATOR_NOT_AVAILABLE: Reaction.LOOK_UP,
    NOT_COORDINATOR: Reaction.LOOK_UP,
    47: Reaction.FENCED,  # INVALID_PRODUCER_EPOCH: for a fenced producer if the broker cannot tell the difference
    **_COMMON_REACTIONS,
}
_TRANSACTION_REACTIONS: Final = {
    **_COORDINATOR_REACTIONS,
    48: Reaction.FATAL,  # INVALID_TXN_STATE
    49: Reaction.UNKNOWN_PRODUCER_ID,  # INVALID_PRODUCER_ID_MAPPING
    59: Reaction.UNKNOWN_PRODUCER_ID,  # UNKNOWN_PRODUCER_ID
}

REACTIONS: Final[Mapping[TransactionApi, Mapping[int, Reaction]]] = {
    TransactionApi.FIND_COORDINATOR: {
        **dict.fromkeys(RETRIABLE, Reaction.RETRY),
        **_COMMON_REACTIONS,
        30: Reaction.ABORTABLE,  # GROUP_AUTHORIZATION_FAILED
    },
    TransactionApi.INIT_PRODUCER_ID: {
        **_COORDINATOR_REACTIONS,
        31: Reaction.UNAUTHORIZED,  # CLUSTER_AUTHORIZATION_FAILED
        53: Reaction.UNAUTHORIZED,
    },
    TransactionApi.ADD_PARTITIONS: {
        **_TRANSACTION_REACTIONS,
        29: Reaction.ABORTABLE,  # TOPIC_AUTHORIZATION_FAILED
        55: Reaction.ABORTABLE,  # OPERATION_NOT_ATTEMPTED: another partition of the request was refused
    },
    TransactionApi.ADD_OFFSETS: {
        **_TRANSACTION_REACTIONS,
        30: Reaction.ABORTABLE,
    },
    TransactionApi.COMMIT_OFFSETS: {
        **_COORDINATOR_REACTIONS,
        _REQUEST_TIMED_OUT: Reaction.LOOK_UP,  # how group coordinators report that they have moved
        12: Reaction.ABORTABLE,  # OFFSET_METADATA_TOO_LARGE: the application's mistake, affects only this transaction
        22: Reaction.COMMIT_FAILED,  # ILLEGAL_GENERATION
        25: Reaction.COMMIT_FAILED,  # UNKNOWN_MEMBER_ID
        29: Reaction.ABORTABLE,
        30: Reaction.ABORTABLE,
        49: Reaction.UNKNOWN_PRODUCER_ID,
        59: Reaction.UNKNOWN_PRODUCER_ID,
        82: Reaction.ABORTABLE,  # FENCED_INSTANCE_ID
        113: Reaction.COMMIT_FAILED,  # STALE_MEMBER_EPOCH (KIP-848)
    },
    TransactionApi.END: _TRANSACTION_REACTIONS,
    TransactionApi.DESCRIBE: {
        **dict.fromkeys(RETRIABLE, Reaction.RETRY),
        COORDINATOR_NOT_AVAILABLE: Reaction.LOOK_UP,
        NOT_COORDINATOR: Reaction.LOOK_UP,
        0: Reaction.SUCCESS,
    },
    # Only final errors get here: `TransactionalDelivery` does the retries.
    TransactionApi.PRODUCE: {
        **_COMMON_REACTIONS,
        31: Reaction.FATAL,
        49: Reaction.FATAL,
    },
}

DEFAULT_REACTIONS: Final[Mapping[TransactionApi, Reaction]] = {
    TransactionApi.FIND_COORDINATOR: Reaction.FATAL,
    TransactionApi.INIT_PRODUCER_ID: Reaction.FATAL,
    # A partition that cannot be added fails the transaction, not the producer.
    TransactionApi.ADD_PARTITIONS: Reaction.ABORTABLE,
    TransactionApi.ADD_OFFSETS: Reaction.FATAL,
    TransactionApi.COMMIT_OFFSETS: Reaction.FATAL,
    TransactionApi.END: Reaction.FATAL,
    TransactionApi.DESCRIBE: Reaction.OUTCOME_UNKNOWN,
    TransactionApi.PRODUCE: Reaction.ABORTABLE,
}
"""Reactions to codes missing from a request's row."""

_KINDS: Final = {
    Reaction.ABORTABLE: FailureKind.ABORTABLE,
    Reaction.UNKNOWN_PRODUCER_ID: FailureKind.ABORTABLE,
    Reaction.COMMIT_FAILED: FailureKind.COMMIT_FAILED,
    Reaction.UNAUTHORIZED: FailureKind.UNAUTHORIZED,
    Reaction.FENCED: FailureKind.FENCED,
    Reaction.FATAL: FailureKind.FATAL,
    Reaction.OUTCOME_UNKNOWN: FailureKind.OUTCOME_UNKNOWN,
}


def reaction_to(request: TransactionApi, code: int) -> Reaction:
    """The reaction to an error code in a request's response."""
    return REACTIONS[request].get(code, DEFAULT_REACTIONS[request])


def failure_of(request: TransactionApi, code: int, *, about: str = "", said: str | None = None) -> TransactionFailure:
    """The failure for an error code. `about`: subject of the request; `said`: the broker's message, if any."""
    name = error_name(code)
    reaction = reaction_to(request, code)
    text = f"{request.value} was answered with {name}"
    if about:
        text = f"{text} ({about})"
    if said:
        text = f"{text}: {said}"
    if reaction is Reaction.FENCED:
        text += "; another producer uses this transactional id, or the transaction took longer than its time-out"
    return TransactionFailure(code, name, text, _KINDS[reaction])
