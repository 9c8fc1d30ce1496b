"""One run of a transactional producer by its seed: transactions are begun, filled, committed and aborted while things go wrong.

What is held against it is what a reader of committed records sees: every transaction that was told committed, whole, once and in
order; none that was told aborted; and those of which nobody was told, whole or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random
from typing import Final, NamedTuple

from penstock.api.errors import PenstockError
from penstock.broker.cluster.controller import PlacementError
from penstock.broker.cluster.faults import MarkerFault, MarkerRule
from penstock.broker.log.batches import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from penstock.broker.log.decompression import Codec, decompress
from penstock.broker.log.internal_topics import TRANSACTIONS, internal_partition_of
from penstock.producer.direct.transactions_thread import PendingOperation, Transactions
from penstock.producer.transactions.states import FailedTransactionError, FailureKind, TransactionManagerState

from tests.fakes.model_broker import HEADER, read_values

from .faults import Faults
from .network import NODES, Network
from .world import PLACES, Place, World, on_simulated_time

NAME: Final = "simulated"
LOOK_S: Final = 0.01
RESOLVED_S: Final = 900.0
LEVEL_S: Final = 30.0


class Fate(Enum):
    """What the application knows of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNTOLD = "untold"


@dataclass
class Sent:
    """One transaction."""

    records: dict[Place, list[int]] = field(default_factory=dict)
    fate: Fate = Fate.OPEN


class Result(NamedTuple):
    """What there was in a run."""

    committed: int
    aborted: int
    untold: int
    renewed: int
    records: int
    events: list[str]


class Troubles(Faults):
    """What goes wrong with transactions as well: coordinators move and die, and markers are late."""

    def usual(self) -> list[Callable[[], None]]:
        return [*super().usual(), self.move_coordinator, self.end_coordinator, self.hold_markers, self.hold_markers]

    def _home(self) -> int:
        if self.cluster.node(self._running()[0]).topic(TRANSACTIONS) is None:
            return -1
        key = self.cluster.key(TRANSACTIONS, internal_partition_of(NAME))
        return self.cluster.controller.placements[key].leader

    def move_coordinator(self) -> None:
        if not self._running() or self._home() < 0:
            return
        node = self.rng.choice(NODES)
        try:
            self.cluster.elect(TRANSACTIONS, internal_partition_of(NAME), node, self.net.moment)
        except PlacementError:
            return
        self._note(f"{node} coordinates")

    def end_coordinator(self) -> None:
        running = self._running()
        node = self._home() if running else -1
        if node in running:
            self.cluster.kill(node, self.net.moment)
            self.net.ended(node)
            self._note(f"{node} coordinated and is killed")
            self._for(8.0, partial(self._start, node))

    def hold_markers(self) -> None:
        topic = self.rng.choice((None, "three", "one"))
        self.cluster.marker_rules.add(MarkerRule(MarkerFault.HOLD, topic=topic))
        self._note(f"markers for {topic or 'all topics'} are held")
        self._for(3.0, self._free_markers)

    def _free_markers(self) -> None:
        self.cluster.marker_rules.clear()
        self._note("no markers are held")


