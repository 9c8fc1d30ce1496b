"""A transactional producer's decisions against a coordinator played by the test, on a clock that moves when told."""

from collections.abc import Mapping
from typing import TypeVar

from penstock.producer.protocol.backoff import Backoff
from penstock.producer.transactions.manager import TransactionLimits, TransactionManager
from penstock.producer.transactions.operations import TransactionEvent, TransactionOperation
from penstock.producer.transactions.requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Coordinator,
    CoordinatorKind,
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
from penstock.producer.transactions.states import FailedTransactionError, TransactionFailure, TransactionManagerState
from penstock.producer.transactions.visibility import (
    LastStableOffsetResult,
    OpenTransactionsResult,
    VisibilityCheck,
    VisibilityCheckKind,
)

_Kind = TypeVar("_Kind")

ID = "foobar"
TIMEOUT_MS = 1121
FIRST = ProducerIdAndEpoch(13131, 1)
SECOND = ProducerIdAndEpoch(13131, 2)
BROKER = Coordinator(0, "localhost", 1969)
OTHER_BROKER = Coordinator(1, "localhost", 1970)
GROUP = GroupMetadata("consumer")
RETRY_S = 0.1
TP0: PartitionKey = ("foo", 0)
TP1: PartitionKey = ("foo", 1)
OFFSETS: Mapping[PartitionKey, OffsetToCommit] = {("bar", 0): OffsetToCommit(1)}

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
        self.events: list[TransactionEvent] = []

    def pass_s(self, seconds: float) -> None:
        self.now += seconds

    def told(self, kind: type[TransactionEvent]) -> list[TransactionEvent]:
        self.take()
        return [event for event in self.events if isinstance(event, kind)]

    def take(self) -> None:
        self.events += self.manager.take_events()

    # --- asks and answers --------------------------------------------------------------------------------------------

    def next(self) -> TransactionRequest | None:
        return self.manager.next_request(self.now)

    def ask(self, kind: type[_Kind]) -> _Kind:
        """The next request, which is of this kind."""
        ask = self.next()
        assert isinstance(ask, kind), f"{ask} instead of {kind.__name__}"
        return ask

    def answer(self, ask: TransactionRequest, answer: TransactionResponse) -> None:
        self.manager.answered(ask, answer, now=self.now, chance=0.5)
        self.take()

    def refuse(self, kind: type[TransactionRequest], code: int) -> None:
        """The next request is of this kind, and answered with an error for everything in it."""
        self.answer(self.ask(kind), ErrorCodeResult(code))

    def lose(self, ask: TransactionRequest) -> None:
        self.manager.lost(ask, now=self.now, chance=0.5)
        self.take()

    def found(self, kind: CoordinatorKind = CoordinatorKind.TRANSACTION, broker: Coordinator = BROKER) -> None:
        ask = self.ask(FindCoordinator)
        assert ask == FindCoordinator(kind, ID if kind is CoordinatorKind.TRANSACTION else GROUP.group)
        self.answer(ask, FindCoordinatorResult(0, coordinator=broker))

    def given(self, identity: ProducerIdAndEpoch = FIRST) -> InitProducerId:
        ask = self.ask(InitProducerId)
        self.answer(ask, ProducerIdResult(0, identity))
        return ask

    def added(self, *parts: PartitionKey) -> None:
        ask = self.ask(AddPartitions)
        assert ask.partitions == parts
        self.answer(ask, PartitionErrorsResult(dict.fromkeys(parts, 0)))

    def ended(self, *, commit: bool, following: ProducerIdAndEpoch | None = None) -> EndTxn:
        ask = self.ask(EndTxn)
        assert ask.commit is commit
        self.answer(ask, ProducerIdResult(0) if following is None else ProducerIdResult(0, following))
        return ask

    def offsets_added(self) -> None:
        self.answer(self.ask(AddOffsets), ErrorCodeResult(0))

    def offsets_committed(self) -> None:
        ask = self.ask(CommitOffsets)
        self.answer(ask, PartitionErrorsResult({part: 0 for part, _ in ask.offsets}))

    def see(self, part: PartitionKey = TP0, last_stable: int = 1_000_000) -> None:
        """The next look is at this partition, and its last stable offset is this one."""
        assert self.manager.take_visibility_checks(self.now) == [
            VisibilityCheck(VisibilityCheckKind.LAST_STABLE_OFFSET, part)
        ]
        self.manager.visibility_checked(
            VisibilityCheck(VisibilityCheckKind.LAST_STABLE_OFFSET, part),
            LastStableOffsetResult(0, last_stable),
            now=self.now,
            chance=0.5,
        )
        self.take()

    def closed(self, *parts: PartitionKey) -> None:
        """Leaders are asked, and know no open transaction, in these partitions."""
        looks = self.manager.take_visibility_checks(self.now)
        assert looks == [VisibilityCheck(VisibilityCheckKind.OPEN_TRANSACTIONS, part) for part in parts]
        for look in looks:
            self.manager.visibility_checked(look, OpenTransactionsResult(0), now=self.now, chance=0.5)

    # --- ways to a state ---------------------------------------------------------------------------------------------

    def initialised(self, *, tv2: bool = False, identity: ProducerIdAndEpoch = FIRST) -> "TransactionRig":
        self.manager.update_features(2 if tv2 else 1, offers_v2=tv2)
        operation = self.manager.initialise()
        self.found()
        _ = self.given(identity)
        self.over(operation)
        assert self.manager.state is TransactionManagerState.READY
        return self

    def begun(self, *parts: PartitionKey, tv2: bool = False) -> "TransactionRig":
        """In a transaction with these partitions, each with a batch sent."""
        _ = self.initialised(tv2=tv2)
        self.begin(*parts)
        return self

    def begin(self, *parts: PartitionKey) -> None:
        self.manager.begin()
        for part in parts:
            self.manager.maybe_add_partition(*part)
        if parts and self.manager.version == 1:
            self.added(*parts)
        for part in parts:
            assert self.manager.may_send(*part)
            self.manager.batch_sent(*part)

    def send_offsets(self) -> TransactionOperation:
        return self.manager.send_offsets(OFFSETS, GROUP)

    def settle(self, *parts: PartitionKey) -> None:
        self.manager.batches_completed(dict.fromkeys(parts, 10))

    def over(self, operation: TransactionOperation) -> None:
        """It has ended well, and its caller knows."""
        assert operation.done
        assert operation.failure is None
        operation.acknowledge()

    def heard(self, operation: TransactionOperation) -> TransactionFailure:
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
