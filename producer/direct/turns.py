"""Rejects records: the producer is closed, no transaction is open, or it is not the one in which they were sent."""

from typing import Final, Never

from ...api.errors import PenstockError, RefusedError, TransactionAbortableError, TransactionStateError
from ..kernel.append import RecordAppender

TRANSACTION_OVER: Final = "transaction_over"
"""Error code for the remaining records of a `send_many` whose transaction ended before they were appended."""


class SendGuard(RecordAppender):
    """The methods that the kernel calls when it cannot append a record."""

    def refuse(self) -> Never:
        """Raise `refusal`.

        Raises:
            ClosedError, TransactionStateError, TransactionAbortableError: why no record is accepted.
        """
        assert self.refusal is not None
        raise self.refusal.with_traceback(None)

    def raise_transaction_ended(self) -> Never:
        """Raise the error for a record whose transaction epoch is over.

        Raises:
            TransactionStateError: the record was sent in a transaction that has ended since.
        """
        raise TransactionStateError("the transaction in which this was sent has ended before it was taken")

    def partial_send_error(self, error: PenstockError) -> PenstockError:
        """The error for the remaining records of partly appended columns. They certainly are in no transaction."""
        if isinstance(error, TransactionStateError | TransactionAbortableError):
            return RefusedError(TRANSACTION_OVER, str(error))
        return error
