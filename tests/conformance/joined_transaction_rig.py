"""`JoinedRig` with a transactional id: the joined producer in transactions, beside a coordinator that the test commands.

::

    rig = JoinedTransactionRig(version=2)       # initialised; one transaction with a record in every partition was committed
    rig.begin()
    rig.append(0); rig.run()                    # a record of tp0 is on the wire
    commit = rig.commit(); rig.finish()         # until the operation has ended
    rig.asks                                    # everything the coordinator was asked since the rig was made
    rig.hold(AddPartitions)                     # such asks stay open ...
    rig.go_on()                                 # ... until now
    rig.tell(FindCoordinator, CoordinatorTold(30))      # the next such ask is answered so

The coordinator's epoch rises with every InitProducerId and, in version 2, with every EndTxn. Commits are visible at once.
"""

from collections import deque
from typing import Any, Final

from penstock.producer.accumulator.partition_queue import BatchRules
from penstock.producer.accumulator.slice_accumulator import SliceAccumulator
from penstock.producer.delivery.in_process import InProcessDelivery, InProcessDeliveryLimits
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.transactions.delivery import TransactionalDelivery
from penstock.producer.transactions.manager import TransactionLimits, TransactionManager
from penstock.producer.transactions.operations import TransactionOperation
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
    InitProducerId,
    PartitionErrorsResult,
    ProducerIdAndEpoch,
    ProducerIdResult,
    TransactionRequest,
    TransactionResponse,
)
from penstock.producer.transactions.states import TransactionManagerState
from penstock.producer.transactions.visibility import (
    LastStableOffsetResult,
    OpenTransactionsResult,
    VisibilityCheckKind,
)

from tests.fakes.model_broker import Log

from .joined_rig import PRODUCER_ID, TOPIC, JoinedRig, Request

ID: Final = "foobar"
_FAR: Final = 1 << 40


class JoinedTransactionRig(JoinedRig):
    """See the module."""

    joined: TransactionalDelivery

    def __init__(self, *, version: int = 1, warm: bool = True, **given: Any) -> None:
        self.version = version
        self.asks: list[TransactionRequest] = []
        self.open_ask: TransactionRequest | None = None
        self.visible = True
        self.identity = ProducerIdAndEpoch(PRODUCER_ID, -1)
        self._held: set[type] = set()
        self._answers: dict[type, deque[TransactionResponse]] = {}
        super().__init__(fresh=True, **given)
        self.manager.update_features(version, offers_v2=version > 1)
        init = self.manager.initialise()
        self.finish(init)
        if warm:
            self.begin()
            for partition in self._leaders:
                _ = self.append(partition)
            self.finish(self.commit())
            self.outcomes.clear()
            self.asks.clear()
            self.requests = 0

    def _joined(
        self, limits: InProcessDeliveryLimits, accumulator: SliceAccumulator, rules: BatchRules
    ) -> InProcessDelivery:
        retry = Backoff(0.05, 1.0)
        self.manager = TransactionManager(TransactionLimits(ID, 1121, retry))
        transactional = rules._replace(transactional=True)
        return TransactionalDelivery(
            limits,
            accumulator,
            lambda _topic: transactional,
            self.manager,
            trouble_with=lambda node: "unplugged" if node in self.down else None,
        )

    # --- the application ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.manager.begin()

    def commit(self) -> TransactionOperation:
        return self.manager.commit()

    def abort(self) -> TransactionOperation:
        operation = self.manager.abort()
        _ = self.joined.process_events(now=self.now)
        return operation

    @property
    def state(self) -> TransactionManagerState:
        return self.manager.state

    def finish(self, operation: TransactionOperation, *, answering: bool = True) -> None:
        """Go on until the operation has ended well."""
        for _ in range(200):
            self.run()
            if operation.done:
                break
            if self.wire and answering:
                self.answer()
            else:
                self._sleep()
        assert operation.done, f"{operation.kind.value} does not end: {self.state}, {self.asks[-3:]}"
        assert operation.failure is None, operation.failure
        operation.acknowledge()

    def _sleep(self) -> None:
        wanted = [self.joined.next_deadline(self.now), self.joined.table.ready_partitions.next_deadline()]
        wanted.append(self.manager.next_deadline())
        wanted += [self.joined.table.next_check_at(node) for node in self.joined.table.nodes]
        at = min((one for one in wanted if one is not None), default=None)
        if at is not None:
            self.now = max(self.now, at)

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def hold(self, *kinds: type) -> None:
        """Asks of these kinds stay without answer."""
        self._held.update(kinds)

    def go_on(self) -> None:
        """What was held is answered."""
        self._held.clear()
        self.coordinate()

    def told(self, kind: type, *answers: TransactionResponse) -> None:
        """The next asks of this kind are answered so."""
        self._answers.setdefault(kind, deque()).extend(answers)

    def asked(self, kind: type) -> list[Any]:
        return [ask for ask in self.asks if isinstance(ask, kind)]

    def run(self) -> list[Request]:
        """As `JoinedRig`; then the coordinator answers, and what that allows is sent."""
        if self.joined.completing:
            self.joined.flush(now=self.now)
        sent = super().run()
        self.coordinate()
        return sent + super().run()

    def coordinate(self) -> None:
        """Answer what is asked, until nothing is."""
        for _ in range(100):
            if self.open_ask is None:
                self.open_ask = self.manager.next_request(self.now)
                if self.open_ask is None:
                    break
                self.asks.append(self.open_ask)
            if type(self.open_ask) in self._held:
                break
            ask, self.open_ask = self.open_ask, None
            scripted = self._answers.get(type(ask))
            answer = scripted.popleft() if scripted else self._answer(ask)
            self.manager.answered(ask, answer, now=self.now, chance=0.5)
            _ = self.joined.process_events(now=self.now)
        for look in self.manager.take_visibility_checks(self.now):
            stable = LastStableOffsetResult(0, _FAR if self.visible else 0)
            answer_to_look = (
                stable if look.kind is VisibilityCheckKind.LAST_STABLE_OFFSET else OpenTransactionsResult(29)
            )
            self.manager.visibility_checked(look, answer_to_look, now=self.now, chance=0.5)
        _ = self.joined.process_events(now=self.now)
        self._collect()

    def _answer(self, ask: TransactionRequest) -> TransactionResponse:
        match ask:
            case FindCoordinator():
                return FindCoordinatorResult(0, None, Coordinator(0, "h", 1))
            case InitProducerId():
                self.identity = ProducerIdAndEpoch(PRODUCER_ID, self.identity.epoch + 1)
                return ProducerIdResult(0, self.identity)
            case AddPartitions():
                return PartitionErrorsResult(dict.fromkeys(ask.partitions, 0))
            case AddOffsets():
                return ErrorCodeResult(0)
            case CommitOffsets():
                return PartitionErrorsResult({part: 0 for part, _ in ask.offsets})
            case EndTxn():
                if ask.version == 1:
                    self._mark()
                    return ProducerIdResult(0)
                self.identity = ProducerIdAndEpoch(PRODUCER_ID, self.identity.epoch + 1)
                self._mark()
                return ProducerIdResult(0, self.identity)
            case DescribeTransaction():
                return DescribeTransactionResult(0, "Ongoing", self.identity)

    def _mark(self) -> None:
        for log in self.logs.values():
            log.end_transaction(*self.identity)

    def log(self, partition: int) -> Log:
        """As `JoinedRig`, of the version of transactions."""
        log = super().log(partition)
        log.from_zero = self.version > 1
        return log

    def place(self, partition: int) -> tuple[str, int]:
        """As the manager names it."""
        return TOPIC, partition
