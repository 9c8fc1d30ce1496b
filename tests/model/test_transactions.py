"""Any history of calls, answers, time-outs and losses, against a coordinator that keeps the truth: what is told of a transaction is so."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.api.errors import TransactionStateError
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.transactions.manager import TransactionLimits, TransactionManager
from penstock.producer.transactions.operations import ProducerIdChanged, TransactionEnded, TransactionOperation
from penstock.producer.transactions.requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Coordinator,
    DescribeTransaction,
    DescribeTransactionResult,
    EndTxn,
    ErrorCodeResult,
    FindCoordinator,
    FindCoordinatorResult,
    GroupMetadata,
    InitProducerId,
    OffsetToCommit,
    PartitionErrorsResult,
    PartitionKey,
    ProducerIdAndEpoch,
    ProducerIdResult,
    TransactionRequest,
    TransactionResponse,
)
from penstock.producer.transactions.states import FailedTransactionError, FailureKind, TransactionManagerState
from penstock.producer.transactions.visibility import (
    LastStableOffsetResult,
    OpenTransactionsResult,
    VisibilityCheckKind,
)

from tests.harness.counts import model_examples
from tests.model.transaction_world import CONCURRENT, World

PARTS: list[PartitionKey] = [("a", 0), ("a", 1), ("b", 0)]
OFFSETS: PartitionKey = ("__consumer_offsets", 0)
GROUP = GroupMetadata("group")
CHANCE = 0.5
PASSING = [7, 14, 15, 16, 51]
FATES = ["well", "well", "lost", "answer lost", "answer lost", "passing", "passing, done", "final"]
BATCH_FATES = ["lost", "answer lost"]
MISFORTUNES = ["time out", "usurp", "usurp and commit", "forget"]
FINAL = [29, 30, 31, 35, 48, 53, 90, 120, -1]


@dataclass(eq=False)
class Batch:
    """A batch of one record."""

    record: int
    part: PartitionKey
    identity: ProducerIdAndEpoch | None = None
    version: int = 0


class Rough(NamedTuple):
    """How a transaction goes wrong."""

    parts: list[PartitionKey]
    call: str
    batch: str
    end: str
    what: str
    copies: bool
    """Late copies arrive while it is open, and markers come late."""


ROUGH = st.builds(
    Rough,
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=3),
    st.sampled_from(["commit", "commit", "abort"]),
    st.sampled_from(["well", "well", *BATCH_FATES, "expired"]),
    st.sampled_from(["well", "lost", "answer lost", "passing, done"]),
    st.sampled_from(["", "", "", "lost marker", *MISFORTUNES]),
    st.booleans(),
)


@dataclass(eq=False)
class Told:
    """A transaction as the application knows it."""

    records: set[int] = field(default_factory=set)
    offsets: set[int] = field(default_factory=set)
    """Sent and confirmed to the application."""
    commit: TransactionOperation | None = None
    abort: TransactionOperation | None = None


class Machine(RuleBasedStateMachine):
    """One producer, driven as the joined producer drives it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1.0
        self.world = World()
        limits = TransactionLimits("id", 60_000, Backoff(0.1, 1.0))
        self.manager = TransactionManager(limits)
        self.operation: TransactionOperation | None = None
        self.transactions: list[Told] = []
        self.open: list[Batch] = []
        self.late: list[Batch] = []
        """Copies that are still on their way."""
        self.last_offsets: dict[PartitionKey, int] = {}
        self.records = 0
        self.settled = False
        self.flying: TransactionRequest | None = None
        self.fatal = False
        self.sending_offsets: list[tuple[Told, TransactionOperation, int]] = []
        self.identities: list[ProducerIdChanged] = []

    # --- the application ---------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(["initialise", "begin", "commit", "abort", "offsets"]))
    def call(self, kind: str) -> None:
        """Whatever fits or not."""
        before, error = self.manager.state, self.manager.error
        try:
            self._call(kind)
        except TransactionStateError:
            assert self.manager.state is before
        except FailedTransactionError as raised:
            told = raised.failure
            assert (self.manager.state, told) == (before, error)
        self._events()

    @rule(chance=st.integers(0, 9), again=st.integers(0, 9))
    def on(self, chance: int, again: int) -> None:
        """A few steps of an ordinary day."""
        self.fitting_call(chance)
        self.go_on(2)
        self.fitting_call(again)
        self.go_on(1)

    @rule(chance=st.integers(0, 9))
    def fitting_call(self, chance: int) -> None:
        """What an application does next."""
        self.acknowledge()
        state = self.manager.state
        if state is TransactionManagerState.UNINITIALIZED:
            self.call("initialise")
        elif state is TransactionManagerState.READY:
            self.call("begin")
        elif state is TransactionManagerState.ABORTABLE_ERROR:
            self.call("abort")
        elif state is TransactionManagerState.IN_TRANSACTION:
            if chance > 4:
                self.send(PARTS[chance % len(PARTS)])
            else:
                self.call("abort" if chance == 0 else "offsets" if chance == 1 else "commit")

    def _call(self, kind: str) -> None:
        manager = self.manager
        if kind == "initialise":
            self.operation = manager.initialise()
        elif kind == "begin":
            manager.begin()
            assert not self.open
            self.transactions.append(Told())
            self.last_offsets = {}
        elif kind == "offsets":
            self.records += 1
            operation = manager.send_offsets({OFFSETS: OffsetToCommit(self.records)}, GROUP)
            self.sending_offsets.append((self.transactions[-1], operation, self.records))
        else:
            again = self.operation
            operation = manager.commit() if kind == "commit" else manager.abort()
            self.operation = operation
            if operation is not again:
                self.settled = False
            last = self.transactions[-1] if self.transactions else Told()
            if kind == "commit":
                last.commit = operation
            elif last.commit is None or not last.commit.committed:
                # Else it leads out of an error that came after the commit.
                last.abort = operation

    @rule()
    def acknowledge(self) -> None:
        if self.operation is not None and (self.operation.done or self.operation.committed):
            self.operation.acknowledge()

    @rule(part=st.sampled_from(PARTS))
    def send(self, part: PartitionKey) -> None:
        try:
            self.manager.check_send()
        except (TransactionStateError, FailedTransactionError):
            return
        self.records += 1
        self.transactions[-1].records.add(self.records)
        self.open.append(Batch(self.records, part))
        self.manager.maybe_add_partition(*part)

    # --- batches -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 100), fate=st.sampled_from(["well", "well", "lost", "answer lost", "refused"]))
    def produce(self, at: int, fate: str) -> None:
        batch = self.open[at % len(self.open)]
        if not self.manager.may_send(*batch.part):
            return
        identity = self.manager.identity
        assert identity is not None
        assert batch.identity in (None, identity), "a batch outlived its identity"
        batch.identity, batch.version = identity, self.manager.version
        self.manager.batch_sent(*batch.part)
        if fate == "lost":
            self.late.append(Batch(batch.record, batch.part, identity, batch.version))
            return
        code = 29 if fate == "refused" else self.world.produce(batch.part, identity, batch.version, batch.record)
        if fate == "answer lost" or code == CONCURRENT:
            return
        self.open.remove(batch)
        if code == 0:
            entries = self.world.log(batch.part).entries
            offset = next(n for n, entry in enumerate(entries) if entry.record == batch.record)
            self.last_offsets[batch.part] = max(offset, self.last_offsets.get(batch.part, -1))
        else:
            self.manager.batch_failed(code, f"code {code}", "refused")
            self._events()

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 100))
    def expire(self, at: int) -> None:
        batch = self.open.pop(at % len(self.open))
        self.manager.batch_failed(7, "REQUEST_TIMED_OUT", "expired")
        if batch.identity is not None:
            self.late.append(batch)
        self._events()

    @precondition(lambda self: self.late)
    @rule(at=st.integers(0, 100), again=st.booleans())
    def late_copy(self, at: int, again: bool) -> None:
        batch = self.late[at % len(self.late)]
        assert batch.identity is not None
        _ = self.world.produce(batch.part, batch.identity, batch.version, batch.record)
        if not again:
            self.late.remove(batch)

    @precondition(
        lambda self: (
            self.manager.state in (TransactionManagerState.COMMITTING, TransactionManagerState.ABORTING)
            and not self.settled
        )
    )
    @rule()
    def settle(self) -> None:
        if not self.open:
            self.manager.batches_completed(self.last_offsets)
            self.settled = True

    # --- requests ----------------------------------------------------------------------------------------------------

    @rule()
    def next_ask(self) -> None:
        ask = self.manager.next_request(self.now)
        if self.flying is not None and not self.fatal:
            assert ask is None, "two in flight"
        if ask is not None:
            assert not self.fatal
            self.flying = ask
        self._events()

    @precondition(lambda self: self.flying is not None)
    @rule(fate=st.sampled_from(FATES), code=st.integers(0, 100))
    def land(self, fate: str, code: int) -> None:
        ask, self.flying = self.flying, None
        assert ask is not None
        answer = self._answer(ask) if fate in ("well", "answer lost", "passing, done") else None
        if fate == "final":
            self.manager.answered(ask, ErrorCodeResult(FINAL[code % len(FINAL)]), now=self.now, chance=CHANCE)
        elif fate.startswith("passing"):
            self.manager.answered(ask, ErrorCodeResult(PASSING[code % len(PASSING)]), now=self.now, chance=CHANCE)
        elif fate == "well" and answer is not None:
            self.manager.answered(ask, answer, now=self.now, chance=CHANCE)
        else:
            self.manager.lost(ask, now=self.now, chance=CHANCE)
        self._events()

    @rule(times=st.integers(1, 6), at=st.integers(0, 5), fate=st.sampled_from(FATES), code=st.integers(0, 100))
    def go_on(self, times: int, at: int = -1, fate: str = "well", code: int = 0, *, marks: bool = True) -> None:
        """Everything goes well for a while, but for one answer and the batches of its time."""
        for step in range(times):
            self.now += 0.2
            self.next_ask()
            if self.flying is not None:
                self.land(fate if step == at else "well", code)
            for batch in list(self.open):
                if batch in self.open:
                    self.produce(self.open.index(batch), fate if step == at and fate in BATCH_FATES else "well")
            if not self.settled and self.manager.state in (
                TransactionManagerState.COMMITTING,
                TransactionManagerState.ABORTING,
            ):
                self.settle()
            while marks and self.world.pending:
                self.world.mark(min(self.world.pending))
            self.look()

    def _answer(self, ask: TransactionRequest) -> TransactionResponse:
        world = self.world
        match ask:
            case FindCoordinator():
                return FindCoordinatorResult(0, coordinator=Coordinator(1, "broker", 9092))
            case InitProducerId(identity=identity):
                return ProducerIdResult(*world.init(identity))
            case AddPartitions(identity=identity, partitions=parts):
                return PartitionErrorsResult(dict.fromkeys(parts, world.add(identity, parts)))
            case AddOffsets(identity=identity):
                return ErrorCodeResult(world.add(identity, (OFFSETS,)))
            case CommitOffsets(identity=identity, offsets=offsets, version=version):
                (_, offset), *_ = offsets
                return PartitionErrorsResult({OFFSETS: world.produce(OFFSETS, identity, version, offset.offset)})
            case EndTxn(identity=identity, commit=commit, version=version):
                return ProducerIdResult(*world.end(identity, commit=commit, version=version))
            case DescribeTransaction():
                if world.identity is None:
                    return DescribeTransactionResult(105)
                return DescribeTransactionResult(0, world.state, world.identity)

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.5, 50.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def look(self) -> None:
        for look in self.manager.take_visibility_checks(self.now):
            log = self.world.log(look.part)
            if look.kind is VisibilityCheckKind.LAST_STABLE_OFFSET:
                answer = LastStableOffsetResult(0, log.last_stable())
                self.manager.visibility_checked(look, answer, now=self.now, chance=CHANCE)
            else:
                self.manager.visibility_checked(
                    look, OpenTransactionsResult(0, frozenset(log.open)), now=self.now, chance=CHANCE
                )
        self._events()

    # --- the cluster -------------------------------------------------------------------------------------------------

    @initialize(level=st.sampled_from([1, 2]))
    def begin_with(self, level: int) -> None:
        self.features(level)

    @rule(level=st.sampled_from([1, 2]))
    def features(self, level: int) -> None:
        self.manager.update_features(level, offers_v2=level > 1)

    @precondition(lambda self: self.world.pending)
    @rule(lose=st.sampled_from([False, False, False, True]))
    def mark(self, lose: bool) -> None:
        part = min(self.world.pending)
        # Nobody can look at the partition of offsets.
        self.world.mark(part, lose=lose and part != OFFSETS)

    @rule(what=st.sampled_from(MISFORTUNES), chance=st.integers(0, 9))
    def misfortune(self, what: str, chance: int) -> None:
        if chance == 0:
            self._befall(what)

    def _befall(self, what: str) -> None:
        if what == "time out":
            self.world.time_out()
        elif what.startswith("usurp") and self.world.identity is not None:
            self.world.usurp(commits=what == "usurp and commit")
        elif what == "forget":
            self.world.forget()

    @rule(roughs=st.lists(ROUGH, min_size=1, max_size=4))
    def rough_day(self, roughs: list[Rough]) -> None:
        """One rough transaction after the other."""
        for rough in roughs:
            self._rough_transaction(rough)

    def _rough_transaction(self, rough: Rough) -> None:
        """A whole transaction in which something goes wrong, at the batches or at its end."""
        for _ in range(8):
            self.fitting_call(8) if self.manager.state is not TransactionManagerState.IN_TRANSACTION else None
            self.go_on(1)
        if self.manager.state is not TransactionManagerState.IN_TRANSACTION or self.open:
            return
        for part in rough.parts:
            self.send(part)
            self._ask_well()
            if self.open:
                self.produce(0, "lost" if rough.batch == "expired" else rough.batch)
        if rough.batch == "expired" and self.open:
            self.expire(0)
        for at in range(len(self.late) if rough.copies else 0):
            self.late_copy(at, again=True)
        self.call(rough.call)
        for _ in range(12):
            self.now += 0.2
            self.next_ask()
            for _ in range(len(self.open)):
                self.produce(0, "well") if self.open else None
            if not self.settled and self.manager.state in (
                TransactionManagerState.COMMITTING,
                TransactionManagerState.ABORTING,
            ):
                self.settle()
            if isinstance(self.flying, EndTxn):
                break
            self._land_well()
        if self.flying is not None:
            self.land(rough.end, 0)
        if rough.what == "lost marker" and self.world.pending:
            part = max(self.world.pending)
            self.world.mark(part, lose=part != OFFSETS)
        else:
            self._befall(rough.what)
        self.go_on(4, marks=not rough.copies)
        self.fitting_call(0)
        self.go_on(4)
        self.acknowledge()

    def _ask_well(self) -> None:
        self.now += 0.2
        self.next_ask()
        self._land_well()

    def _land_well(self) -> None:
        if self.flying is not None:
            self.land("well", 0)

    def _events(self) -> None:
        for event in self.manager.take_events():
            if isinstance(event, ProducerIdChanged):
                self.identities.append(event)
            elif isinstance(event, TransactionEnded):
                self.settled = False
        if self.manager.state in (TransactionManagerState.ABORTABLE_ERROR, TransactionManagerState.ABORTING):
            # Never sent: fails with the transaction.
            self.open = [batch for batch in self.open if batch.identity is not None]
        if self.manager.state is TransactionManagerState.FATAL_ERROR:
            self.fatal = True
            self.flying = None
            self.open.clear()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def fatal_never_leaves_fatal(self) -> None:
        assert (self.manager.state is TransactionManagerState.FATAL_ERROR) == self.fatal
        if self.fatal:
            assert self.manager.error is not None
            assert self.manager.error.fatal
            assert self.manager.error.kind is not FailureKind.ILLEGAL_STATE

    @invariant()
    def versions_are_never_mixed(self) -> None:
        for identity, used in self.world.versions_used.items():
            assert len(used) == 1, f"{identity} used in versions {used}"

    @invariant()
    def identities_are_new(self) -> None:
        told = [(one.producer_id, one.epoch) for one in self.identities]
        assert len(set(told)) == len(told)

    @invariant()
    def what_is_told_is_so(self) -> None:
        committed = self.world.committed()
        assert len(set(committed)) == len(committed), "a record was committed twice"
        found = set(committed)
        readable = self.world.readable()
        for told in self.transactions:
            self._confirm_offsets(told)
            everything = told.records | told.offsets
            commit = told.commit
            if commit is not None and commit.done and commit.failure is None:
                assert everything <= found
                assert told.records <= readable, "told as committed before it can be read"
            elif commit is not None and commit.done:
                assert commit.failure is not None
                if commit.failure.kind is not FailureKind.OUTCOME_UNKNOWN:
                    assert not everything & found, "told as not committed, and it is"
            elif commit is None:
                assert not everything & found, "nobody asked for a commit"
            if told.abort is not None and told.abort.done:
                assert not everything & found, "aborted, and it is committed"
            assert not everything & found or everything <= found, "a part of a transaction is committed"

    def _confirm_offsets(self, told: Told) -> None:
        for one in list(self.sending_offsets):
            owner, operation, record = one
            if owner is told and operation.done:
                self.sending_offsets.remove(one)
                if operation.failure is None:
                    told.offsets.add(record)


TestTransactions = Machine.TestCase
TestTransactions.settings = settings(max_examples=model_examples(150), stateful_step_count=60, deadline=None)
