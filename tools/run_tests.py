"""Run the parts of `make test` side by side and say how each ended: `run_tests.py [PART ...]`.

A part is a target of the Makefile (`test-NAME`, or `NAME` where it has no tests of pytest's). Every part runs, whatever becomes of the
others: a failure says something about one part, and a developer wants to know about all of them. The output of each is shown
line by line behind its name, and kept in build/test-reports/TARGET.log. The end is a table and the names of the tests that failed.

Needs nothing but Python, so that it works when the environment does not.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parents[1]
REPORTS: Final = REPOSITORY / "build" / "test-reports"
GRACE_S: Final = 30.0
"""How long a part that is told to stop may take: pytest ends its fixtures, and so the brokers and daemons that they started."""
LEFTOVERS_S: Final = 5.0
"""How long the output of a part that has ended is read on. A process that it left behind may keep the pipe open for ever."""
REASON_LINES: Final = 4
REASON_WIDTH: Final = 200
PLACE: Final = re.compile(r"\S+\.py:\d+: ")
"""How pytest begins the line that says where something was raised."""


class Part(NamedTuple):
    """One command of the run."""

    name: str
    command: Sequence[str]
    limit_s: float
    """Longer than this and the part is stopped, so that CI ends with a table and not with its own time limit."""
    log: Path
    """Where its output is kept."""
    report: Path | None = None
    """Where its command writes JUnit XML; None when it has no tests to count."""


class Counts(NamedTuple):
    """The tests of a part."""

    passed: int
    skipped: int
    failed: Mapping[str, Sequence[str]]
    """Their names, as pytest takes them where that can be told, each with the lines that say why."""


class Outcome(NamedTuple):
    """How a part ended."""

    part: Part
    seconds: float
    result: str
    """`passed`, or what is wrong."""
    counts: Counts | None = None

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return self.result == PASSED


PASSED: Final = "passed"
Stage = Sequence[Sequence[Part]]
"""Lanes that run side by side; the parts of a lane run one after the other."""


def made(name: str, *, minutes: float, tests: bool = True) -> Part:
    """The part whose command is a target of the Makefile."""
    target = f"test-{name}" if tests else name
    report = REPORTS / f"{target}.xml" if tests else None
    command = ["make", "--no-print-directory", target, *([f"REPORTS={REPORTS}"] if tests else [])]
    return Part(name, command, minutes * 60, REPORTS / f"{target}.log", report)


STAGES: Final[Sequence[Stage]] = (
    # What is quick and finds most mistakes comes first.
    (
        [made("lint", minutes=10, tests=False)],
        [made("spark-classes", minutes=4, tests=False), made("core", minutes=9)],
    ),
    # On two cores the tests with Kafka mostly wait, so two lanes share the cores well; a third one made tests miss their deadlines on a
    # slow machine. Each lane has ports, brokers and folders of its own.
    (
        [made("kafka-4.3.1", minutes=28), made("pipeline", minutes=38)],
        [
            made("process", minutes=22),
            made("kafka-3.9.2", minutes=28),
            made("systemd", minutes=10),
            made("browser", minutes=6),
        ],
    ),
)


def read_counts(report: Path) -> Counts:
    """Count the tests of a JUnit XML file. Raise OSError or xml.etree.ElementTree.ParseError when there is none."""
    passed, skipped = 0, 0
    # A test that fails, and whose fixture fails as well, stands there twice.
    failed: dict[str, Sequence[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        problem = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        if problem is not None:
            name = _test_name(case.get("classname", ""), case.get("name", ""))
            _ = failed.setdefault(name, _reason(problem.text or problem.get("message", "")))
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Counts(passed, skipped, failed)


def _reason(text: str) -> Sequence[str]:
    """The lines of a failure's text in which pytest says what was raised, and the last one that says where."""
    lines = [line.rstrip() for line in text.splitlines()]
    raised = [line[1:].strip() for line in lines if line.startswith("E ")][:REASON_LINES]
    places = [line for line in lines if PLACE.match(line)][-1:]
    return [line[:REASON_WIDTH] for line in (*places, *raised)] or [line[:REASON_WIDTH] for line in lines[-1:]]


def _test_name(module: str, name: str) -> str:
    """`tests.process.test_ports` and `test_one` as `tests/process/test_ports.py::test_one`."""
    path = module.replace(".", "/") + ".py"
    # What cannot be collected has no module, and its path as the name.
    return f"{path if (REPOSITORY / path).exists() else module}::{name}" if module else name


def judge(part: Part, status: int, seconds: float) -> Outcome:
    """What the exit status of a part and its report, if it has one, say together."""
    if part.report is None:
        return Outcome(part, seconds, PASSED if status == 0 else f"failed ({_exit(status)})")
    try:
        counts = read_counts(part.report)
    except (OSError, ET.ParseError):
        return Outcome(part, seconds, f"failed ({_exit(status)}, no report)")
    if status != 0 or counts.failed:
        return Outcome(part, seconds, "failed" if counts.failed else f"failed ({_exit(status)})", counts)
    # A part that collects nothing proves nothing.
    return Outcome(part, seconds, PASSED if counts.passed else "failed (no test passed)", counts)


