"""A client process with a ledger: `python -m tests.harness.load_client JOB-AS-JSON`.

Sends the job's records through the client library (or, to prove the harness itself, through confluent-kafka), writes down
each outcome, and tells its progress on standard output: a line `SENT ANSWERED` after every few calls, `done` at the end.
"""

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from .ledger import LedgerWriter, Level
from .records import Record, RecordId, Shape, record_of

PROGRESS_S: Final = 0.02


class Job(NamedTuple):
    """What one client process does."""

    through: str
    """`penstock` or `confluent`."""
    address: str
    """The daemon's socket, or the cluster's bootstrap servers."""
    client: str
    topic: str
    ledger: str
    records: int
    level: int = int(Level.DELIVERED)
    frame_records: int = 1
    """Records a call; 1 means `send`, more means `send_many` where the shape allows it."""
    rate: float = 0.0
    """Records a second; 0: as fast as it goes."""
    partition: int = -1
    """Below 0: chosen by the daemon."""
    anonymous: bool = False
    """Without a client id: what is sent again after a lost connection may be taken twice."""
    finish_s: float = 120.0
    """How long the outcomes may take after the last call."""
    shape: Shape = Shape()


class Tally:
    """Counts what was sent and answered, and tells it to whoever holds the other end of standard output."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self._sent = 0
        self._answered = 0
        self._told_at = 0.0

    def sent(self, count: int) -> None:
        """A call was made."""
        with self._lock:
            self._sent += count
            self._tell()

    def answered(self, count: int) -> None:
        """Records came to their end."""
        with self._lock:
            self._answered += count
            self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_S or self._sent == self._answered:
            self._told_at = now
            print(self._sent, self._answered, flush=True)

    def last(self) -> None:
        """The end: everything that will be answered has been."""
        with self._lock:
            print(self._sent, self._answered, flush=True)
            print("done", flush=True)


class Sender(Protocol):
    """Hands records over, and has their outcomes written down."""

    def send(self, frame: int, records: Sequence[Record]) -> None:
        """Hand over one call's records. May block."""

    def finish(self, seconds: float) -> None:
        """Wait for the outcomes, at most so long, and close."""


def sender_of(job: Job, ledger: LedgerWriter, tally: Tally) -> Sender:
    """The way that the job names."""
    if job.through == "confluent":
        from .load_confluent import ConfluentSender  # (a client of ours must work without it)

        return ConfluentSender(job, ledger, tally)
    from .load_penstock import PenstockSender

    return PenstockSender(job, ledger, tally)


def run(job: Job) -> None:
    """Send all of it at the job's rate, then wait for the outcomes."""
    tally = Tally()
    pace = threading.Event()
    with LedgerWriter(Path(job.ledger), job.client, job.shape) as ledger:
        sender = sender_of(job, ledger, tally)
        begin = time.monotonic()
        for frame, first in enumerate(range(0, job.records, job.frame_records)):
            count = min(job.frame_records, job.records - first)
            records = [record_of(RecordId(job.client, frame, index), job.shape) for index in range(count)]
            if job.rate and (early := begin + first / job.rate - time.monotonic()) > 0:
                _ = pace.wait(early)
            ledger.sent(frame, count)
            tally.sent(count)
            sender.send(frame, records)
        sender.finish(job.finish_s)
        tally.last()


def main() -> None:
    """Read the job from the command line."""
    fields = json.loads(sys.argv[1])
    fields["shape"] = Shape(**fields["shape"])
    run(Job(**fields))


if __name__ == "__main__":
    main()
