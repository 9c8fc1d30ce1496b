"""The sender of a direct producer, whole: `InProcessDelivery`, its links, its metadata and their connections, over a simulated network.

Only the process is missing: the loop, the clock, sockets, names and chance are the simulation's, and the front is a script.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

from penstock.api.errors import PenstockError
from penstock.config.direct import direct_settings
from penstock.producer.accumulator.chunk_store import ChunkStore, SealedChunk
from penstock.producer.delivery.assignment import PartitionAlarm
from penstock.producer.delivery.in_process import InProcessDelivery
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryOutcome, Failed, Released
from penstock.producer.direct import sender_loop
from penstock.producer.metadata import client
from penstock.producer.metadata.cluster import Cluster
from penstock.producer.network import socket_options
from penstock.producer.sender import broker_link
from penstock.producer.telemetry.metrics import ProducerMetrics
from penstock.producer.telemetry.push import ClientInstanceId
from penstock.producer.transactions import coordinators

from tests.fakes.segments import Row, slice_bytes
from tests.harness.broker_mutants import Changes

from .network import Network

WAKE_FD = 3


class Place(NamedTuple):
    """A partition."""

    topic: str
    part: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.part}"


THREE = [Place("three", part) for part in range(3)]
"""Three replicas, two of them in sync at least."""
ONE = [Place("one", part) for part in range(2)]
PLACES = THREE + ONE


class Front:
    """In place of the producer's front: keeps chunks until their records are resolved, and what was told of each record."""

    def __init__(self, arena: ChunkStore) -> None:
        self.flushing = False
        self.nodes_under_pressure: frozenset[int] = frozenset()
        self.told: dict[Place, dict[int, Delivered | Failed]] = {place: {} for place in PLACES}
        self.ends = dict.fromkeys(PLACES, 0)
        self.failure: DeliveryFailure | None = None
        self.refusal: PenstockError | None = None
        """Why no records are taken."""
        self.place_of: Callable[[int], Place] = lambda _number: PLACES[0]
        self._arena = arena
        self._due: list[SealedChunk] = []
        self._chunks: dict[Place, list[tuple[SealedChunk, set[int]]]] = {place: [] for place in PLACES}

    def put(self, place: Place, values: Sequence[bytes], now: float, wall_ms: int) -> None:
        """A chunk of records is sealed."""
        first = self.ends[place]
        self.ends[place] += len(values)
        data = slice_bytes(place.topic, place.part, first, [Row(value) for value in values], wall_ms=wall_ms)
        segment = self._arena.put(bytearray(data), len(data))
        sealed = SealedChunk(*place, segment, len(data), first, len(values), int(now * 1000), wall_ms)
        self._due.append(sealed)
        self._chunks[place].append((sealed, set(range(first, first + len(values)))))

    # --- as the thread's port ----------------------------------------------------------------------------------------

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        _ = now, all_chunks
        due, self._due = self._due, []
        return due

    def next_deadline(self, now: float) -> float | None:
        return now if self._due else None

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        for one in outcomes:
            place = self.place_of(one.partition)
            for ordinal in range(one.first, one.first + one.count):
                self._tell(place, ordinal, one)

    def _tell(self, place: Place, ordinal: int, one: DeliveryOutcome) -> None:
        if not isinstance(one, Released):
            assert ordinal not in self.told[place], f"{place} record {ordinal} has two outcomes"
            self.told[place][ordinal] = one
        if isinstance(one, Failed) and not one.released:
            return
        for sealed, left in self._chunks[place]:
            if ordinal in left:
                left.remove(ordinal)
                if not left:
                    self._arena.drop(sealed.segment)
                    self._chunks[place].remove((sealed, left))
                return
        raise AssertionError(f"{place} record {ordinal} was resolved before")

    def cluster_changed(self, cluster: Cluster) -> None:
        """Nobody waits for it."""

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        """Nobody waits for metadata."""

    def set_append_error(self, reason: PenstockError | None) -> None:
        self.refusal = reason

    def update_partition_load(self, waited_s: Callable[[int], float]) -> None:
        """Partitions are given."""

    def sender_ended(self, failure: DeliveryFailure | None) -> None:
        self.failure = failure


