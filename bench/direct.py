"""The direct producer beside kafka-python, confluent-kafka and Kafka's own Java producer, on one real broker, in one run.

    python bench/direct.py                 every case, five rounds
    python bench/direct.py --quick         100 B keyless lz4 only, three rounds, fewer records
    python bench/direct.py --write         also writes bench/results/DATE-direct.md

All are idempotent, with acks=all and the same batch.size and linger. The Java producer is Kafka's `ProducerPerformance`, which has no
keys; the CPU of its start, and of what the virtual machine compiles in the beginning, is left out by taking the difference of two runs
of different length, and its records/s are those it tells. Runs take turns. What was delivered is counted by end offsets. The broker's CPU is told apart. Where there
are four cores or more, producers have the first two and the broker the others.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.direct_client import SIDES, WARM_RECORDS, Result, Task  # noqa: E402  (found through the line above)
from bench.payloads import chunks  # noqa: E402
from bench.throughput import VERSION, Case, machine  # noqa: E402
from tests.harness.daemon import cpu_seconds  # noqa: E402
from tests.harness.kafka_cluster import OwnCluster  # noqa: E402
from tests.harness.kafka_node import JavaOptions, kafka_libs  # noqa: E402
from tests.harness.processes import end, start_tied  # noqa: E402

PARTITIONS: Final = 12
LINGER_MS: Final = 5
JAVA: Final = "java ProducerPerformance"
OURS: Final = ("direct send", "direct send_many")
LENGTH: Final = {"kafka-python send": 0.2, JAVA: 4.0}
"""Slow sides get a part of the records, to keep a run short; Java more, so that its start weighs little."""
RATE: Final = 10_000
SUMMARY: Final = re.compile(r"([\d.]+) records/sec .*?([\d.]+) ms 50th, .*?([\d.]+) ms 99th")


class Cost(NamedTuple):
    """One run of one side. Times in µs a record, latencies in ms."""

    rate: float
    cpu_us: float
    broker_us: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Raw(NamedTuple):
    """One process's run, in seconds."""

    records: int
    result: Result
    broker_s: float


