"""Penstock beside confluent-kafka: records a second and CPU a record, on one real broker, in one run.

    python bench/throughput.py                 every case, five rounds: about ten minutes
    python bench/throughput.py --quick         100 B keyed lz4 only, three rounds
    python bench/throughput.py --write         also writes bench/results/DATE-throughput.md

Penstock is the client process with `send_many` of 1,000 records, the router and two shards, spool on, level `delivered`;
confluent-kafka is one client process with `produce()` without callback, idempotent. Both have the same batch.size and
linger. Runs alternate. What was delivered is counted by end offsets. The broker's CPU is told apart. Where there are four
cores or more, clients and daemon have the first two and the broker the others.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.client import WARM_RECORDS, Result, Task  # noqa: E402  (found through the line above)
from tests.harness.daemon import Daemon, cpu_seconds  # noqa: E402
from tests.harness.kafka_cluster import OwnCluster  # noqa: E402
from tests.harness.kafka_node import JavaOptions  # noqa: E402
from tests.harness.processes import end, start_tied  # noqa: E402

VERSION: Final = "4.3.1"
PARTITIONS: Final = 12
BATCH_BYTES: Final = 262_144
LINGER_MS: Final = 5
SIDES: Final = ("penstock", "confluent")


class Case(NamedTuple):
    """One kind of record."""

    value_bytes: int
    keyed: bool
    codec: str

    @property
    def title(self) -> str:
        """For people."""
        size = "1 KB" if self.value_bytes == 1024 else f"{self.value_bytes} B"
        return f"{size} {'keyed' if self.keyed else 'keyless'} {self.codec}"

    def topic(self, side: str) -> str:
        """Each side has its own topics; the codec is at the end, where the daemon's settings match it."""
        return f"{side}-{self.value_bytes}-{'keyed' if self.keyed else 'keyless'}-{self.codec}"


class Cost(NamedTuple):
    """One run of one side, per record."""

    rate: float
    """Records a second."""
    cpu_us: float
    """All processes of this side."""
    broker_us: float
    parts: dict[str, float]
    """CPU of each process of this side, in µs a record."""


