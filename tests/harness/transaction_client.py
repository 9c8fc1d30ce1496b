"""A process that runs transactions and writes down what it was told: `python -m tests.harness.transaction_client JOB-AS-JSON`.

Each transaction has a number and a few records whose values name it. Some are aborted. The ledger's lines, appended one
write each, so that a killed client leaves whole lines:

    begin N COUNT       before the first record is handed over
    committing N        before the commit is asked for: from here on, without a further line, it may be either
    committed N         the commit returned
    aborting N          before an abort, asked for or after an error
    aborted N
    unseen N            committed, but not to be seen by readers within the time allowed
    unclear N           nobody can tell whether it was committed
    fatal N TEXT        the producer cannot go on
    done                all transactions were run
"""

import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Final

from .transaction_job import AbortableError, FatalError, Job, Transactions, UnclearError, UnseenError

ABORTED_SHARE: Final = 0.2
RECORDS_MAX: Final = 5
PARTITIONS_MAX: Final = 3


def value_of(transactional_id: str, number: int, index: int) -> str:
    """What a record of a transaction holds."""
    return f"{transactional_id}/{number}/{index}"


class LineWriter:
    """Appends whole lines to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def line(self, *words: object) -> None:
        text = " ".join(str(word) for word in words).encode() + b"\n"
        assert os.write(self._file, text) == len(text)


def producer_of(job: Job) -> Transactions:
    """Ready for its first transaction; whatever an earlier process left open is aborted by then."""
    if job.through == "confluent":
        from .transactions_confluent import ConfluentTransactions  # (a client of ours must work without it)

        return ConfluentTransactions(job)
    from .transactions_direct import DirectTransactions

    return DirectTransactions(job)


def run_one(job: Job, number: int, producer: Transactions, ledger: LineWriter) -> bool:
    """One transaction; its content depends on seed and number only. False: the producer is of no more use."""
    random = Random(f"{job.seed}/{job.transactional_id}/{number}")
    count = random.randint(1, RECORDS_MAX)
    places = random.sample(range(job.partitions), min(PARTITIONS_MAX, job.partitions))
    ledger.line("begin", number, count)
    try:
        producer.begin()
        for index in range(count):
            value = value_of(job.transactional_id, number, index).encode()
            producer.send(job.topic, random.choice(places), value)
        if random.random() >= ABORTED_SHARE:
            ledger.line("committing", number)
            producer.commit()
            ledger.line("committed", number)
            return True
    except AbortableError:
        pass
    except (UnseenError, UnclearError) as error:
        print(f"transaction {number}: {error}", file=sys.stderr)
        ledger.line("unseen" if isinstance(error, UnseenError) else "unclear", number)
        return False
    ledger.line("aborting", number)
    producer.abort()
    ledger.line("aborted", number)
    return True


def run(job: Job) -> int:
    """Run them one after the other, telling each one's end on standard output."""
    ledger = LineWriter(Path(job.ledger))
    number = job.first
    try:
        producer = producer_of(job)
        print("ready", flush=True)
        while number < job.end:
            if not run_one(job, number, producer, ledger):
                return 4
            number += 1
            print(number, flush=True)
        producer.close()
    except FatalError as error:
        ledger.line("fatal", number, error)
        print(error, file=sys.stderr)
        return 3
    ledger.line("done")
    return 0


def main() -> int:
    return run(Job(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
