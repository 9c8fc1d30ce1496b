"""Holds what transactional clients were told against what a `read_committed` reader finds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

EXAMPLES_MAX: Final = 12


class End(StrEnum):
    """How a transaction ended, as far as its client knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNSEEN = "unseen"
    """Committed and reported as not visible."""
    UNCLEAR = "unclear"
    """The client was told that nobody knows."""
    DOUBTFUL = "doubtful"
    """The client was killed after it had asked for the commit."""
    LEFT = "left"
    """The client was killed, or ended, before it asked for a commit."""


@dataclass(slots=True)
class Transaction:
    """One transaction by its ledger."""

    count: int
    end: End = End.LEFT


def read_transactions(path: Path) -> dict[int, Transaction]:
    """By number. A last line without its end is dropped: its writer was killed. Raise ValueError on others."""
    found: dict[int, Transaction] = {}
    for line in path.read_text().split("\n")[:-1]:
        match line.split(" ", 2):
            case ["begin", number, count]:
                assert int(number) not in found, f"{path}: transaction {number} twice"
                found[int(number)] = Transaction(int(count))
            case ["committing", number]:
                found[int(number)].end = End.DOUBTFUL
            case ["committed" | "aborted" | "unseen" | "unclear" as end, number]:
                found[int(number)].end = End(end)
            case ["aborting", number]:
                # After an error of the commit, which was not carried out then.
                found[int(number)].end = End.LEFT
            case ["done"] | ["fatal", _, _]:
                pass
            case _:
                raise ValueError(f"{path}: not a ledger's line: {line!r}")
    return found


@dataclass(slots=True)
class Verdict:
    """What one run showed. All but `ends` and `unseen_missing` must be zero."""

    ends: Counter[End] = field(default_factory=Counter[End])
    lost: int = 0
    """Committed transactions of which a record is missing."""
    leaked: int = 0
    """Transactions that were not committed, of which a record was read."""
    torn: int = 0
    """Transactions of which some records were read and others not."""
    doubled: int = 0
    """Records read more than once."""
    reordered: int = 0
    """Records read after one of a later transaction, or a later record, of their client and partition."""
    strange: int = 0
    """Records that nobody sent."""
    unseen_missing: int = 0
    """Reported as not visible or unclear, and not, or not wholly, visible."""
    examples: list[str] = field(default_factory=list[str])

    def wrong(self) -> list[str]:
        """What is not as it must be; empty when all is well."""
        names = ("lost", "leaked", "torn", "doubled", "reordered", "strange")
        found = [f"{name} = {getattr(self, name)}" for name in names if getattr(self, name)]
        return [*found, *self.examples] if found else []

    def summary(self) -> str:
        """One line for a log."""
        ends = ", ".join(f"{end} {count}" for end, count in sorted(self.ends.items()))
        return (
            f"{sum(self.ends.values())} transactions: {ends}; lost {self.lost}, leaked {self.leaked}, torn {self.torn}, "
            f"doubled {self.doubled}, out of order {self.reordered}, strange {self.strange}"
        )

    def example(self, text: str) -> None:
        """Keep a few cases for the message."""
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def judge(clients: dict[str, dict[int, Transaction]], read: Iterable[tuple[int, str]]) -> Verdict:
    """`clients`: each one's transactions. `read`: (partition, value) of every record that a `read_committed` reader saw,
    each partition in the order of its offsets."""
    verdict = Verdict()
    seen: Counter[tuple[str, int, int]] = Counter()
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for partition, value in read:
        name, _, rest = value.rpartition("/")[0].rpartition("/")
        place = (name, int(rest or -1), int(value.rpartition("/")[2]))
        client, number, index = place
        sent = clients.get(client, {}).get(number)
        if sent is None or not 0 <= index < sent.count:
            verdict.strange += 1
            verdict.example(f"strange: {value} in {partition}")
            continue
        seen[place] += 1
        if seen[place] > 1:
            verdict.doubled += 1
            verdict.example(f"doubled: {value} in {partition}")
        elif (number, index) < newest.get((client, partition), (-1, -1)):
            verdict.reordered += 1
            verdict.example(f"out of order: {value} in {partition} after {newest[client, partition]}")
        else:
            newest[client, partition] = (number, index)
    for client, transactions in clients.items():
        for number, transaction in transactions.items():
            _compare(verdict, f"{client}/{number}", transaction, _read_of(seen, client, number, transaction))
    return verdict


def _read_of(seen: Counter[tuple[str, int, int]], client: str, number: int, transaction: Transaction) -> Sequence[int]:
    return [index for index in range(transaction.count) if seen[client, number, index]]


def _compare(verdict: Verdict, name: str, transaction: Transaction, read: Sequence[int]) -> None:
    verdict.ends[transaction.end] += 1
    if transaction.end in (End.UNSEEN, End.UNCLEAR):
        # Reported; where its markers were lost in some partitions only, the others show their records.
        verdict.unseen_missing += len(read) < transaction.count
    elif read and len(read) < transaction.count:
        verdict.torn += 1
        verdict.example(f"torn: {name}: {len(read)} of {transaction.count} records")
    match transaction.end:
        case End.COMMITTED if not read:
            verdict.lost += 1
            verdict.example(f"lost: {name}")
        case End.ABORTED | End.LEFT if read:
            verdict.leaked += 1
            verdict.example(f"leaked: {name} ({transaction.end})")
        case _:
            pass
