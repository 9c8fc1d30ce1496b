"""A batch from the moment its cut is fixed until its outcome is known."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .buffer_pool import Buffer


class BatchRefusal(NamedTuple):
    """Why a broker refused a batch. `ambiguous`: an earlier attempt of the same cut ended without a definite result, so
    the batch may be in the log nevertheless."""

    code: int
    message: str
    record_errors: list[tuple[int, str]]
    ambiguous: bool
    too_large: bool


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records `first` to `end` - 1 of a partition under a fixed stamp."""

    first: int
    count: int
    producer_id: int
    epoch: int
    sequence: int
    data: memoryview | None = None
    """The bytes to send; None: they must be rebuilt from slices first."""
    buffer: Buffer | None = None
    """The pool's buffer that holds `data`, if any."""
    uses: int = 0
    """The value of `Buffer.uses` when it was lent for this batch."""
    size: int = 0
    """Bytes to send; an estimate while `data` is None."""
    record_bytes: int = 0
    """Bytes of records before compression."""
    record_bytes_max: int = 0
    """Size of the largest record, before compression."""
    created: float = 0.0
    """When its first record arrived (CLOCK_MONOTONIC seconds); set together with `data`."""
    max_ts: int = -1
    """Largest record timestamp, ms since 1970; -1: not known."""
    attempts: int = 0
    in_doubt: bool = False
    """An attempt ended without a definite result: the batch may be in the log."""
    request_number: int = 0
    """Number of the request whose response counts for it; 0: not in flight."""
    transport_refs: int = 0
    """Number of requests whose transport may still read `data`, including those whose responses no longer count."""
    dropped: bool = False
    """Set by `PartitionQueue.discard`: the buffer goes back when `transport_refs` is 0."""
    slot: int = -1
    """Journal slot of its cut; -1: not journaled."""
    refusal: BatchRefusal | None = None

    @property
    def end(self) -> int:
        """The first ordinal behind it."""
        return self.first + self.count


class BatchBoundsJournal(Protocol):
    """Records cuts. A cut must be recorded before any byte of its batch reaches a socket (HO-12)."""

    @property
    def free_slots(self) -> int:
        """How many more cuts can be recorded; at 0 no batch is cut."""
        ...

    def record(self, partition: int, generation: int, first: int, count: int, *, producer_id: int, epoch: int) -> int:
        """Record a cut and return its slot."""
        ...

    def release(self, slots: Iterable[int]) -> None:
        """Free these slots for reuse."""
        ...


class UnboundedJournal:
    """The journal of a process without a spool: its cuts end with it, so they are only counted, not stored."""

    def __init__(self) -> None:
        self._slots = 0

    @property
    def free_slots(self) -> int:
        """As `BatchBoundsJournal`; unlimited in practice."""
        return 1 << 30

    def record(self, partition: int, generation: int, first: int, count: int, *, producer_id: int, epoch: int) -> int:  # noqa: ARG002
        """As `BatchBoundsJournal`."""
        self._slots += 1
        return self._slots

    def release(self, slots: Iterable[int]) -> None:
        """As `BatchBoundsJournal`."""