class Bench:
    """The broker, and runs of producers against it."""

    def __init__(self, cases: Sequence[Case], batch_bytes: int) -> None:
        """Start the broker, with a topic for each case."""
        cores = sorted(os.sched_getaffinity(0))
        self.split = len(cores) >= 4
        if self.split:
            os.sched_setaffinity(0, set(cores[2:]))
        self.cluster = OwnCluster(VERSION, java=JavaOptions(heap_mb=1024, quick_start=False))
        if self.split:
            os.sched_setaffinity(0, set(cores[:2]))
        self._batch_bytes = batch_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        try:
            for case in cases:
                _ = self.cluster.create_topic(case.topic("direct"), PARTITIONS)
                values = (
                    value for chunk in chunks(value_bytes=case.value_bytes, keyed=False)[:10] for value in chunk.values
                )
                _ = self._payloads(case).write_bytes(b"\n".join(values))
        except BaseException:
            self.close()
            raise

    def _payloads(self, case: Case) -> Path:
        return Path(self._folder.name) / f"{case.value_bytes}"

    def run(self, case: Case, side: str, records: int, rate: int = 0) -> Cost:
        """One run of one side; what was not delivered is an error."""
        if side == JAVA:
            if rate:
                raw = self._counted(case, records, lambda: self._java(case, records, rate))
            else:
                short = self._counted(case, records // 4, lambda: self._java(case, records // 4))
                long = self._counted(case, records, lambda: self._java(case, records))
                cpu = long.result.cpu_s - short.result.cpu_s
                count = long.records - short.records
                # The tool begins its clock after the start; the difference is CPU's.
                result = Result(long.result.wall_s * count / records, cpu)
                raw = Raw(count, result, long.broker_s - short.broker_s)
        else:
            raw = self._counted(case, records + WARM_RECORDS, lambda: self._python(case, side, records, rate))
            raw = raw._replace(records=records)
        result, a_record = raw.result, 1e6 / raw.records
        return Cost(
            raw.records / result.wall_s, result.cpu_s * a_record, raw.broker_s * a_record, result.p50_ms, result.p99_ms
        )

    def _counted(self, case: Case, records: int, run: Callable[[], tuple[Result, float]]) -> Raw:
        topic = case.topic("direct")
        before = self.cluster.record_count(topic)
        result, broker_s = run()
        arrived = self.cluster.record_count(topic) - before
        assert arrived == records, f"{arrived} of {records} records arrived"
        return Raw(records, result, broker_s)

    def _broker_s(self) -> float:
        return cpu_seconds(self.cluster.nodes[1].pid)

    def _python(self, case: Case, side: str, records: int, rate: int) -> tuple[Result, float]:
        task = Task(
            side,
            self.cluster.bootstrap,
            case.topic("direct"),
            records,
            case.value_bytes,
            case.keyed,
            case.codec,
            self._batch_bytes,
            LINGER_MS,
            rate,
        )
        process = start_tied(
            [sys.executable, "-m", "bench.direct_client", json.dumps(task._asdict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", f"{side} did not get ready"
            before = self._broker_s()
            _ = process.stdin.write(b"go\n")
            process.stdin.flush()
            result = Result(**json.loads(process.stdout.readline()))
            return result, self._broker_s() - before
        finally:
            _ = end(process)

    def _java(self, case: Case, records: int, rate: int = 0) -> tuple[Result, float]:
        """The whole run of the tool, its start too."""
        settings = {
            "bootstrap.servers": self.cluster.bootstrap,
            "acks": "all",
            "enable.idempotence": "true",
            "compression.type": case.codec,
            "batch.size": str(self._batch_bytes),
            "linger.ms": str(LINGER_MS),
        }
        command = [
            "java",
            "-Xmx512m",
            "-cp",
            f"{kafka_libs(VERSION)}/*",
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", case.topic("direct"), "--num-records", str(records), "--throughput", str(rate or -1)),
            *("--payload-file", str(self._payloads(case))),
            *("--producer-props", *(f"{name}={value}" for name, value in settings.items())),
        ]
        before, spent = self._broker_s(), _children_s()
        told = subprocess.run(command, check=True, text=True, capture_output=True, timeout=300).stdout
        found = SUMMARY.search(told.splitlines()[-1])
        assert found is not None, told
        cpu = _children_s() - spent
        return Result(records / float(found[1]), cpu, float(found[2]), float(found[3])), self._broker_s() - before

    def close(self) -> None:
        """Stop everything."""
        self.cluster.close()
        self._folder.cleanup()


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


Costs = dict[str, list[Cost]]


def _middle(costs: Sequence[Cost], figure: str) -> float:
    return median(float(getattr(cost, figure)) for cost in costs)


def table(results: dict[Case, Costs]) -> str:
    """Throughput as Markdown: ours divided by each of the others of the same round, then every side's own figures."""
    lines = [
        "| case | ours | beside | client CPU ratio (lowest to highest) | records/s ratio | broker CPU ratio |",
        "|---|---|---|---|---|---|",
    ]
    for case, costs in results.items():
        for ours in OURS:
            for peer in (side for side in costs if side not in OURS):
                ratios = {
                    figure: [
                        getattr(our, figure) / getattr(their, figure)
                        for our, their in zip(costs[ours], costs[peer], strict=True)
                    ]
                    for figure in ("cpu_us", "rate", "broker_us")
                }
                cpu = ratios["cpu_us"]
                lines.append(
                    f"| {case.title} | {ours} | {peer} | **{median(cpu):.2f}** ({min(cpu):.2f} to {max(cpu):.2f}) "
                    f"| {median(ratios['rate']):.2f} | {median(ratios['broker_us']):.2f} |"
                )
    lines += [
        "",
        "| case | side | records/s | client CPU, µs a record | broker CPU, µs a record |",
        "|---|---|---|---|---|",
    ]
    for case, costs in results.items():
        for side, every in costs.items():
            figures = [_middle(every, figure) for figure in ("rate", "cpu_us", "broker_us")]
            lines.append(f"| {case.title} | {side} | {figures[0]:,.0f} | {figures[1]:.2f} | {figures[2]:.2f} |")
    return "\n".join(lines)


def latencies(paced: Costs) -> str:
    """Times to delivery as Markdown."""
    lines = [
        f"At {RATE:,} records a second, from the call to the callback:",
        "",
        "| side | p50, ms | p99, ms | client CPU, µs a record |",
        "|---|---|---|---|",
    ]
    for side, every in paced.items():
        cpu = "" if side == JAVA else f"{_middle(every, 'cpu_us'):.1f}"
        lines.append(f"| {side} | {_middle(every, 'p50_ms'):.1f} | {_middle(every, 'p99_ms'):.1f} | {cpu} |")
    return "\n".join(lines)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="The direct producer beside its peers")
    parser.add_argument("--quick", action="store_true", help="100 B keyless lz4 only, three rounds, fewer records")
    parser.add_argument("--rounds", type=int, help="rounds of each case (5)")
    parser.add_argument("--records", type=int, help="records of 100 B a run (1,000,000); of 1 KB a quarter of it")
    parser.add_argument("--batch-bytes", type=int, default=16_384, help="batch.size of all (16384, Kafka's default)")
    parser.add_argument("--side", choices=[*SIDES, JAVA], action="append", help="only these sides")
    parser.add_argument("--no-latency", action="store_true", help="throughput only")
    parser.add_argument("--write", action="store_true", help="write bench/results/DATE-direct.md")
    return parser.parse_args()


def main() -> None:
    """Run the rounds, print each as it comes, then the tables."""
    chosen = options()
    cases = [Case(100, False, "lz4"), Case(100, True, "lz4"), Case(100, False, "none"), Case(1024, False, "lz4")]
    if chosen.quick:
        cases = cases[:1]
    rounds = chosen.rounds or (3 if chosen.quick else 5)
    records = (chosen.records or (300_000 if chosen.quick else 1_000_000)) // 20_000 * 20_000
    sides = tuple(chosen.side or (*SIDES, JAVA))
    results: dict[Case, Costs] = {
        case: {side: [] for side in sides if not (case.keyed and side == JAVA)} for case in cases
    }
    paced: Costs = {} if chosen.no_latency else {side: [] for side in sides}
    bench = Bench(cases, chosen.batch_bytes)
    try:
        for case, costs in results.items():
            for side in costs:
                # Not counted: the broker's virtual machine compiles what it is going to need.
                _ = bench.run(case, side, records // 5 // 4_000 * 4_000)
        for number in range(rounds):
            for case, costs in results.items():
                amount = records if case.value_bytes <= 100 else records // 4
                # Who goes first changes, so that nobody always finds the broker warmer.
                for side in _turned(list(costs), number):
                    cost = bench.run(case, side, round(amount * LENGTH.get(side, 1)) // 4_000 * 4_000)
                    costs[side].append(cost)
                    print(
                        f"round {number + 1} {case.title:20} {side:24} {cost.rate:>10,.0f}/s "
                        f"{cost.cpu_us:6.2f} µs, broker {cost.broker_us:.2f} µs",
                        flush=True,
                    )
            for side in _turned(list(paced), number):
                cost = bench.run(cases[0], side, 5 * RATE, RATE)
                paced[side].append(cost)
                print(
                    f"round {number + 1} {RATE}/s {side:24} p50 {cost.p50_ms:.1f} ms, p99 {cost.p99_ms:.1f} ms",
                    flush=True,
                )
    finally:
        bench.close()
    parts = [
        f"{machine(split=bench.split)}; {rounds} rounds of {records:,} records; batch.size {chosen.batch_bytes}, linger {LINGER_MS} ms."
    ]
    if set(OURS) <= set(sides):
        parts.append(table(results))
    if paced:
        parts.append(latencies(paced))
    text = "\n\n".join(parts) + "\n"
    print(f"\n{text}")
    if chosen.write:
        today = time.strftime("%Y-%m-%d")
        path = ROOT / "bench" / "results" / f"{today}-direct.md"
        path.parent.mkdir(exist_ok=True)
        _ = path.write_text(f"# The direct producer beside others, {today}\n\n`python {' '.join(sys.argv)}`\n\n{text}")
        print(f"written: {path.relative_to(ROOT)}")


def _turned(sides: list[str], number: int) -> list[str]:
    at = number % max(1, len(sides))
    return sides[at:] + sides[:at]


if __name__ == "__main__":
    main()
