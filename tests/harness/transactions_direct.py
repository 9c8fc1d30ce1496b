"""Transactions through the direct producer."""

from penstock.api.errors import ClosedError, CommittedNotVisibleError, OutcomeUnknownError, PenstockError
from penstock.producer import DirectProducer

from .transaction_job import AbortableError, FatalError, Job, UnclearError, UnseenError


class DirectTransactions:
    """See `transaction_job.Transactions`."""

    def __init__(self, job: Job) -> None:
        self._producer = DirectProducer(
            {
                "bootstrap.servers": job.bootstrap,
                "transactional.id": job.transactional_id,
                "transaction.timeout.ms": job.transaction_timeout_ms,
                "linger.ms": 0,
                "max.block.ms": job.max_block_ms,
            }
        )
        try:
            self._producer.init_transactions()
        except PenstockError as error:
            raise FatalError(f"{type(error).__name__}: {error}") from error

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except PenstockError as error:
            raise FatalError(f"{type(error).__name__}: {error}") from error

    def send(self, topic: str, partition: int, value: bytes) -> None:
        try:
            _ = self._producer.send(topic, value, partition=partition)
        except ClosedError as error:
            raise FatalError(f"{type(error).__name__}: {error}") from error
        except PenstockError as error:
            raise AbortableError(str(error)) from error

    def commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except CommittedNotVisibleError as error:
            raise UnseenError(str(error)) from error
        except OutcomeUnknownError as error:
            raise UnclearError(str(error)) from error
        except ClosedError as error:
            raise FatalError(f"{type(error).__name__}: {error}") from error
        except PenstockError as error:
            raise AbortableError(str(error)) from error

    def abort(self) -> None:
        try:
            self._producer.abort_transaction()
        except PenstockError as error:
            raise FatalError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        self._producer.close()
