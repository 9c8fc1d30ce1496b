"""Transactions through confluent-kafka, which shows that the harness judges a known client right."""

from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from .transaction_job import AbortableError, FatalError, Job

WAIT_S = 90.0


class ConfluentTransactions:
    """See `transaction_job.Transactions`."""

    def __init__(self, job: Job) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "transactional.id": job.transactional_id,
                "transaction.timeout.ms": job.transaction_timeout_ms,
                "linger.ms": 0,
                "log_level": 2,
            }
        )
        self._call(lambda: self._producer.init_transactions(WAIT_S))

    def _call(self, call: Callable[[], object]) -> None:
        while True:
            try:
                _ = call()
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable():
                    continue
                if error.txn_requires_abort():
                    raise AbortableError(str(error)) from failure
                raise FatalError(str(error)) from failure
            else:
                return

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._call(lambda: self._producer.produce(topic, value, partition=partition))

    def commit(self) -> None:
        self._call(lambda: self._producer.commit_transaction(WAIT_S))

    def abort(self) -> None:
        # librdkafka 2.16 ends for good (INVALID_TXN_STATE of Kafka 4.3) where it aborts what it has not sent yet.
        _ = self._producer.flush(WAIT_S)
        self._call(lambda: self._producer.abort_transaction(WAIT_S))

    def close(self) -> None:
        _ = self._producer.flush(WAIT_S)
