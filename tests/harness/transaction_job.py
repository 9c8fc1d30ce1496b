"""What a transactional client does, by whatever producer."""

from typing import NamedTuple, Protocol


class Job(NamedTuple):
    """What one client process does."""

    through: str
    """`direct`, or (to prove the harness itself) `confluent`."""
    bootstrap: str
    transactional_id: str
    topic: str
    partitions: int
    ledger: str
    first: int
    """Number of the first transaction."""
    end: int
    """Number behind the last."""
    seed: int
    transaction_timeout_ms: int = 60_000
    max_block_ms: int = 90_000


class AbortableError(Exception):
    """The transaction has to be aborted."""


class UnseenError(Exception):
    """Committed, and not visible in time."""


class UnclearError(Exception):
    """Committed or not: nobody can tell."""


class FatalError(Exception):
    """The producer is at its end."""


class Transactions(Protocol):
    """A transactional producer. Calls raise the errors above."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