def _exit(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def table(outcomes: Iterable[Outcome]) -> str:
    """One line for each part, then the names of the tests that failed."""
    outcomes = list(outcomes)
    rows = [("part", "seconds", "passed", "failed", "skipped", "result")]
    for outcome in outcomes:
        counts = outcome.counts
        figures = ("-",) * 3 if counts is None else (str(counts.passed), str(len(counts.failed)), str(counts.skipped))
        rows.append((outcome.part.name, f"{outcome.seconds:.0f}", *figures, outcome.result))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if 0 < index < 5 else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    for outcome in outcomes:
        if not outcome.good:
            lines += ["", f"{outcome.part.name}: {outcome.result}; its output is in {outcome.part.log}"]
            for name, reason in (outcome.counts.failed if outcome.counts else {}).items():
                lines += [f"  {name}", *(f"    {line}" for line in reason)]
    return "\n".join(lines)


class PartsRun:
    """Runs parts, and can stop all of them at once."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """`show` is given whole lines, by several threads but never at the same time."""
        self._show = show
        self._lock = threading.Lock()
        """Guards `_running`, `_stopped` and calls of `_show`."""
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, stages: Sequence[Stage]) -> list[Outcome]:
        """Run every part, stage by stage, and return how each ended, in the order they are declared in."""
        outcomes: dict[str, Outcome] = {}

        def run_lane(lane: Sequence[Part]) -> None:
            for part in lane:
                outcomes[part.name] = self._run_part(part)

        for stage in stages:
            with ThreadPoolExecutor(len(stage)) as lanes:
                ends: list[Future[None]] = []
                try:
                    ends += [lanes.submit(run_lane, lane) for lane in stage]
                    for end in ends:
                        end.result()
                except KeyboardInterrupt:
                    self.stop()
                    # Futures and not Thread.join(), which takes a thread for ended once it was interrupted (Python 3.11).
                    _ = wait(ends)
                    raise
        return [outcomes[part.name] for stage in stages for lane in stage for part in lane]

    def stop(self) -> None:
        """End the parts that run, and let no other begin."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGINT)
        for process in running:
            _kill_after_grace(process)

    def _run_part(self, part: Part) -> Outcome:
        began = time.monotonic()
        for old in (part.report, part.log):
            if old is not None:
                old.parent.mkdir(parents=True, exist_ok=True)
                # A report of an earlier run must not speak for this one.
                old.unlink(missing_ok=True)
        # Beginning and stop() exclude each other, so that no part begins unseen after everything was told to stop.
        with self._lock:
            if self._stopped:
                return Outcome(part, 0, "not begun")
            try:
                # In a group of its own, so that whatever it started can be ended with it.
                process = subprocess.Popen(
                    part.command, cwd=REPOSITORY, env=_environment(), start_new_session=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
            except OSError as error:
                return Outcome(part, 0, f"failed (cannot start: {error})")
            self._running.add(process)
            self._show(f"[{part.name}] begins")
        assert process.stdout is not None
        reader = threading.Thread(target=self._copy, args=(part, process.stdout), daemon=True)
        reader.start()
        late = False
        try:
            status = process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            late = True
            _signal(process, signal.SIGINT)
            status = _kill_after_grace(process)
        _signal(process, signal.SIGKILL)
        reader.join(LEFTOVERS_S)
        with self._lock:
            self._running.discard(process)
        outcome = judge(part, status, time.monotonic() - began)
        if late:
            outcome = outcome._replace(result=f"stopped (took longer than {part.limit_s:.0f} s)")
        with self._lock:
            self._show(f"[{part.name}] {outcome.result} after {outcome.seconds:.0f} s")
        return outcome

    def _copy(self, part: Part, output: IO[str]) -> None:
        with part.log.open("w") as log:
            for line in output:
                _ = log.write(line)
                log.flush()
                with self._lock:
                    self._show(f"[{part.name}] {line.rstrip()}")


def _environment() -> dict[str, str]:
    """The environment without what ties a `make` to the one above it, whose job slots a part does not have."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    }


def _signal(process: "subprocess.Popen[str]", number: int) -> None:
    """Signal the whole group of a part; some of it may be left when its first process has ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _kill_after_grace(process: "subprocess.Popen[str]") -> int:
    """Wait for a part that was told to stop, and kill it when it does not. Return its exit status."""
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        return process.wait()


def chosen(stages: Sequence[Stage], names: Sequence[str]) -> list[Stage]:
    """Only the parts of these names, or everything when there are none. Raise LookupError for a name that no part has."""
    known = [part.name for stage in stages for lane in stage for part in lane]
    for name in names:
        if name not in known:
            raise LookupError(f"no part is called {name}; there are: {', '.join(known)}")
    wanted = names or known
    return [[[part for part in lane if part.name in wanted] for lane in stage] for stage in stages]


def run_all(stages: Sequence[Stage], show: Callable[[str], None]) -> int:
    """Run everything, show the table, and return the exit status: 0 only when every part passed."""
    began = time.monotonic()
    outcomes = PartsRun(show).run(stages)
    show("")
    show(table(outcomes))
    show("")
    good = all(outcome.good for outcome in outcomes)
    show(f"{'everything passed' if good else 'FAILED'} in {(time.monotonic() - began) / 60:.1f} minutes")
    return 0 if good else 1


def main() -> int:
    """Run what the command line names."""
    # A shell that starts this in the background has SIGINT ignored, and then no part could be stopped in good order.
    for number in (signal.SIGINT, signal.SIGTERM):
        _ = signal.signal(number, signal.default_int_handler)
    try:
        return run_all(chosen(STAGES, sys.argv[1:]), lambda line: print(line, flush=True))
    except LookupError as error:
        print(f"run_tests.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
