"""A transactional producer's decisions against a coordinator played by the test, on a clock that moves when told."""

from collections.abc import Mapping
from typing import TypeVar

from penstock.producer.protocol.backoff import Backoff
from penstock.producer.transactions.manager import TransactionLimits, TransactionManager
from penstock.producer.transactions.operations import Event, Operation
from penstock.producer.transactions.requests import (
    AddOffsets,
    AddPartitions,
    Answer,
    Ask,
    CodeTold,
    CommitOffsets,
    Coordinator,
    CoordinatorKind,
    CoordinatorTold,
    EndTxn,
    FindCoordinator,
    GroupMetadata,
    Identity,
    IdentityTold,
    InitProducerId,
    OffsetToCommit,
    Part,
    PartsTold,
)
from penstock.producer.transactions.states import FailedTransactionError, State, TransactionFailure
from penstock.producer.transactions.visibility import Look, LookKind, OpenTold, StableTold

_Kind = TypeVar("_Kind")

ID = "foobar"
TIMEOUT_MS = 1121
FIRST = Identity(13131, 1)
SECOND = Identity(13131, 2)
BROKER = Coordinator(0, "localhost", 1969)
OTHER_BROKER = Coordinator(1, "localhost", 1970)
GROUP = GroupMetadata("consumer")
RETRY_S = 0.1
TP0: Part = ("foo", 0)
TP1: Part = ("foo", 1)
OFFSETS: Mapping[Part, OffsetToCommit] = {("bar", 0): OffsetToCommit(1)}

UNKNOWN_SERVER_ERROR = -1
UNKNOWN_TOPIC_OR_PARTITION = 3
REQUEST_TIMED_OUT = 7
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
OPERATION_NOT_ATTEMPTED = 55
UNKNOWN_PRODUCER_ID = 59
FENCED_INSTANCE_ID = 82
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105
TRANSACTION_ABORTABLE = 120


class TransactionRig:
    """Chance is 0.5: waits are exact. `events`: all that were told."""

    def __init__(self) -> None:
        self.manager = TransactionManager(TransactionLimits(ID, TIMEOUT_MS, Backoff(RETRY_S, 1.0)))
        self.now = 100.0
        self.events: list[Event] = []

    def pass_s(self, seconds: float) -> None:
        self.now += seconds

    def told(self, kind: type[Event]) -> list[Event]:
        self.take()
        return [event for event in self.events if isinstance(event, kind)]

    def take(self) -> None:
        self.events += self.manager.take_events()

    # --- asks and answers --------------------------------------------------------------------------------------------

    def next(self) -> Ask | None:
        return self.manager.next_ask(self.now)

    def ask(self, kind: type[_Kind]) -> _Kind:
        """The next request, which is of this kind."""
        ask = self.next()
        assert isinstance(ask, kind), f"{ask} instead of {kind.__name__}"
        return ask

    def answer(self, ask: Ask, answer: Answer) -> None:
        self.manager.answered(ask, answer, now=self.now, chance=0.5)
        self.take()

    def refuse(self, kind: type[Ask], code: int) -> None:
        """The next request is of this kind, and answered with an error for everything in it."""
        self.answer(self.ask(kind), CodeTold(code))

    def lose(self, ask: Ask) -> None:
        self.manager.lost(ask, now=self.now, chance=0.5)
        self.take()

    def found(self, kind: CoordinatorKind = CoordinatorKind.TRANSACTION, broker: Coordinator = BROKER) -> None:
        ask = self.ask(FindCoordinator)
        assert ask == FindCoordinator(kind, ID if kind is CoordinatorKind.TRANSACTION else GROUP.group)
        self.answer(ask, CoordinatorTold(0, coordinator=broker))

    def given(self, identity: Identity = FIRST) -> InitProducerId:
        ask = self.ask(InitProducerId)
        self.answer(ask, IdentityTold(0, identity))
        return ask

    def added(self, *parts: Part) -> None:
        ask = self.ask(AddPartitions)
        assert ask.partitions == parts
        self.answer(ask, PartsTold(dict.fromkeys(parts, 0)))

    def ended(self, *, commit: bool, following: Identity | None = None) -> EndTxn:
        ask = self.ask(EndTxn)
        assert ask.commit is commit
        self.answer(ask, IdentityTold(0) if following is None else IdentityTold(0, following))
        return ask

    def offsets_added(self) -> None:
        self.answer(self.ask(AddOffsets), CodeTold(0))

    def offsets_committed(self) -> None:
        ask = self.ask(CommitOffsets)
        self.answer(ask, PartsTold({part: 0 for part, _ in ask.offsets}))

    def see(self, part: Part = TP0, last_stable: int = 1_000_000) -> None:
        """The next look is at this partition, and its last stable offset is this one."""
        assert self.manager.take_looks(self.now) == [Look(LookKind.STABLE, part)]
        self.manager.looked(Look(LookKind.STABLE, part), StableTold(0, last_stable), now=self.now, chance=0.5)
        self.take()

    def closed(self, *parts: Part) -> None:
        """Leaders are asked, and know no open transaction, in these partitions."""
        looks = self.manager.take_looks(self.now)
        assert looks == [Look(LookKind.OPEN, part) for part in parts]
        for look in looks:
            self.manager.looked(look, OpenTold(0), now=self.now, chance=0.5)

    # --- ways to a state ---------------------------------------------------------------------------------------------

    def initialised(self, *, tv2: bool = False, identity: Identity = FIRST) -> "TransactionRig":
        self.manager.features(2 if tv2 else 1, offers_v2=tv2)
        operation = self.manager.initialise()
        self.found()
        _ = self.given(identity)
        self.over(operation)
        assert self.manager.state is State.READY
        return self

    def begun(self, *parts: Part, tv2: bool = False) -> "TransactionRig":
        """In a transaction with these partitions, each with a batch sent."""
        _ = self.initialised(tv2=tv2)
        self.begin(*parts)
        return self

    def begin(self, *parts: Part) -> None:
        self.manager.begin()
        for part in parts:
            self.manager.want(*part)
        if parts and self.manager.version == 1:
            self.added(*parts)
        for part in parts:
            assert self.manager.may_send(*part)
            self.manager.sent(*part)

    def send_offsets(self) -> Operation:
        return self.manager.send_offsets(OFFSETS, GROUP)

    def settle(self, *parts: Part) -> None:
        self.manager.settled(dict.fromkeys(parts, 10))

    def over(self, operation: Operation) -> None:
        """It has ended well, and its caller knows."""
        assert operation.done
        assert operation.failure is None
        operation.acknowledge()

    def heard(self, operation: Operation) -> TransactionFailure:
        """It has failed, and its caller knows."""
        assert operation.done
        assert operation.failure is not None
        operation.acknowledge()
        return operation.failure

    def refusal(self) -> TransactionFailure:
        """What a send would raise now."""
        try:
            self.manager.check_send()
        except FailedTransactionError as error:
            return error.failure
        raise AssertionError("a send would not be refused with a failure")