@dataclass(slots=True)
class Rounds:
    """All runs of one case."""

    costs: dict[str, list[Cost]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def middle(self, side: str, figure: str) -> float:
        """The median of a figure over the rounds."""
        return median(float(getattr(cost, figure)) for cost in self.costs[side])

    def ratio(self, figure: str) -> float:
        """Penstock's figure by confluent-kafka's of the same round, the median of that."""
        return median(self.ratios(figure))

    def ratios(self, figure: str) -> list[float]:
        """The same of each round, in their order."""
        return [
            float(getattr(ours, figure)) / float(getattr(theirs, figure))
            for ours, theirs in zip(self.costs["penstock"], self.costs["confluent"], strict=True)
        ]

    def part(self, name: str) -> float:
        """The median CPU of one of our processes; a name ending in `-` stands for all that begin with it."""
        return median(
            sum(
                spent
                for part, spent in cost.parts.items()
                if part == name or (name[-1] == "-" and part.startswith(name))
            )
            for cost in self.costs["penstock"]
        )


class Bench:
    """The broker, the daemon, and runs against them."""

    def __init__(self, cases: Sequence[Case], sides: Sequence[str]) -> None:
        """Start both, with a topic for each case and side."""
        cores = sorted(os.sched_getaffinity(0))
        self.split = len(cores) >= 4
        self._client_cores = set(cores[:2]) if self.split else set(cores)
        if self.split:
            os.sched_setaffinity(0, set(cores[2:]))
        self.cluster = OwnCluster(VERSION, java=JavaOptions(heap_mb=1024, quick_start=False))
        os.sched_setaffinity(0, self._client_cores)
        self.daemon: Daemon | None = None
        try:
            for case, side in product(cases, sides):
                _ = self.cluster.create_topic(case.topic(side), PARTITIONS)
            if "penstock" in sides:
                codecs = {
                    f'topics."*-{codec}"': {"compression.type": codec} for codec in {case.codec for case in cases}
                }
                self.daemon = Daemon(
                    self.cluster.bootstrap,
                    shards=2,
                    kafka={"batch.size": BATCH_BYTES, "linger.ms": LINGER_MS},
                    sections=codecs,
                )
                self.daemon.start()
        except BaseException:
            self.close()
            raise

    def run(self, case: Case, side: str, records: int) -> Cost:
        """One run of one side; what was not delivered is an error."""
        topic = case.topic(side)
        ours = side == "penstock" and self.daemon is not None
        address = str(self.daemon.socket_path) if ours and self.daemon else self.cluster.bootstrap
        task = Task(side, address, topic, records, case.value_bytes, case.keyed, case.codec, BATCH_BYTES, LINGER_MS)
        before = self.cluster.record_count(topic)
        process = start_tied(
            [sys.executable, "-m", "bench.client", json.dumps(task._asdict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", "the client did not get ready"
            marks = self._marks(ours=ours)
            _ = process.stdin.write(b"go\n")
            process.stdin.flush()
            result = Result(**json.loads(process.stdout.readline()))
            spent = {name: after - marks[name] for name, after in self._marks(ours=ours).items()}
        finally:
            _ = end(process)
        arrived = self.cluster.record_count(topic) - before
        assert arrived == records + WARM_RECORDS, f"{side}: {arrived} of {records + WARM_RECORDS} records arrived"
        a_record = 1e6 / records
        broker = spent.pop("broker") * a_record
        parts = {"client": result.cpu_s * a_record, **{name: cpu * a_record for name, cpu in spent.items()}}
        return Cost(records / result.wall_s, sum(parts.values()), broker, parts)

    def _marks(self, *, ours: bool) -> dict[str, float]:
        """CPU seconds so far, of the broker and, for our side, of each of the daemon's processes."""
        marks = {"broker": cpu_seconds(self.cluster.nodes[1].pid)}
        if ours and self.daemon is not None:
            marks |= {name: cpu_seconds(pid) for name, pid in self.daemon.pids().items()}
        return marks

    def close(self) -> None:
        """Stop everything."""
        if self.daemon is not None:
            self.daemon.close()
        self.cluster.close()


def table(results: dict[Case, Rounds], sides: Sequence[str]) -> str:
    """The figures as Markdown."""
    lines = [
        "Medians; CPU in µs a record. Penstock's CPU: client + router + shards + exporter.",
        "",
        "| case | side | records/s | CPU | of it client · router · shards | broker's CPU |",
        "|---|---|---|---|---|---|",
    ]
    for case, rounds in results.items():
        for side in sides:
            parts = (
                " · ".join(f"{rounds.part(name):.2f}" for name in ("client", "router", "shard-"))
                if side == "penstock"
                else ""
            )
            figures = [rounds.middle(side, name) for name in ("rate", "cpu_us", "broker_us")]
            lines.append(
                f"| {case.title} | {side} | {figures[0]:,.0f} | {figures[1]:.2f} | {parts} | {figures[2]:.2f} |"
            )
    if len(sides) == len(SIDES):
        ratios = [
            "| Penstock / confluent-kafka | CPU ratio (lowest to highest) | records/s ratio | broker's CPU ratio |",
            "|---|---|---|---|",
        ]
        for case, rounds in results.items():
            every = rounds.ratios("cpu_us")
            cpu = f"**{median(every):.2f}** ({min(every):.2f} to {max(every):.2f})"
            ratios.append(
                f"| {case.title} | {cpu} | **{rounds.ratio('rate'):.2f}** | {rounds.ratio('broker_us'):.2f} |"
            )
        lines = [*ratios, "", *lines]
    return "\n".join(lines)


def machine(*, split: bool) -> str:
    """What it ran on."""
    model = next(
        (line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    cores = len(os.sched_getaffinity(os.getppid()))
    placed = "clients and daemon on two cores, broker on the others" if split else "all on the same cores"
    versions = f"Linux {platform.release()}, Python {platform.python_version()}, Kafka {VERSION}"
    return f"{model}, {cores} cores, {versions}; {placed}; load average of 15 minutes {os.getloadavg()[2]:.1f}"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Penstock beside confluent-kafka")
    parser.add_argument("--quick", action="store_true", help="100 B keyed lz4 only, three rounds, fewer records")
    parser.add_argument("--rounds", type=int, help="rounds of each case (5)")
    parser.add_argument("--records", type=int, help="records of 100 B a run (1,000,000); of 1 KB a quarter of it")
    parser.add_argument("--side", choices=SIDES, help="one side only")
    parser.add_argument("--write", action="store_true", help="write bench/results/DATE-throughput.md")
    return parser.parse_args()


def main() -> None:
    """Run the rounds, print each as it comes, then the table."""
    chosen = options()
    cases = [Case(*parts) for parts in product((100, 1024), (True, False), ("none", "lz4"))]
    if chosen.quick:
        cases = [Case(100, keyed=True, codec="lz4")]
    rounds = chosen.rounds or (3 if chosen.quick else 5)
    records = (chosen.records or (300_000 if chosen.quick else 1_000_000)) // 20_000 * 20_000
    sides = (chosen.side,) if chosen.side else SIDES
    results = {case: Rounds() for case in cases}
    bench = Bench(cases, sides)
    try:
        for case, side in product(cases, sides):
            # Not counted: the broker's JVM compiles what it is going to need, and a daemon learns its topics.
            _ = bench.run(case, side, records // 20)
        for number, case in product(range(rounds), cases):
            # Who goes first changes, so that neither always finds the broker warmer.
            for side in sides if number % 2 == 0 else sides[::-1]:
                cost = bench.run(case, side, records if case.value_bytes <= 100 else records // 4)
                results[case].costs[side].append(cost)
                parts = ", ".join(f"{name} {spent:.2f}" for name, spent in cost.parts.items())
                print(
                    f"round {number + 1} {case.title:20} {side:10} {cost.rate:>10,.0f}/s {cost.cpu_us:6.2f} µs ({parts}), "
                    f"broker {cost.broker_us:.2f} µs",
                    flush=True,
                )
    finally:
        bench.close()
    text = f"{machine(split=bench.split)}; {rounds} rounds of {records:,} records.\n\n{table(results, sides)}\n"
    print(f"\n{text}")
    if chosen.write:
        today = time.strftime("%Y-%m-%d")
        path = ROOT / "bench" / "results" / f"{today}-throughput.md"
        path.parent.mkdir(exist_ok=True)
        _ = path.write_text(f"# Throughput, {today}\n\n`python {' '.join(sys.argv)}`\n\n{text}")
        print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