class Application:
    """Runs transactions until a moment; `over` when the last one has ended."""

    def __init__(self, world: World, rng: Random, until: float) -> None:
        self.world = world
        self.net = world.net
        self.rng = rng
        self.until = until
        self.sent: list[Sent] = []
        self.renewed = 0
        self.over = False
        self.log: list[str] = []
        self._numbers = dict.fromkeys(PLACES, 0)
        self._aborts = rng.choice((0.1, 0.5))
        self._long_s = rng.choice((0.1, 1.0, 4.0))
        self.net.after(0.0, self._initialise)

    @property
    def _transactions(self) -> Transactions:
        found = self.world.engine.transactions
        assert found is not None
        return found

    def _initialise(self) -> None:
        self._await(self._transactions.initialise(), self._initialised)

    def _await(self, waiting: PendingOperation, then: Callable[[PendingOperation], None]) -> None:
        """Look whether an operation has ended, as often as an application that waits for it would wake up."""
        if not waiting.operation.done:
            self.net.after(LOOK_S, lambda: self._await(waiting, then))
            return
        waiting.operation.acknowledge()
        then(waiting)

    def _initialised(self, waiting: PendingOperation) -> None:
        failure = waiting.operation.failure
        if failure is None:
            self._begin()
        elif failure.fatal:
            self._renew()
        else:
            self.net.after(0.5, self._initialise)

    def _renew(self) -> None:
        """Nothing is left but to close: the application is started anew."""
        self.renewed += 1
        self.log.append(f"{self.net.now - 1000:.3f} the producer is made anew")
        self.world.renew()
        self.net.after(self.rng.random(), self._initialise)

    def _begin(self) -> None:
        if self.net.now >= self.until:
            self.over = True
            return
        self._transactions.begin()
        one = Sent()
        self.sent.append(one)
        end = self.net.now + self.rng.random() * self._long_s
        places = self.rng.sample(PLACES, self.rng.randint(1, len(PLACES)))
        self._fill(one, places, end)

    def _fill(self, one: Sent, places: list[Place], end: float) -> None:
        if self.world.front.refusal is None and self.rng.random() < 0.9:
            place = self.rng.choice(places)
            sizes = [self.rng.choice((20, 60, 150, 600)) for _ in range(self.rng.choice((1, 1, 2, 5)))]
            first = self._numbers[place]
            self._numbers[place] += len(sizes)
            one.records.setdefault(place, []).extend(range(first, first + len(sizes)))
            values = [f"{place}/{first + n}:".encode().ljust(size, b".") for n, size in enumerate(sizes)]
            self.world.front.put(place, values, self.net.now, self.net.wall_ms)
        if self.net.now < end and self.world.front.refusal is None:
            self.net.after(self.rng.expovariate(1 / 0.05), lambda: self._fill(one, places, end))
        else:
            self._end(one, commit=self.rng.random() >= self._aborts)

    def _end(self, one: Sent, *, commit: bool) -> None:
        try:
            waiting = self._transactions.complete(commit=commit)
        except FailedTransactionError as failed:
            self._failed(one, fatal=failed.failure.fatal, kind=failed.failure.kind, ended=False)
            return
        except PenstockError as error:
            raise AssertionError(f"{commit=} in {self._transactions.manager.state}: {error}") from error
        self._await(waiting, lambda ended: self._ended(one, ended, commit=commit))

    def _ended(self, one: Sent, waiting: PendingOperation, *, commit: bool) -> None:
        failure = waiting.operation.failure
        if failure is None:
            one.fate = Fate.COMMITTED if commit else Fate.ABORTED
            self._note(one)
            self._begin()
        else:
            self._failed(one, fatal=failure.fatal, kind=failure.kind, ended=commit)

    def _failed(self, one: Sent, *, fatal: bool, kind: FailureKind, ended: bool) -> None:
        if fatal:
            # What was asked to be committed may be; what was not, never will: a successor aborts it.
            one.fate = Fate.UNTOLD if ended or kind is FailureKind.OUTCOME_UNKNOWN else Fate.ABORTED
            self._note(one)
            self._renew()
        elif self._transactions.manager.state is TransactionManagerState.ABORTABLE_ERROR:
            self._end(one, commit=False)
        else:
            one.fate = Fate.ABORTED
            self._note(one)
            self._begin()

    def _note(self, one: Sent) -> None:
        self.log.append(f"{self.net.now - 1000:.3f} {one.fate.value}: {one.records}")


class TransactionalWorld(World):
    """A producer that has a transactional id, and may be made anew."""

    def renew(self) -> None:
        """End the producer as its process would, and begin with another one."""
        self.engine.end()
        self.net.renew_loop()
        self.begin()


