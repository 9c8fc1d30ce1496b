"""A client process with a ledger for each of its jobs: `python -m tests.harness.load_client JOBS-AS-JSON`.

Sends each job's records in a thread of its own, through the client library, the direct producer, or (to prove the harness
itself) confluent-kafka, writes down each outcome, and tells its progress on standard output: a line `SENT ANSWERED` after every
few calls, `done` at the end. Jobs of one process with the same address and settings share one producer.
"""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from .ledger import LedgerWriter, Level
from .records import Record, RecordId, Shape, record_of

PROGRESS_S: Final = 0.02


class Job(NamedTuple):
    """What one client process does."""

    through: str
    """`penstock`, `direct` or `confluent`."""
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
    settings: Mapping[str, str | int] = {}
    """Of what sends without a daemon, under Kafka's names."""


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


def senders_of(jobs: Sequence[Job], ledgers: Sequence[LedgerWriter], tally: Tally) -> list[Sender]:
    """The ways that the jobs name; those with the same address and settings share what sends."""
    senders: list[Sender] = []
    producers: dict[str, Any] = {}
    for job, ledger in zip(jobs, ledgers, strict=True):
        if job.through == "confluent":
            from .load_confluent import ConfluentSender  # (a client of ours must work without it)

            senders.append(ConfluentSender(job, ledger, tally))
            continue
        from .load_penstock import PenstockSender, direct_producer, session

        same = json.dumps([job.through, job.address, dict(job.settings)], sort_keys=True)
        if same not in producers:
            producers[same] = direct_producer(job) if job.through == "direct" else session(job)
        senders.append(PenstockSender(job, ledger, tally, producers[same]))
    return senders


def call(job: Job, ledger: LedgerWriter, tally: Tally, sender: Sender) -> None:
    """Send all of a job's records at its rate."""
    pace = threading.Event()
    begin = time.monotonic()
    for frame, first in enumerate(range(0, job.records, job.frame_records)):
        count = min(job.frame_records, job.records - first)
        records = [record_of(RecordId(job.client, frame, index), job.shape) for index in range(count)]
        if job.rate and (early := begin + first / job.rate - time.monotonic()) > 0:
            _ = pace.wait(early)
        ledger.sent(frame, count)
        tally.sent(count)
        sender.send(frame, records)


def run(jobs: Sequence[Job]) -> None:
    """Do all jobs side by side, then wait for the outcomes."""
    tally = Tally()
    with ExitStack() as stack:
        ledgers = [stack.enter_context(LedgerWriter(Path(job.ledger), job.client, job.shape)) for job in jobs]
        senders = senders_of(jobs, ledgers, tally)
        first, *others = zip(jobs, ledgers, senders, strict=True)
        with ThreadPoolExecutor(max(1, len(others))) as threads:
            calls = [threads.submit(call, job, ledger, tally, sender) for job, ledger, sender in others]
            job, ledger, sender = first
            call(job, ledger, tally, sender)
            for done in calls:
                done.result()
        for sender in senders:
            sender.finish(jobs[0].finish_s)
        tally.last()


def main() -> None:
    """Read the jobs from the command line."""
    jobs: list[Job] = []
    for fields in json.loads(sys.argv[1]):
        fields["shape"] = Shape(**fields["shape"])
        jobs.append(Job(**fields))
    run(jobs)


if __name__ == "__main__":
    main()
