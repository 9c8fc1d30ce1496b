"""The bus with real processes at its other end."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from penstock.daemon.leases.bus import Bus, BusSettings
from penstock.runtime.clock import monotonic
from penstock.runtime.loop import Loop
from penstock.wire.journal import JournalSlot
from penstock.wire.messages import BatchesDone, Node, Nodes, RouterMessage, ShardMessage

pytestmark = pytest.mark.process
WAIT_S = 60.0
START = 4_711


@dataclass
class Events:
    """What the bus told, in order."""

    told: list[tuple[str, int]] = field(default_factory=list)
    messages: list[ShardMessage] = field(default_factory=list)
    slots: list[JournalSlot] = field(default_factory=list)
    facts: list[bool] = field(default_factory=list)

    def shard_connected(self, seat: int, now: float) -> None:
        self.told.append(("greeted", seat))

    def shard_ready(self, seat: int, now: float) -> None:
        self.told.append(("ready", seat))

    def shard_dying(self, seat: int, now: float) -> None:
        self.told.append(("failing", seat))

    def shard_dead(self, seat: int, slots: Iterable[JournalSlot], now: float, *, facts: bool) -> None:
        self.told.append(("dead", seat))
        self.slots += slots
        self.facts.append(facts)

    def message(self, seat: int, message: ShardMessage, now: float) -> None:
        self.messages.append(message)


class Child:
    """A talking shard."""

    def __init__(self, world: "World", seat: int, start: int, digest: str) -> None:
        script = Path(__file__).parent.parent / "harness" / "bus_shard.py"
        words = [sys.executable, str(script), str(world.path), str(world.journals), str(seat), str(start), digest]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._incoming: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._incoming.put(line.strip())

    def order(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def said(self, word: str) -> bool:
        while not self._incoming.empty():
            self.lines.append(self._incoming.get())
        return any(line.startswith(word) for line in self.lines)

    def hears(self, word: str) -> None:
        """Wait for a line while the bus stands still."""
        while not self.said(word):
            self.lines.append(self._incoming.get(timeout=WAIT_S))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class World:
    """A bus, its loop, and the shards a test starts."""

    def __init__(self, directory: Path, *, silence_ms: int = 30_000) -> None:
        self.path = directory / "bus" / "router"
        self.journals = directory / "journals"
        self.journals.mkdir()
        self.events = Events()
        self.loop = Loop()
        settings = BusSettings(self.path, self.journals, 2, START, "spool", "digest", 1_000, silence_ms)
        self.bus = Bus(self.loop, settings, self.events)
        self.outbox: list[tuple[int, RouterMessage]] = []
        self.children: list[Child] = []
        self.writes = True
        self.loop.add_upkeep(self._upkeep)

    def _upkeep(self, now: float) -> float | None:
        self.bus.tick(now)
        if self.writes:
            self.bus.flush(self.outbox, now)
        return min(now + 0.02, self.bus.next_deadline() or now + 0.02)

    def shard(self, seat: int = 0, *, start: int = 11, digest: str = "digest") -> Child:
        child = Child(self, seat, start, digest)
        self.children.append(child)
        return child

    def ready(self, seat: int = 0, *, start: int = 11) -> Child:
        child = self.shard(seat, start=start)
        self.until(lambda: child.said("journal"))
        child.order("name")
        self.until(lambda: ("ready", seat) in self.events.told)
        return child

    def until(self, true: Callable[[], bool]) -> None:
        give_up = monotonic() + WAIT_S
        deadline: float | None = monotonic()
        while not true():
            assert monotonic() < give_up, (self.events, [child.lines for child in self.children])
            deadline = self.loop.run_once(deadline)

    def close(self) -> None:
        for child in self.children:
            child.end()
        self.bus.close()
        self.loop.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_shard_is_ready_only_when_its_journal_is_named_and_locked(world: World) -> None:
    child = world.shard()
    world.until(lambda: child.said("journal"))
    assert world.events.told == [("greeted", 0)]

    child.order("name")
    world.until(lambda: ("ready", 0) in world.events.told)

    world.outbox.append((0, Nodes([Node(1, "h", 9, "", 5)])))
    world.until(lambda: child.said("heard Nodes"))
    assert world.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_killed_shard_is_dead_once_reaped_and_its_journal_is_read(world: World) -> None:
    child = world.ready()
    child.order("cut 3 1 10 5")
    child.order("cut 3 1 15 5")
    world.until(lambda: child.said("did cut") and child.lines.count("did cut") == 2)
    journal = next(world.journals.iterdir())

    os.kill(child.process.pid, signal.SIGKILL)
    world.until(lambda: ("dead", 0) in world.events.told)

    cuts = [(slot.partition, slot.generation, slot.first, slot.count) for slot in world.events.slots]
    assert cuts == [(3, 1, 10, 5), (3, 1, 15, 5)]
    assert world.events.facts == [True]
    world.until(lambda: not journal.exists())


def test_the_journal_stays_until_the_routers_log_is_written(world: World) -> None:
    child = world.ready()
    journal = next(world.journals.iterdir())
    world.writes = False
    os.kill(child.process.pid, signal.SIGKILL)
    world.until(lambda: ("dead", 0) in world.events.told)

    assert journal.exists()
    world.writes = True
    world.until(lambda: not journal.exists())


def test_what_a_shard_said_before_its_end_counts(world: World) -> None:
    child = world.ready()
    child.order("done 3 1 0 1")
    child.hears("did done")
    assert world.bus._socket.poll(WAIT_S * 1000)
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()

    world.until(lambda: ("dead", 0) in world.events.told)

    assert [type(message) for message in world.events.messages] == [BatchesDone]


def test_an_acknowledgement_waits_for_the_write(world: World) -> None:
    child = world.ready()
    world.writes = False
    child.order("done 3 1 0 1")
    world.until(lambda: len(world.events.messages) == 1)
    acked = "acked 2"  # two HELLOs, then DONE
    assert not child.said(acked)

    world.writes = True
    world.until(lambda: child.said(acked))


@pytest.mark.parametrize("order", ["skip", "garbage", "parts"])
def test_a_broken_hop_kills_the_shard(world: World, order: str) -> None:
    child = world.ready()

    child.order(order)
    world.until(lambda: ("dead", 0) in world.events.told)

    assert world.events.told[-2:] == [("failing", 0), ("dead", 0)]
    assert child.process.wait() == -signal.SIGKILL


def test_a_journal_that_is_not_its_own_kills_the_shard(world: World) -> None:
    first = world.ready(1, start=21)
    assert first.said("journal")
    child = world.shard(0)
    world.until(lambda: child.said("journal"))

    child.order("name shard-1-21.journal")
    world.until(lambda: ("dead", 0) in world.events.told)

    assert ("ready", 0) not in world.events.told
    assert ("dead", 1) not in world.events.told


def test_a_silent_shard_is_killed_and_so_is_a_stopped_one(tmp_path: Path) -> None:
    world = World(tmp_path, silence_ms=1_000)
    try:
        child = world.ready()
        os.kill(child.process.pid, signal.SIGSTOP)

        world.until(lambda: ("dead", 0) in world.events.told)

        assert child.process.wait() == -signal.SIGKILL
    finally:
        world.close()


def test_a_second_holder_of_a_live_seat_is_told_to_leave_and_the_first_stays(world: World) -> None:
    first = world.ready()
    second = world.shard(0, start=12)
    world.until(lambda: second.said("heard Stop"))

    world.until(lambda: second.process.poll() is not None)

    assert world.events.told == [("greeted", 0), ("ready", 0)]
    assert first.process.poll() is None


def test_a_successor_that_greets_before_the_death_was_seen_takes_the_seat(world: World) -> None:
    first = world.ready()
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = world.shard(0, start=12)

    world.until(lambda: second.said("journal"))

    assert world.events.told == [("greeted", 0), ("ready", 0), ("dead", 0), ("greeted", 0)]


def test_a_shard_with_other_settings_hears_ours_and_never_counts(world: World) -> None:
    child = world.shard(digest="other")
    world.until(lambda: child.said("heard ShardWelcome"))

    world.until(lambda: child.process.poll() is not None)

    assert world.events.told == []


def test_a_journal_still_locked_after_its_owners_end_grants_nothing_until_it_is_free(world: World) -> None:
    child = world.ready()
    child.order("child")
    world.until(lambda: child.said("child"))
    grandchild = int(next(line for line in child.lines if line.startswith("child")).split()[1])
    os.kill(child.process.pid, signal.SIGKILL)
    world.until(lambda: ("failing", 0) in world.events.told)
    assert ("dead", 0) not in world.events.told

    os.kill(grandchild, signal.SIGKILL)
    world.until(lambda: ("dead", 0) in world.events.told)