def run(seed: int) -> Result:
    """Raises AssertionError where something does not hold."""
    rng = Random(seed)
    net = Network(Random(rng.random()))
    net.cluster.set_limits(
        net.cluster.limits._replace(
            transaction_version=rng.choice((0, 1, 2, 2, 2)),
            marker_delay_ms=rng.choice((0, 0, 20, 500)),
            coordinator_load_ms=rng.choice((0, 0, 200, 2_000)),
            transaction_check_interval_s=1.0,
        )
    )
    with on_simulated_time(net):
        timeout_ms = rng.choice((3_000, 60_000, 60_000))
        world = TransactionalWorld(net, Random(rng.random()), transactional_id=NAME, transaction_timeout_ms=timeout_ms)
        troubles = Troubles(world, Random(rng.random()))
        until = net.now + rng.choice((5.0, 20.0))
        application = Application(world, Random(rng.random()), until)
        try:
            _trouble(world, troubles, rng, until)
            troubles.end_all()
            over = net.run(net.now + RESOLVED_S, lambda: application.over)
            assert over, f"unresolved: {world.engine.transactions and world.engine.transactions.manager.state}"
            _ = net.run(net.now + LEVEL_S)
            return check(world, application, troubles.log + application.log)
        finally:
            world.close()


def _trouble(world: World, troubles: Faults, rng: Random, until: float) -> None:
    net = world.net

    def trouble() -> None:
        if net.now < until:
            troubles.begin()
            net.after(rng.expovariate(1 / troubles.pause_s), trouble)

    net.after(rng.random() * 2, trouble)
    _ = net.run(until)


def check(world: World, application: Application, events: list[str]) -> Result:
    """Readers of committed records see what the application was told."""
    seen = {place: committed_of(world, place) for place in PLACES}
    counts = dict.fromkeys(Fate, 0)
    wanted: dict[Place, list[int]] = {place: [] for place in PLACES}
    for one in application.sent:
        counts[one.fate] += 1
        found = {
            (place, number) for place, numbers in one.records.items() for number in numbers if number in seen[place]
        }
        everything = {(place, number) for place, numbers in one.records.items() for number in numbers}
        committed = one.fate is Fate.COMMITTED or (one.fate is Fate.UNTOLD and bool(found))
        assert found == (everything if committed else set()), (
            f"{one.fate.value}: {sorted(found)} of {sorted(everything)}"
        )
        if committed:
            for place, numbers in one.records.items():
                wanted[place] += numbers
    assert counts[Fate.OPEN] == 0
    for place in PLACES:
        assert seen[place] == wanted[place], f"{place}: not in order, each once: {seen[place]}"
    for told in world.front.told.values():
        assert sorted(told) == list(range(len(told)))
    assert len(world.arena) == 0, "chunks whose records are resolved are kept"
    assert world.joined.table.accumulator.pool.lent_bytes == 0, "memory was not given back"
    records = sum(len(numbers) for numbers in seen.values())
    ended = (counts[Fate.COMMITTED], counts[Fate.ABORTED], counts[Fate.UNTOLD])
    return Result(*ended, application.renewed, records, events)


def committed_of(world: World, place: Place) -> list[int]:
    """Numbers of the records that a reader of committed records sees, by what a Fetch answer tells it."""
    key = world.cluster.key(*place)
    leader = world.cluster.controller.placements[key].leader
    partition = world.cluster.node(leader).replica_by_key(key)
    assert partition is not None
    log = partition.log
    assert log.last_stable_offset == log.end_offset, f"{place}: a transaction is left open"
    waiting = sorted((one.first_offset, one.producer_id) for one in log.aborted_transactions(0, log.end_offset))
    aborted: set[int] = set()
    found: list[int] = []
    for data in log.read(0, 1 << 40, below=log.last_stable_offset):
        head = read_header(data)
        last = head.base_offset + head.last_offset_delta
        while waiting and waiting[0][0] <= last:
            aborted.add(waiting.pop(0)[1])
        if head.attributes & CONTROL_BIT:
            aborted.discard(head.producer_id)
        elif not (head.attributes & TRANSACTIONAL_BIT and head.producer_id in aborted):
            records = decompress(Codec(head.attributes & 7), data[HEADER.size :], 1 << 24)
            for value in read_values(records, head.record_count):
                name, _, number = value.partition(b":")[0].rpartition(b"/")
                assert name.decode() == str(place)
                found.append(int(number))
    return found
