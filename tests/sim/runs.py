"""One run by its seed: trouble for a while, then peace, then what must hold."""

from random import Random
from typing import NamedTuple

from penstock.broker.log.decompression import Codec, decompress
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailureKind, Failed

from tests.fakes.model_broker import HEADER, read_values

from .faults import Faults
from .network import NODES, Network
from .world import PLACES, Place, World, on_simulated_time

RESOLVED_S = 600.0
"""Virtual time by which everything is resolved once all is well."""
LEVEL_S = 20.0
"""Virtual time in which replicas become alike."""
NEVER_WRITTEN = (DeliveryFailureKind.REFUSED, DeliveryFailureKind.EXPIRED)


class Result(NamedTuple):
    """What there was in a run, so that nobody takes runs in which nothing happens for proof."""

    delivered: int
    may_be_written: int
    never_written: int
    requests: int
    peace_s: float
    events: list[str]


def run(seed: int) -> Result:
    """Raises AssertionError where something does not hold."""
    rng = Random(seed)
    net = Network(Random(rng.random()))
    with on_simulated_time(net):
        world = World(net, Random(rng.random()))
        faults = Faults(world, Random(rng.random()))
        try:
            _play(world, faults, rng)
            faults.end_all()
            began = net.now
            over = net.run(began + RESOLVED_S, lambda: world.joined.idle)
            assert over, f"unresolved: {_unresolved(world)}"
            peace_s = net.now - began
            _ = net.run(net.now + LEVEL_S)
            return check(world, peace_s, faults.log)
        finally:
            world.close()


def _play(world: World, faults: Faults, rng: Random) -> None:
    net = world.net
    until = net.now + rng.choice((3.0, 8.0, 25.0))
    rate_s = rng.choice((0.03, 0.1, 0.4))
    places = rng.sample(PLACES, rng.randint(1, len(PLACES)))

    def put() -> None:
        sizes = [rng.choice((20, 60, 150, 600)) for _ in range(rng.choice((1, 1, 2, 5, 12)))]
        world.put(rng.choice(places), sizes)
        if net.now < until:
            net.after(rng.expovariate(1 / rate_s), put)

    def trouble() -> None:
        if net.now < until:
            faults.begin()
            net.after(rng.expovariate(1 / faults.pause_s), trouble)

    put()
    net.after(rng.random() * 2, trouble)
    _ = net.run(until)


def _unresolved(world: World) -> list[str]:
    found: list[str] = []
    for part in world.joined.partitions:
        if part.slices:
            lease = world.joined.table.partitions.get(part.number)
            state = "no lease" if lease is None else f"{lease.mode.name}, {lease.last_error}, {list(lease.unresolved)}"
            found.append(f"{part.topic}/{part.index} {part.ack_mark}-{part.end} {state}; {part}")
    return found


# --- what must hold --------------------------------------------------------------------------------------------------


def check(world: World, peace_s: float, events: list[str]) -> Result:
    """Every record has one outcome, and the logs are as the outcomes say."""
    delivered = may_be = never = 0
    for place in PLACES:
        logged = log_of(world, place)
        numbers = list(logged.values())
        assert numbers == sorted(set(numbers)), f"{place}: not in order, each once: {numbers}"
        offsets = {number: offset for offset, number in logged.items()}
        told = world.front.told[place]
        assert sorted(told) == list(range(world.front.ends[place])), f"{place}: records without an outcome"
        for number, one in told.items():
            if isinstance(one, Delivered):
                delivered += 1
                assert number in offsets, f"{place}: record {number} was acknowledged and is not in the log"
                if one.base_offset >= 0:
                    at = one.base_offset + number - one.first
                    assert offsets[number] == at, f"{place}: record {number} is at {offsets[number]}, not at {at}"
            elif one.failure.kind in NEVER_WRITTEN:
                never += 1
                assert number not in offsets, f"{place}: record {number} is in the log: {one.failure}"
            else:
                may_be += 1
                assert one.failure.kind is DeliveryFailureKind.MAY_BE_WRITTEN, one.failure
    assert delivered + may_be + never == sum(world.front.ends.values())
    # Nothing that was acknowledged is lost here, so nobody says so.
    assert not [one for one in world.notices if "acknowledged records are gone" in one.text]
    _check_memory(world)
    return Result(delivered, may_be, never, world.net.served, peace_s, events)


def _check_memory(world: World) -> None:
    table = world.joined.table
    assert world.front.failure is None
    assert len(world.arena) == 0, "chunks whose records are resolved are kept"
    assert table.accumulator.pool.lent_bytes == 0, "memory was not given back"
    assert table.in_flight == 0
    assert not table.stale_in_flight
    counted = sum(isinstance(one, Delivered) for told in world.front.told.values() for one in told.values())
    ghosts = sum(_is_ghost(one) for told in world.front.told.values() for one in told.values())
    assert counted <= table.counters["records_acked"] <= counted + ghosts


def _is_ghost(one: Delivered | Failed) -> bool:
    return isinstance(one, Failed) and one.failure.kind is DeliveryFailureKind.MAY_BE_WRITTEN


def log_of(world: World, place: Place) -> dict[int, int]:
    """Offset: number of the record, in the log that all replicas have."""
    key = world.cluster.key(*place)
    placement = world.cluster.controller.placements[key]
    logs: list[list[bytes]] = []
    for node in NODES:
        if node in placement.replicas:
            partition = world.cluster.node(node).replica_by_key(key)
            assert partition is not None
            logs.append(partition.log.read(0, 1 << 40, below=1 << 40))
    assert all(log == logs[0] for log in logs), f"{place}: replicas differ"
    found: dict[int, int] = {}
    for data in logs[0]:
        head = HEADER.unpack_from(data)
        records = decompress(Codec(head[5] & 7), data[HEADER.size :], 1 << 24)
        for index, value in enumerate(read_values(records, head[12])):
            name, _, number = value.partition(b":")[0].rpartition(b"/")
            assert name.decode() == str(place)
            found[head[0] + index] = int(number)
    return found
