"""Why records failed, as the exceptions that applications see."""

from ...api.errors import (
    BrokerError,
    ClosedError,
    CommitFailedError,
    CommitUnknownError,
    ExpiredError,
    ExpiredMayBeWrittenError,
    FatalError,
    InitTransactionsRefusedError,
    PenstockError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from ..delivery.outcomes import Failure, Kind
from ..transactions.states import FailureKind, TransactionFailure


def error_of(failure: Failure) -> PenstockError:
    """The exception for what became of records."""
    match failure.kind:
        case Kind.REFUSED:
            return BrokerError(failure.code, failure.name, failure.message)
        case Kind.EXPIRED:
            return ExpiredError(failure.message)
        case Kind.MAY_BE_WRITTEN:
            return ExpiredMayBeWrittenError(failure.message)
        case Kind.FATAL:
            return FatalError(failure.name, failure.message)
        case Kind.CLOSED:
            return ClosedError(failure.message)
        case Kind.ABORTED:
            return TransactionAbortedError(failure.name, failure.message)
        case Kind.FENCED:
            return ProducerFencedError(failure.name, failure.message)


def error_of_transaction(failure: TransactionFailure) -> PenstockError:
    """The exception for a call about a transaction, or for `send` in one that failed."""
    code = failure.name or failure.kind.value.upper().replace(" ", "_")
    match failure.kind:
        case FailureKind.ABORTABLE:
            return TransactionAbortableError(code, failure.text)
        case FailureKind.COMMIT_FAILED:
            return CommitFailedError(code, failure.text)
        case FailureKind.ABORTED:
            return TransactionAbortedError(code, failure.text)
        case FailureKind.REFUSED:
            return InitTransactionsRefusedError(code, failure.text)
        case FailureKind.FENCED:
            return ProducerFencedError(code, failure.text)
        case FailureKind.FATAL | FailureKind.LOST_TRACK:
            return FatalError(code, failure.text)
        case FailureKind.UNTOLD:
            return CommitUnknownError(code, failure.text)
        case FailureKind.CLOSED:
            return ClosedError(failure.text)
