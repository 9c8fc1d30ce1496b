"""How a shard process lives and ends: killed, stopped, left alone by its router, told nonsense."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.daemon.leases import journals
from penstock.daemon.leases.batch_bounds import from_journal_slots
from penstock.runtime.host import boot_id
from penstock.runtime.process import ExitCode
from penstock.wire.messages import (
    OPEN,
    Anchor,
    BatchBounds,
    Nodes,
    Ping,
    Revoke,
    ShardHello,
    SliceUnreadable,
    StampRow,
    Stop,
)

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import start_tied
from tests.harness.readers import read_topic
from tests.process.shard_world import PRODUCER_ID, ShardWorld

pytestmark = pytest.mark.process
ROWS = [StampRow(PRODUCER_ID, 0, 0, 0)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as made:
        yield made


@pytest.fixture
def world(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[ShardWorld]:
    with ShardWorld(tmp_path, cluster, linger_ms=0, batch_size=4096) as made:
        yield made


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % (start + n) for n in range(count)]


# --- kill ------------------------------------------------------------------------------------------------------------


def test_whatever_the_moment_of_its_death_the_next_shard_goes_on_exactly_once(
    cluster: EmbeddedCluster, world: ShardWorld
) -> None:
    topic = cluster.create_topic("killed", 1)
    mark = 0
    cuts: list[BatchBounds] = []
    anchor: Anchor | None = None
    refs = [world.slice(topic, 0, values(100, 100 * n)) for n in range(100)]
    for life in range(6):
        path = world.greet()
        number = world.grant(topic, 0, pace=OPEN if anchor else "first", cuts=cuts, next_ordinal=mark, anchor=anchor)
        goal = mark + 1500
        # A fast shard must leave something for those that follow it.
        end = goal + 400 if life < 5 else 10_000
        world.hand(*(ref for ref in refs if mark < ref.first + ref.count <= end))
        if anchor is None:
            world.open(number)
        if life < 5:
            _ = world.router.until(lambda goal=goal: world.router.acked_to(100) >= goal)
            world.process.kill()
            _ = world.ended()
        else:
            _ = world.router.until(lambda: world.router.acked_to(100) == 10_000)
        item = world.router.done[-1]
        mark = world.router.acked_to(100)
        anchor = Anchor(item.base_offset, item.time_ms, item.time_ms, 0)
        read = journals.read(path, boot_id())
        assert read.is_complete
        found = from_journal_slots(read.slots, cuts, ROWS, mark)
        assert found.certain
        cuts = found.bounds
        if life < 5:
            world.start()
    assert [one.value for one in read_topic(cluster, topic)] == values(10_000)


def test_a_cut_is_in_the_journal_until_the_router_has_written_its_outcome(
    cluster: EmbeddedCluster, world: ShardWorld
) -> None:
    topic = cluster.create_topic("journaled", 1)
    path = world.greet()
    number = world.grant(topic, 0)
    world.router.acknowledges = False
    world.hand(world.slice(topic, 0, values(1)))
    _ = world.router.until(lambda: world.router.acked_to(number) == 1)
    (slot,) = journals.read(path, boot_id()).slots
    assert (slot.partition, slot.first, slot.count, slot.producer_id) == (number, 0, 1, PRODUCER_ID)
    world.router.acknowledges = True
    world.router.say(Ping())
    _ = world.router.until(lambda: not journals.read(path, boot_id()).slots)


# --- stop ------------------------------------------------------------------------------------------------------------


def test_stop_gives_everything_back_and_ends_with_status_zero(cluster: EmbeddedCluster, world: ShardWorld) -> None:
    topic = cluster.create_topic("stopped", 2)
    _ = world.greet()
    numbers = [world.grant(topic, index) for index in range(2)]
    world.hand(world.slice(topic, 0, values(1)))
    _ = world.router.until(lambda: world.router.acked_to(numbers[0]) == 1)
    world.router.say(Stop(5000))
    assert [world.router.revoked(number).cuts for number in numbers] == [[], []]
    world.router.say(Ping())
    assert world.ended() == ExitCode.OK


def test_stop_waits_for_what_is_on_the_wire_and_no_longer_than_told(
    cluster: EmbeddedCluster, world: ShardWorld
) -> None:
    topic = cluster.create_topic("stopped-late", 1)
    _ = world.greet()
    number = world.grant(topic, 0)
    world.hand(world.slice(topic, 0, values(1)))
    world.open(number)
    cluster.nodes[0].process.send_signal(signal.SIGSTOP)
    try:
        world.hand(world.slice(topic, 0, values(1)))
        _ = world.router.until(lambda: any(node.in_flight for load in world.router.loads[-1:] for node in load.nodes))
        world.router.say(Stop(300))
        assert world.router.revoked(number).cuts == [BatchBounds(1, 1, 0)]
    finally:
        cluster.nodes[0].process.send_signal(signal.SIGCONT)
    world.router.say(Ping())
    assert world.ended() == ExitCode.OK


def test_a_signal_of_the_group_is_left_to_the_router(cluster: EmbeddedCluster, world: ShardWorld) -> None:
    topic = cluster.create_topic("signalled", 1)
    _ = world.greet()
    number = world.grant(topic, 0)
    world.process.send_signal(signal.SIGTERM)
    world.hand(world.slice(topic, 0, values(1)))
    _ = world.router.until(lambda: world.router.acked_to(number) == 1)
    world.router.say(Stop(1000))
    _ = world.router.revoked(number)
    world.router.say(Ping())
    assert world.ended() == ExitCode.OK


def test_a_shard_that_nobody_welcomed_ends_at_a_signal(world: ShardWorld) -> None:
    _ = world.router.first(ShardHello)
    world.process.send_signal(signal.SIGTERM)
    assert world.ended() == ExitCode.OK


# --- the router ------------------------------------------------------------------------------------------------------


def test_a_shard_ends_with_its_router(world: ShardWorld) -> None:
    stand_in = start_tied([sys.executable, "-c", "import signal; signal.pause()"])
    world.router.greet(pid=stand_in.pid)
    world.router.say(Nodes([]))
    world.router.until(lambda: world.router.loads)
    stand_in.kill()
    _ = stand_in.wait(60)
    assert world.ended() == ExitCode.PEER_GONE


def test_other_settings_than_the_routers_end_it_with_a_clear_line(world: ShardWorld) -> None:
    world.router.greet(digest="another")
    assert world.ended() == ExitCode.CONFIGURATION
    assert "settings_mismatch" in world.log()
    assert not list(world.settings.journal_dir.glob("*")) if world.settings.journal_dir.exists() else True


@pytest.mark.parametrize("fault", ["gap", "repeat", "foreign", "noise"])
def test_a_break_of_the_hop_ends_the_shard(world: ShardWorld, fault: str) -> None:
    _ = world.router.welcome()
    match fault:
        case "gap":
            world.router.say(Ping(), seq=9)
        case "repeat":
            world.router.say(Ping(), seq=0)
        case "foreign":
            world.router.say(Ping(), router_start=8)
        case _:
            world.router.socket.send_multipart([world.router.peer, b"\x93\x01\x02\x03"])
    assert world.ended() == ExitCode.PEER_GONE
    assert "bus_failed" in world.log()


def test_a_second_grant_of_a_held_partition_breaks_it(cluster: EmbeddedCluster, world: ShardWorld) -> None:
    topic = cluster.create_topic("twice", 1)
    _ = world.greet()
    _ = world.grant(topic, 0)
    _ = world.grant(topic, 0)
    assert world.ended() == ExitCode.INVARIANT_VIOLATED
    assert "granted twice" in world.log()


# --- brokers and slices ----------------------------------------------------------------------------------------------


def test_a_broker_that_is_killed_and_comes_back_has_everything_once_and_in_order(tmp_path: Path) -> None:
    with EmbeddedCluster(1, folders=True) as own, ShardWorld(tmp_path, own, linger_ms=0, batch_size=4096) as world:
        topic = own.create_topic("restarted", 1)
        _ = world.greet()
        number = world.grant(topic, 0)
        refs = [world.slice(topic, 0, values(100, 100 * n)) for n in range(60)]
        world.hand(*refs)
        world.open(number)
        for goal in (1000, 3000):
            _ = world.router.until(lambda goal=goal: world.router.acked_to(number) >= goal)
            own.nodes[0].kill()
            own.nodes[0].start()
        _ = world.router.until(lambda: world.router.acked_to(number) == 6000)
        assert [one.value for one in read_topic(own, topic)] == values(6000)


def test_a_damaged_slice_stops_its_partition_and_no_other(cluster: EmbeddedCluster, world: ShardWorld) -> None:
    topic = cluster.create_topic("damaged", 2)
    _ = world.greet()
    sick, well = (world.grant(topic, index) for index in range(2))
    bad = world.slice(topic, 0, values(3))
    world.hand(bad._replace(offset=bad.offset - 1), world.slice(topic, 1, values(1)))
    told = world.router.first(SliceUnreadable)
    assert (told.partition, told.first, told.count) == (sick, 0, 3)
    _ = world.router.until(lambda: world.router.acked_to(well) == 1)
    world.router.say(Revoke(sick, world.generation[sick]))
    assert world.router.revoked(sick).cuts == []


def test_by_name_where_a_topic_id_is_not_known(cluster: EmbeddedCluster, world: ShardWorld) -> None:
    topic = cluster.create_topic("by-name", 1)
    _ = world.greet()
    number = world.grant(topic, 0, by_name=True)
    world.hand(world.slice(topic, 0, values(2)))
    world.open(number)
    _ = world.router.until(lambda: world.router.acked_to(number) == 2)


def test_an_idle_shard_sleeps(cluster: EmbeddedCluster, world: ShardWorld) -> None:
    topic = cluster.create_topic("idle", 1)
    _ = world.greet()
    number = world.grant(topic, 0)
    world.hand(world.slice(topic, 0, values(1)))
    _ = world.router.until(lambda: world.router.acked_to(number) == 1)
    before = len(world.router.loads)
    _ = world.router.until(lambda: len(world.router.loads) >= before + 3)
    spent = world.router.loads[-1].counters["cpu_us"] - world.router.loads[-3].counters["cpu_us"]
    assert spent < 100_000, f"{spent} us of CPU in two idle seconds"


def test_credit_follows_what_was_consumed(cluster: EmbeddedCluster, world: ShardWorld) -> None:
    topic = cluster.create_topic("credited", 1)
    _ = world.greet()
    number = world.grant(topic, 0)
    _ = world.router.until(lambda: world.router.credit.get(0))
    first = world.router.credit[0]
    handed = 0
    while handed < first // 4:
        ref = world.slice(topic, 0, [b"x" * 10_000] * 50)
        handed += ref.length
        world.hand(ref)
    world.open(number)
    _ = world.router.until(lambda: world.router.credit[0] > first)
    assert world.router.credit[0] <= first + handed
