"""A batch from the moment its cut is fixed until its outcome is known."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .buffer_pool import Buffer


class BatchRefusal(NamedTuple):
    """Why a broker did not take a batch. `ambiguous`: an earlier attempt of the same cut ended without a verdict, so the
    batch may be in the log all the same."""

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
    """The bytes to send; None: they have to be made from slices first."""
    buffer: Buffer | None = None
    """What `data` lies in, where that is the pool's; `uses` tells whether it is still the same use of it."""
    uses: int = 0
    size: int = 0
    """Bytes to send; an estimate while there are none."""
    record_bytes: int = 0
    """Bytes of records before compression."""
    record_bytes_max: int = 0
    """Of these, the largest record's."""
    created: float = 0.0
    """When its first record came (CLOCK_MONOTONIC seconds); known once it has its bytes."""
    max_ts: int = -1
    attempts: int = 0
    in_doubt: bool = False
    """An attempt ended without a verdict: the batch may be in the log."""
    request_number: int = 0
    """Number of the request whose answer counts for it; 0: it is not on the wire."""
    transport_refs: int = 0
    """Requests, orphaned ones too, whose transport may still read `data`."""
    dropped: bool = False
    slot: int = -1
    """Where its cut stands in the journal; -1: nowhere yet."""
    refusal: BatchRefusal | None = None

    @property
    def end(self) -> int:
        """The first ordinal behind it."""
        return self.first + self.count


class BatchBoundsJournal(Protocol):
    """Where cuts are recorded before a byte of their batches may reach a socket (HO-12)."""

    @property
    def free_slots(self) -> int:
        """How many cuts may still be recorded; at 0 nothing is cut."""
        ...

    def record(self, partition: int, generation: int, first: int, count: int, *, producer_id: int, epoch: int) -> int:
        """Record a cut and return its slot."""
        ...

    def release(self, slots: Iterable[int]) -> None:
        """These slots may be used again."""
        ...


class UnboundedJournal:
    """The journal of a process whose cuts end with it: nobody would read them, so they are only counted."""

    def __init__(self) -> None:
        self._slots = 0

    @property
    def free_slots(self) -> int:
        """As `BatchBoundsJournal`: there are always enough."""
        return 1 << 30

    def record(self, partition: int, generation: int, first: int, count: int, *, producer_id: int, epoch: int) -> int:  # noqa: ARG002
        """As `BatchBoundsJournal`."""
        self._slots += 1
        return self._slots

    def release(self, slots: Iterable[int]) -> None:
        """As `BatchBoundsJournal`."""
