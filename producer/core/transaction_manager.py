"""The transactional producer's decisions: one owner, no I/O. What it stands in, what it may ask, what answers mean.

The shell takes `next_ask`, sends it to `target`, and says how that ended, exactly once: `answered`, `refused_version` or `lost`.
At most one ask is in flight. Looks (is the commit visible?) go beside that, to leaders of partitions. After every call the shell
takes `take_events`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .backoff import Backoff
from .transaction_asks import Answer, Ask, Coordinator, GroupMetadata, Identity, OffsetToCommit, Part
from .transaction_operations import Event, Operation
from .transactions import State, TransactionFailure
from .visibility import Look, LookAnswer


class TransactionLimits(NamedTuple):
    """Rules of one transactional id. Times in seconds, but `timeout_ms`, which goes to the coordinator as it is."""

    transactional_id: str
    timeout_ms: int
    retry: Backoff
    look: Backoff = Backoff(0.005, 1.0)
    """Between two looks at a partition whose commit is not visible yet."""
    concurrent_wait_s: float = 0.02
    """After CONCURRENT_TRANSACTIONS while nothing is in the new transaction yet: markers of the last one take that long."""
    ask_leader_after_s: float = 0.5
    """Not visible for so long: DescribeProducers tells whether our marker lacks, or another producer's transaction is open."""
    hanging_after_s: float = 45.0
    """Not visible for so long: the alarm "hanging transaction"."""


class TransactionManager:
    """A transactional id's state, operations and requests."""

    def __init__(self, limits: TransactionLimits) -> None:
        raise NotImplementedError

    state: State
    version: int
    """Of transactions, under the present identity: 1 or 2."""
    identity: Identity | None
    error: TransactionFailure | None
    """Of ABORTABLE_ERROR and FATAL_ERROR."""

    @property
    def ongoing(self) -> bool:
        """From `begin` until the transaction ended at the coordinator; not any more after a fatal error."""
        raise NotImplementedError

    # operations of the application; TransactionStateError in a wrong state, FailedTransactionError with the stored failure
    def initialise(self, now: float) -> Operation:
        raise NotImplementedError

    def begin(self, now: float) -> None:
        raise NotImplementedError

    def check_send(self) -> None:
        raise NotImplementedError

    def send_offsets(self, offsets: Mapping[Part, OffsetToCommit], group: GroupMetadata, now: float) -> Operation:
        raise NotImplementedError

    def commit(self, now: float) -> Operation:
        raise NotImplementedError

    def abort(self, now: float) -> Operation:
        raise NotImplementedError

    def close(self, text: str) -> None:
        """Pending operations fail with this; nothing is asked any more."""
        raise NotImplementedError

    # told by the joined producer
    def want(self, topic: str, index: int) -> None:
        raise NotImplementedError

    def may_send(self, topic: str, index: int) -> bool:
        raise NotImplementedError

    def sent(self, topic: str, index: int) -> None:
        raise NotImplementedError

    def failed(self, code: int, name: str, text: str, *, fatal: bool = False) -> None:
        raise NotImplementedError

    def settled(self, last_offsets: Mapping[Part, int]) -> None:
        """Committing or aborting, and no batch is left whose outcome is open; before that EndTxn is withheld."""
        raise NotImplementedError

    # requests
    def features(self, transaction_version: int, *, offers_v2: bool) -> None:
        raise NotImplementedError

    def next_ask(self, now: float) -> Ask | None:
        raise NotImplementedError

    def target(self, ask: Ask) -> Coordinator | None:
        """The broker it goes to; None: any."""
        raise NotImplementedError

    def answered(self, ask: Ask, answer: Answer, *, now: float, chance: float) -> None:
        raise NotImplementedError

    def refused_version(self, ask: Ask, text: str) -> None:
        raise NotImplementedError

    def lost(self, ask: Ask, *, now: float, chance: float) -> None:
        raise NotImplementedError

    def disconnected(self, node: int) -> None:
        """The connection to a coordinator ended with nothing in flight on it: it is looked up again before it is used."""
        raise NotImplementedError

    # visibility
    def take_looks(self, now: float) -> list[Look]:
        raise NotImplementedError

    def looked(self, look: Look, answer: LookAnswer, *, now: float, chance: float) -> None:
        raise NotImplementedError

    def look_lost(self, look: Look, *, now: float, chance: float) -> None:
        raise NotImplementedError

    def next_deadline(self, now: float) -> float | None:
        raise NotImplementedError

    def take_events(self) -> list[Event]:
        raise NotImplementedError
