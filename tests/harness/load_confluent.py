"""The load client's way past Penstock, straight into Kafka, by which the harness itself is proved."""

from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from .ledger import LedgerWriter, Level
from .load_client import Job, Tally
from .records import Record


class ConfluentSender:
    """An idempotent librdkafka producer."""

    def __init__(self, job: Job, ledger: LedgerWriter, tally: Tally) -> None:
        """Connect in the background."""
        self._job = job
        self._ledger = ledger
        self._tally = tally
        self._producer = Producer(
            {
                "bootstrap.servers": job.address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
                "log_level": 2,
                **job.settings,
            }
        )

    def send(self, frame: int, records: Sequence[Record]) -> None:
        """Produce each record, waiting while librdkafka's queue is full."""
        for index, record in enumerate(records):

            def done(error: KafkaError | None, message: Message, index: int = index) -> None:
                if error is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    self._ledger.ok(frame, index, 1, Level.DELIVERED, partition=partition, offset=offset)
                else:
                    # librdkafka does not tell a definite no from a perhaps.
                    self._ledger.unknown(frame, index, 1, error.name())
                self._tally.answered(1)

            while True:
                try:
                    self._producer.produce(
                        self._job.topic,
                        record.value,
                        record.key,
                        partition=self._job.partition,
                        headers=list(record.headers),
                        timestamp=record.timestamp_ms or 0,
                        on_delivery=done,
                    )
                except BufferError:
                    _ = self._producer.poll(0.1)
                else:
                    break
        _ = self._producer.poll(0)

    def finish(self, seconds: float) -> None:
        """Flush; what is left is without an outcome in the ledger."""
        _ = self._producer.flush(seconds)
