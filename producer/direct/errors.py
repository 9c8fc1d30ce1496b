"""Maps failures of records and transactions to the exceptions that applications see."""

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
from ..delivery.outcomes import DeliveryFailure, DeliveryFailureKind
from ..transactions.states import FailureKind, TransactionFailure


def error_of(failure: DeliveryFailure) -> PenstockError:
    """The exception for the failure of records."""
    match failure.kind:
        case DeliveryFailureKind.REFUSED:
            return BrokerError(failure.code, failure.name, failure.message)
        case DeliveryFailureKind.EXPIRED:
            return ExpiredError(failure.message)
        case DeliveryFailureKind.MAY_BE_WRITTEN:
            return ExpiredMayBeWrittenError(failure.message)
        case DeliveryFailureKind.FATAL:
            return FatalError(failure.name, failure.message)
        case DeliveryFailureKind.CLOSED:
            return ClosedError(failure.message)
        case DeliveryFailureKind.ABORTED:
            return TransactionAbortedError(failure.name, failure.message)
        case DeliveryFailureKind.FENCED:
            return ProducerFencedError(failure.name, failure.message)


def error_of_transaction(failure: TransactionFailure) -> PenstockError:
    """The exception for a transaction call, or for `send` in a transaction that failed."""
    code = failure.name or failure.kind.value.upper().replace(" ", "_")
    match failure.kind:
        case FailureKind.ABORTABLE:
            return TransactionAbortableError(code, failure.text)
        case FailureKind.COMMIT_FAILED:
            return CommitFailedError(code, failure.text)
        case FailureKind.ABORTED:
            return TransactionAbortedError(code, failure.text)
        case FailureKind.UNAUTHORIZED:
            return InitTransactionsRefusedError(code, failure.text)
        case FailureKind.FENCED:
            return ProducerFencedError(code, failure.text)
        case FailureKind.FATAL | FailureKind.ILLEGAL_STATE:
            return FatalError(code, failure.text)
        case FailureKind.OUTCOME_UNKNOWN:
            return CommitUnknownError(code, failure.text)
        case FailureKind.CLOSED:
            return ClosedError(failure.text)
