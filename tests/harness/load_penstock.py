"""The load client's ways through our own libraries, as applications use them: `penstock.client.Producer` to the daemon, and
`penstock.producer.DirectProducer` to the brokers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from penstock.client import (
    BufferExhaustedError,
    ClosedError,
    FrameMetadata,
    OutcomeUnknownError,
    PenstockError,
    Producer,
    RecordMetadata,
    RefusedError,
    WaitTimeoutError,
)

from .ledger import LedgerWriter, Level
from .load_client import Job, Tally
from .records import Record

NAMES: Final[dict[Level, Literal["accepted", "spooled", "delivered"]]] = {
    Level.ACCEPTED: "accepted",
    Level.SPOOLED: "spooled",
    Level.DELIVERED: "delivered",
}
LEVELS: Final[dict[str, Level]] = {str(name): level for level, name in NAMES.items()}


def session(job: Job) -> Producer:
    """A session of the daemon, with a client id unless the job is anonymous."""
    # As long as the job may last: a daemon that is away for a while is no reason to give a record up.
    client_id = None if job.anonymous else job.client
    return Producer(job.address, client_id=client_id, max_block_ms=1000 * job.finish_s)


def direct_producer(job: Job) -> Any:
    """A direct producer with the job's settings; whatever the brokers do, records have as long as the job may last."""
    from penstock.producer import DirectProducer  # (a client of the daemon must work without it)

    patient_ms = int(1000 * job.finish_s)
    settings = {"delivery.timeout.ms": max(patient_ms, 120_000), "max.block.ms": patient_ms}
    return DirectProducer({"bootstrap.servers": job.address, **settings, **job.settings})


class PenstockSender:
    """Sends through a producer, which several senders may share."""

    def __init__(self, job: Job, ledger: LedgerWriter, tally: Tally, producer: Any) -> None:
        """Nothing is connected yet: the library does it with the first record."""
        self._job = job
        self._ledger = ledger
        self._tally = tally
        # Kafka knows one level only.
        daemon = isinstance(producer, Producer)
        self._level: Mapping[str, Any] = {"level": NAMES[Level(job.level)]} if daemon else {}
        self._partition = job.partition if job.partition >= 0 else None
        self._producer = producer

    def send(self, frame: int, records: Sequence[Record]) -> None:
        """One record by `send`, several by `send_many`."""
        try:
            if self._job.frame_records == 1:
                self._send_one(frame, records[0])
            else:
                self._send_many(frame, records)
        except (RefusedError, BufferExhaustedError, ClosedError) as error:
            self._ended(frame, len(records), error)

    def _send_one(self, frame: int, record: Record) -> None:
        def done(found: RecordMetadata | None, error: PenstockError | None) -> None:
            if found is None:
                assert error is not None
                self._ended(frame, 1, error)
            else:
                self._ledger.ok(frame, 0, 1, LEVELS[found.level], partition=found.partition, offset=found.offset)
                self._tally.answered(1)

        _ = self._producer.send(
            self._job.topic,
            record.value,
            record.key,
            headers=record.headers or None,
            partition=self._partition,
            timestamp_ms=record.timestamp_ms,
            **self._level,
            on_ack=done,
        )

    def _send_many(self, frame: int, records: Sequence[Record]) -> None:
        def done(found: FrameMetadata | None, error: PenstockError | None) -> None:
            if found is None:
                assert error is not None
                self._ended(frame, len(records), error)
            else:
                self._ledger.ok_places(frame, LEVELS[found.level], len(records), _places(found))
                self._tally.answered(len(records))

        shape = self._job.shape
        _ = self._producer.send_many(
            self._job.topic,
            [record.value for record in records],
            [record.key for record in records] if shape.key_count else None,
            headers=[record.headers for record in records] if shape.headers else None,
            partitions=self._partition,
            timestamps_ms=[record.timestamp_ms for record in records] if shape.timestamps else None,
            **self._level,
            on_ack=done,
        )

    def _ended(self, frame: int, count: int, error: PenstockError) -> None:
        """Write down a call that was not acknowledged whole."""
        match error:
            case RefusedError(refused=refused, code=code):
                for each in refused:
                    self._ledger.fail(frame, each.first, each.count, each.code)
                if not refused:
                    self._ledger.fail(frame, 0, count, code)
                named = {row for each in refused for row in range(each.first, each.first + each.count)}
                for row in set(range(count)) - named if refused else ():
                    self._ledger.ok(frame, row, 1, Level(self._job.level))
            case BufferExhaustedError() | ClosedError():
                # Never handed over.
                self._ledger.fail(frame, 0, count, type(error).__name__)
            case OutcomeUnknownError() | _:
                self._ledger.unknown(frame, 0, count, type(error).__name__)
        self._tally.answered(count)

    def finish(self, seconds: float) -> None:
        """Flush and close; what is left after so long is unknown."""
        try:
            self._producer.flush(seconds)
        except WaitTimeoutError:
            self._producer.close(0)
        else:
            self._producer.close(seconds)


def _places(found: FrameMetadata) -> list[tuple[int, int]] | None:
    """(partition, offset) of each record in order, where the answer told them."""
    if found.partitions is None:
        return None
    offsets: dict[int, list[int]] = {}
    for run in found.runs:
        offsets.setdefault(run.partition, []).extend(
            run.offset + step if run.offset >= 0 else -1 for step in range(run.count)
        )
    rest = {partition: iter(each) for partition, each in offsets.items()}
    return [(partition, next(rest.get(partition, iter(())), -1)) for partition in found.partitions]
