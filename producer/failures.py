"""Why records failed, as the exceptions that applications see."""

from ..api.errors import (
    BrokerError,
    ClosedError,
    ExpiredError,
    ExpiredMayBeWrittenError,
    FatalError,
    PenstockError,
)
from .core.outcomes import Failure, Kind


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
