"""Random deaths of shards, router and brokers while five clients send at all levels: nothing is lost, doubled or out of order.

The seed comes from the commit; `PENSTOCK_SEED` repeats a run, `PENSTOCK_KILL_S` makes it longer (seconds of killing).
"""

import os
import time
from collections import Counter
from random import Random

import pytest

from tests.harness.embedded import BrokerProcess, EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.records import Found
from tests.harness.resender import Resender
from tests.harness.seeds import first_seed, named_in_failures
from tests.harness.stack import Stack

pytestmark = [pytest.mark.process, pytest.mark.soak]

SEED = first_seed()
KILL_S = float(os.environ.get("PENSTOCK_KILL_S", "6"))
CLIENTS = 5
SETTLE_S = 90.0


def values(client: int, seq: int) -> list[bytes]:
    return [b"%d:%d:%d:" % (client, seq, row) + b"p" * ((seq * 7 + row) % 200) for row in range(1 + seq % 9)]


def keys(seq: int) -> list[bytes] | None:
    return [b"%d" % ((seq + row) % 11) for row in range(1 + seq % 9)] if seq % 3 else None


class Killer:
    """Kills something now and then; brokers come back by themselves, the rest by the test."""

    def __init__(self, cluster: EmbeddedCluster, stack: Stack, chance: Random) -> None:
        self._cluster, self._stack, self._chance = cluster, stack, chance
        self._next = time.monotonic() + 0.5
        self._broker: tuple[float, BrokerProcess] | None = None
        self.kills: Counter[str] = Counter()

    def turn(self, *, kill: bool) -> None:
        now = time.monotonic()
        if self._broker is not None and now > self._broker[0]:
            self._broker[1].start()
            self._broker = None
        if not kill or now < self._next:
            return
        self._next = now + self._chance.uniform(0.1, 2.0)
        victim = self._chance.choice(["shard 0", "shard 1", "shards", "router", "all", "broker"])
        if victim == "broker" and self._broker is None:
            node = self._chance.choice(self._cluster.nodes)
            node.kill()
            self._broker = (now + self._chance.uniform(0.0, 1.5), node)
        if victim in ("shard 0", "shards", "all"):
            self._stack.kill_shard(0)
        if victim in ("shard 1", "shards", "all"):
            self._stack.kill_shard(1)
        if victim in ("router", "all"):
            self._stack.kill_router()
        self.kills[victim] += 1


def drive(stack: Stack, clients: list[Resender], killer: Killer) -> list[int]:
    """Send and kill for a while, then until everything is answered. How many frames each client sent."""
    sent = [0] * len(clients)
    began = time.monotonic()
    while True:
        killing = time.monotonic() - began < KILL_S
        for number, client in enumerate(clients):
            while killing and client.open_count < 60:
                client.add(sent[number], values(number, sent[number]), keys(sent[number]))
                sent[number] += 1
            client.turn(0.002)
        if not killing and not any(client.open_count for client in clients):
            return sent
        assert time.monotonic() - began < KILL_S + SETTLE_S, (SEED, [client.open_count for client in clients])
        stack.revive()
        killer.turn(kill=killing)


def check(found: list[Found], sent: list[int], clients: list[Resender]) -> None:
    counted = Counter(record.value for record in found)
    wanted = {value for number, frames in enumerate(sent) for seq in range(frames) for value in values(number, seq)}
    assert not wanted - counted.keys(), f"seed {SEED}: lost"
    assert not counted.keys() - wanted, f"seed {SEED}: phantoms"
    assert max(counted.values()) == 1, f"seed {SEED}: doubled"
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for record in sorted(found, key=lambda record: (record.partition, record.offset)):
        assert record.value is not None
        number, seq, row = (int(part) for part in record.value.split(b":")[:3])
        assert last.get((number, record.partition), (-1, -1)) < (seq, row), f"seed {SEED}: out of order"
        last[number, record.partition] = (seq, row)
    where = {(record.partition, record.offset): record.value for record in found}
    for number, client in enumerate(clients):
        for seq, answer in client.answers.items():
            assert len(answer) == 6, f"seed {SEED}: {answer} was refused"
            _, _, runs, partitions, refused, _ = answer
            assert refused is None
            for value, place in zip(values(number, seq), places(runs, partitions), strict=False):
                assert place[1] < 0 or where[place] == value, f"seed {SEED}: {value!r} is not at {place}"


def places(runs: list[list[int]] | None, partitions: list[int] | None) -> list[tuple[int, int]]:
    if runs is None or partitions is None:
        return []
    offsets: dict[int, list[int]] = {}
    for partition, first, count, _ in runs:
        offsets.setdefault(partition, []).extend([-1] * count if first < 0 else range(first, first + count))
    return [(partition, offsets[partition].pop(0)) for partition in partitions]


def test_random_deaths_lose_double_and_reorder_nothing() -> None:
    chance = Random(SEED)
    with named_in_failures(SEED), EmbeddedCluster(2, folders=True) as cluster:
        cluster.create_topic("s", partitions=6)
        kafka = {
            "linger.ms": chance.choice([0, 2, 20]),
            "compression.type": chance.choice(["none", "lz4", "zstd"]),
            "batch.size": chance.choice([2_048, 262_144]),
        }
        with Stack(cluster.bootstrap, shards=2, kafka=kafka) as stack:
            windows = [chance.choice([5, 40, 200]) for _ in range(CLIENTS)]
            clients = [
                Resender(stack.socket_path, f"client-{number}", "s", level=number % 3, window=window)
                for number, window in enumerate(windows)
            ]
            killer = Killer(cluster, stack, chance)
            sent = drive(stack, clients, killer)
            assert killer.kills
            stack.wait_ready()
            wait_until(
                lambda: stack.ask("stats")["records"]["pending"] == 0, seconds=SETTLE_S, what="delivery of the rest"
            )
            records = stack.ask("stats")["records"]
            assert records["received"] == records["refused"] + records["delivered"] + records["dead_lettered"]
            assert records["possible_duplicates"] == 0
            for client in clients:
                client.close()
            check(list(read_topic(cluster, "s")), sent, clients)
