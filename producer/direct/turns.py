"""When records are not taken: the producer has ended, or stands between two transactions, or in another one than they were sent in."""

from typing import Final, Never

from ...api.errors import PenstockError, RefusedError, TransactionAbortableError, TransactionStateError
from ..kernel.append import RecordAppender

TRANSACTION_OVER: Final = "transaction_over"
"""Code of records that were behind others in `send_many` when their transaction ended."""


class SendGuard(RecordAppender):
    """What the kernel calls where a record cannot be put."""

    def refuse(self) -> Never:
        """
        Raises:
            ClosedError, TransactionStateError, TransactionAbortableError: why no record is taken.
        """
        assert self.refusal is not None
        raise self.refusal.with_traceback(None)

    def raise_transaction_ended(self) -> Never:
        """
        Raises:
            TransactionStateError: the record was sent in a transaction that has ended since.
        """
        raise TransactionStateError("the transaction in which this was sent has ended before it was taken")

    def partial_send_error(self, error: PenstockError) -> PenstockError:
        """Why columns were taken in part only: these records are certainly in no transaction."""
        if isinstance(error, TransactionStateError | TransactionAbortableError):
            return RefusedError(TRANSACTION_OVER, str(error))
        return error
