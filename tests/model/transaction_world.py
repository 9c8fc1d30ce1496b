"""A coordinator and the partitions of its transactions, as real ones behave: epochs, markers that come late or get lost, copies that
arrive late. It keeps the truth, record by record, which no client sees.

Left out: replication, sequences (a copy of what is in the log under the same epoch is recognised), groups (their offsets are records of
one more partition).
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.producer.transactions.requests import NO_IDENTITY, PartitionKey, ProducerIdAndEpoch

CONCURRENT: Final = 51
FENCED: Final = 90
INVALID_EPOCH: Final = 47
INVALID_STATE: Final = 48
UNKNOWN_MAPPING: Final = 49
ABORTABLE: Final = 120
EPOCH_MAX: Final = 6
"""Few, so that they are used up."""
TV2: Final = 2


@dataclass(eq=False)
class Transaction:
    """One, as the coordinator sees it."""

    parts: set[PartitionKey] = field(default_factory=set)
    owner: int = -1
    """The producer id that began it."""
    outcome: bool | None = None


@dataclass(eq=False)
class Entry:
    """A record in a log. `visible` is set by a marker."""

    record: int
    identity: ProducerIdAndEpoch
    transaction: Transaction
    outcome: bool | None = None


@dataclass
class Log:
    """One partition."""

    entries: list[Entry] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """By producer id with records that no marker has ended: the epoch."""
    epochs: dict[int, int] = field(default_factory=dict)
    seen: set[tuple[ProducerIdAndEpoch, int]] = field(default_factory=set)

    def last_stable(self) -> int:
        return next((at for at, entry in enumerate(self.entries) if entry.outcome is None), len(self.entries))


class World:
    """One transactional id."""

    def __init__(self) -> None:
        self.identity: ProducerIdAndEpoch | None = None
        self.last: ProducerIdAndEpoch | None = None
        """The identity before: what its owner repeats is answered with the present one."""
        self.state = "Empty"
        self.current = Transaction()
        self.pending: set[PartitionKey] = set()
        """Markers not written yet."""
        self.version = 1
        self.logs: dict[PartitionKey, Log] = {}
        self.ids = 1000
        self.versions_used: dict[ProducerIdAndEpoch, set[int]] = {}

    def log(self, part: PartitionKey) -> Log:
        return self.logs.setdefault(part, Log())

    def _next_identity(self) -> ProducerIdAndEpoch:
        if self.identity is None or self.identity.epoch >= EPOCH_MAX:
            self.ids += 1
            return ProducerIdAndEpoch(self.ids, 0)
        return self.identity._replace(epoch=self.identity.epoch + 1)

    def _used(self, identity: ProducerIdAndEpoch, version: int) -> None:
        self.versions_used.setdefault(identity, set()).add(version)

    # --- requests ----------------------------------------------------------------------------------------------------

    def init(self, asked: ProducerIdAndEpoch) -> tuple[int, ProducerIdAndEpoch]:
        if self.identity is None:
            self.identity = self._next_identity()
            return 0, self.identity
        if asked != NO_IDENTITY and asked not in (self.identity, self.last):
            return FENCED, NO_IDENTITY
        if self.state.startswith("Prepare"):
            return CONCURRENT, NO_IDENTITY
        if self.state == "Ongoing":
            self._fence()
            return CONCURRENT, NO_IDENTITY
        if asked in (NO_IDENTITY, self.identity):
            self.last, self.identity = self.identity, self._next_identity()
            self.state = "Empty"
        return 0, self.identity

    def add(self, identity: ProducerIdAndEpoch, parts: tuple[PartitionKey, ...]) -> int:
        self._used(identity, 1)
        code = self._checked(identity)
        if code == 0:
            self._join(parts)
        return code

    def _checked(self, identity: ProducerIdAndEpoch) -> int:
        if self.identity is None or identity.producer_id != self.identity.producer_id:
            return UNKNOWN_MAPPING
        if identity != self.identity:
            return FENCED
        return CONCURRENT if self.state.startswith("Prepare") else 0

    def _join(self, parts: tuple[PartitionKey, ...]) -> None:
        if self.state != "Ongoing":
            self.state = "Ongoing"
            assert self.identity is not None
            self.current = Transaction(owner=self.identity.producer_id)
        self.current.parts.update(parts)

    def end(self, identity: ProducerIdAndEpoch, *, commit: bool, version: int) -> tuple[int, ProducerIdAndEpoch]:
        self._used(identity, version)
        if self.identity is None or identity not in (self.identity, self.last):
            return FENCED, NO_IDENTITY
        ours = self.state.endswith("Commit" if commit else "Abort")
        if identity == self.identity and self.state == "Ongoing":
            self._end(commit=commit, version=version)
        elif identity == self.identity and not commit and version == TV2 and not self.state.startswith("Prepare"):
            self.last, self.identity = self.identity, self._next_identity()
            self.state = "CompleteAbort"
        elif self.state.startswith("Prepare") and ours:
            return CONCURRENT, NO_IDENTITY
        elif not ours or (version == TV2) != (identity == self.last):
            return INVALID_STATE, NO_IDENTITY
        return 0, self.identity if version == TV2 else NO_IDENTITY

    def _end(self, *, commit: bool, version: int) -> None:
        self.current.outcome = commit
        self.state = f"Prepare{'Commit' if commit else 'Abort'}"
        self.pending = set(self.current.parts)
        if version == TV2:
            assert self.identity is not None
            self.last, self.identity = self.identity, self._next_identity()
        self._complete()

    def _fence(self) -> None:
        """The coordinator ends it: nobody may repeat anything under the epoch before."""
        self._end(commit=False, version=TV2)
        self.last = None

    def time_out(self) -> None:
        if self.state == "Ongoing":
            self._fence()

    def usurp(self, *, commits: bool) -> None:
        """Another producer initialises the id, as long as it takes, and may commit something of its own."""
        while self.init(NO_IDENTITY)[0] == CONCURRENT:
            while self.pending:
                self.mark(min(self.pending))
        self.last = None
        if commits:
            self._join((("other", 0),))
            self._end(commit=True, version=1)
            self.mark(("other", 0))

    def forget(self) -> None:
        """`transactional.id.expiration.ms` is over for an id that nobody used."""
        if self.state != "Ongoing" and not self.pending:
            self.identity = self.last = None
            self.state = "Empty"

    def mark(self, part: PartitionKey, *, lose: bool = False) -> None:
        """Write a marker, or let it get lost. It ends whatever its producer has open in the partition."""
        self.pending.discard(part)
        log = self.log(part)
        owner = self.current.owner
        if not lose and owner in log.open:
            del log.open[owner]
            log.epochs[owner] = max(log.epochs[owner], self._epoch_of_marker(owner))
            for entry in log.entries:
                if entry.outcome is None and entry.identity.producer_id == owner:
                    entry.outcome = self.current.outcome
                    assert entry.transaction is self.current, "a marker ended a transaction that is not its own"
        self._complete()

    def _epoch_of_marker(self, producer_id: int) -> int:
        assert self.identity is not None
        return self.identity.epoch if self.identity.producer_id == producer_id else EPOCH_MAX + 1

    def _complete(self) -> None:
        if not self.pending and self.state.startswith("Prepare"):
            self.state = self.state.replace("Prepare", "Complete")

    def produce(self, part: PartitionKey, identity: ProducerIdAndEpoch, version: int, record: int) -> int:
        log = self.log(part)
        if identity.epoch < log.epochs.get(identity.producer_id, -1):
            return INVALID_EPOCH
        if (identity, record) in log.seen:
            return 0
        if log.open.get(identity.producer_id) != identity.epoch:
            code = self._verified(part, identity, version)
            if code != 0:
                return code
        # What is open there, and not ended by its marker, grows.
        log.open[identity.producer_id] = identity.epoch
        self._used(identity, version)
        log.epochs[identity.producer_id] = identity.epoch
        log.seen.add((identity, record))
        log.entries.append(Entry(record, identity, self.current))
        return 0

    def _verified(self, part: PartitionKey, identity: ProducerIdAndEpoch, version: int) -> int:
        code = self._checked(identity)
        if code == CONCURRENT:
            return code
        if version == TV2:
            if code != 0:
                return INVALID_EPOCH
            self._join((part,))
            return 0
        return 0 if code == 0 and self.state == "Ongoing" and part in self.current.parts else ABORTABLE

    # --- the truth ---------------------------------------------------------------------------------------------------

    def committed(self) -> list[int]:
        """Records of committed transactions, whether their marker is written or not."""
        return [entry.record for log in self.logs.values() for entry in log.entries if entry.transaction.outcome]

    def readable(self) -> set[int]:
        """What a reader of committed records gets to see, in any partition."""
        return {entry.record for log in self.logs.values() for entry in log.entries if entry.outcome}