@contextmanager
def on_simulated_time(net: Network) -> Iterator[None]:
    """The producer's modules have their time, chance, loop, names and sockets from the simulation."""
    changes = Changes()
    try:
        for name, value in {
            "monotonic": lambda: net.now,
            "wall_ms": lambda: net.wall_ms,
            "random": SimpleNamespace(random=net.rng.random),
            "Loop": lambda: net.loop,
        }.items():
            changes.swap(sender_loop, name, value)
        system = type(socket_options.OPERATING_SYSTEM)
        changes.swap(system, "now", lambda _self: net.now)
        changes.swap(system, "open", lambda _self, family: net.open(family))
        changes.swap(broker_link, "Resolver", lambda _loop: net.names)
        changes.swap(client, "Resolver", lambda _loop: net.names)
        changes.swap(coordinators, "Resolver", lambda _loop: net.names)
        yield
    finally:
        changes.take_back()


class World:
    """A producer and a cluster. To be used within `on_simulated_time`."""

    def __init__(self, net: Network, rng: Random, **more: object) -> None:
        """`more`: settings of the producer, by their names with underscores for the dots."""
        self.net = net
        self.rng = rng
        self.cluster = net.cluster
        self.batch_bytes = rng.choice((150, 400, 2_000, 16_384))
        request_ms = rng.choice((800, 1_500, 4_000))
        linger_ms = rng.choice((0, 0, 20))
        self.delivery_ms = request_ms + linger_ms + rng.choice((10, 500, 4_000, 20_000, 120_000))
        self.settings = direct_settings(
            {
                "bootstrap.servers": "10.0.0.1:9092,10.0.0.2:9092,10.0.0.3:9092",
                "client.id": "simulated",
                "batch.size": self.batch_bytes,
                "linger.ms": linger_ms,
                "compression.type": rng.choice(("none", "none", "lz4", "zstd")),
                "request.timeout.ms": request_ms,
                "delivery.timeout.ms": self.delivery_ms,
                "max.in.flight.requests.per.connection": rng.choice((1, 3, 5, 5, 5)),
                "retry.backoff.ms": rng.choice((20, 100)),
                "socket.connection.setup.timeout.ms": 2_000,
                "metadata.max.age.ms": 5_000,
                "buffer.memory": rng.choice((1 << 15, 1 << 20)),
                "max.request.size": 8_192,
                "enable.metrics.push": False,
            }
            | {name.replace("_", "."): value for name, value in more.items()}
        )
        for topic, places, replicas, least in (("three", THREE, 3, "2"), ("one", ONE, 1, "1")):
            wanted = (("min.insync.replicas", least),) if least != "1" else ()
            assert self.cluster.controller.create(topic, len(places), wanted, replicas) is not None
        self.cluster.run_until_stable(net.moment)
        self.notices: list[PartitionAlarm] = []
        self.begin()

    def begin(self) -> None:
        """A new producer, as after the start of its process."""
        self.arena = ChunkStore(1 << 14, 0)
        self.front = Front(self.arena)
        meters = ProducerMetrics(self.settings, None, now=self.net.now)
        self.engine = sender_loop.SenderLoop(
            self.settings, self.front, self.arena, WAKE_FD, lambda: None, meters, ClientInstanceId()
        )
        take = self.joined.take_alarms
        self.joined.take_alarms = lambda: self._noted(take())  # type: ignore[method-assign]
        self.front.place_of = lambda number: Place(*self.joined.topic_of(number))
        for topic in ("three", "one"):
            self.engine.metadata.want(topic)

    def _noted(self, notices: list[PartitionAlarm]) -> list[PartitionAlarm]:
        self.notices += notices
        return notices

    @property
    def joined(self) -> InProcessDelivery:
        return self.engine.delivery

    def put(self, place: Place, sizes: Sequence[int]) -> None:
        """Records of these sizes, each of which tells who it is."""
        first = self.front.ends[place]
        values = [f"{place}/{first + n}:".encode().ljust(size, b".") for n, size in enumerate(sizes)]
        self.front.put(place, values, self.net.now, self.net.wall_ms)

    def close(self) -> None:
        """End the producer."""
        self.engine.end()
