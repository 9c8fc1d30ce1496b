"""The program behind `make test`: every part runs and is counted, whatever becomes of the others."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.kafka_node import VERSIONS
from tests.harness.processes import start_tied, wait_until
from tests.meta.test_shape import ROOT
from tools.run_tests import PASSED, STAGES, Counts, Outcome, Part, chosen, judge, read_counts, run_all, table

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">
<testcase classname="tests.meta.test_shape" name="test_one" time="0.1" />
<testcase classname="tests.meta.test_shape" name="test_two[a-b]" time="0.1"><failure message="no">    def test_two():
&gt;       assert 1 == 2, "it is so"
E       AssertionError: it is so
E       assert 1 == 2

tests/meta/test_shape.py:7: AssertionError</failure></testcase>
<testcase classname="tests.meta.test_shape" name="test_two[a-b]" time="0.1"><error message="in the fixture">why</error></testcase>
<testcase classname="tests.meta.test_shape" name="test_three" time="0.1"><skipped message="not here" /></testcase>
<testcase classname="" name="tests.process.test_gone" time="0.1"><error message="collection failure">why</error></testcase>
</testsuite></testsuites>"""
GOOD_REPORT = '<testsuites><testsuite><testcase classname="a" name="b" /></testsuite></testsuites>'
EMPTY_REPORT = "<testsuites><testsuite /></testsuites>"


def part(folder: Path, name: str, *command: str, limit_s: float = 60, report: Path | None = None) -> Part:
    return Part(name, command, limit_s, folder / f"{name}.log", report)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_tests_are_counted_and_those_that_failed_are_named_once(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    _ = path.write_text(REPORT)
    assert read_counts(path) == Counts(
        passed=1,
        skipped=1,
        failed={
            "tests/meta/test_shape.py::test_two[a-b]": [
                "tests/meta/test_shape.py:7: AssertionError",
                "AssertionError: it is so",
                "assert 1 == 2",
            ],
            "tests.process.test_gone": ["why"],
        },
    )


@pytest.mark.parametrize(
    ("status", "report", "result"),
    [
        (0, GOOD_REPORT, PASSED),
        (1, REPORT, "failed"),
        (0, REPORT, "failed"),
        (2, GOOD_REPORT, "failed (exit status 2)"),
        (-9, None, "failed (signal 9, no report)"),
        (0, None, "failed (exit status 0, no report)"),
        (-9, "<testsuites><tests", "failed (signal 9, no report)"),
        (0, EMPTY_REPORT, "failed (no test passed)"),
    ],
)
def test_a_part_passed_only_if_its_status_and_its_report_say_so(
    tmp_path: Path, status: int, report: str | None, result: str
) -> None:
    path = tmp_path / "report.xml"
    if report is not None:
        _ = path.write_text(report)
    assert judge(part(tmp_path, "any", report=path), status, 1.0).result == result


def test_a_part_without_tests_passed_if_its_status_says_so(tmp_path: Path) -> None:
    assert judge(part(tmp_path, "lint"), 0, 1.0).result == PASSED
    assert judge(part(tmp_path, "lint"), 2, 1.0).result == "failed (exit status 2)"


def test_the_table_has_a_line_for_each_part_and_then_the_tests_that_failed(tmp_path: Path) -> None:
    lint, core, kafka = (part(tmp_path, name) for name in ("lint", "core", "kafka-4.3.1"))
    outcomes = [
        Outcome(lint, 40.4, PASSED),
        Outcome(core, 82.0, PASSED, Counts(4793, 0, {})),
        Outcome(kafka, 1669, "failed", Counts(447, 8, {"tests/kafka/test_kills.py::test_one": ["it is so"]})),
    ]
    assert table(outcomes).splitlines() == [
        "part         seconds  passed  failed  skipped  result",
        "lint              40       -       -        -  passed",
        "core              82    4793       0        0  passed",
        "kafka-4.3.1     1669     447       1        8  failed",
        "",
        f"kafka-4.3.1: failed; its output is in {tmp_path}/kafka-4.3.1.log",
        "  tests/kafka/test_kills.py::test_one",
        "    it is so",
    ]


def test_a_part_that_fails_or_cannot_start_keeps_no_other_from_running(tmp_path: Path) -> None:
    shown: list[str] = []
    lane = [
        part(tmp_path, "bad", "sh", "-c", "echo no luck; exit 3"),
        part(tmp_path, "absent", "/no/such/program"),
        part(tmp_path, "good", "echo", "still here"),
    ]
    assert run_all([[lane], [[part(tmp_path, "later", "echo", "here as well")]]], shown.append) == 1
    assert {"[bad] no luck", "[good] still here", "[later] here as well"} <= set(shown)
    results = {line.split()[0]: line.split("-  ")[-1] for line in "\n".join(shown).splitlines() if " -  " in line}
    assert results["bad"] == "failed (exit status 3)"
    assert results["absent"].startswith("failed (cannot start")
    assert results["good"] == results["later"] == PASSED
    assert (tmp_path / "bad.log").read_text() == "no luck\n"


def test_when_everything_passes_the_exit_status_is_0(tmp_path: Path) -> None:
    lanes = [[part(tmp_path, name, "true")] for name in ("one", "two")]
    assert run_all([lanes], lambda _: None) == 0


def test_a_part_that_takes_too_long_is_stopped_with_all_it_started_and_the_others_go_on(tmp_path: Path) -> None:
    shown: list[str] = []
    script = "sleep 600 & echo $!; wait"
    lane = [part(tmp_path, "stuck", "sh", "-c", script, limit_s=1), part(tmp_path, "good", "true")]
    assert run_all([[lane]], shown.append) == 1
    assert "[stuck] stopped (took longer than 1 s)" in "\n".join(shown)
    assert any(line.startswith("[good] passed") for line in shown)
    child = int((tmp_path / "stuck.log").read_text())
    _ = wait_until(lambda: not is_alive(child), seconds=30, what="what it started has ended")


def test_an_old_report_does_not_speak_for_a_part_that_died(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    _ = report.write_text(GOOD_REPORT)
    shown: list[str] = []
    assert run_all([[[part(tmp_path, "dead", "sh", "-c", "kill -9 $$", report=report)]]], shown.append) == 1
    assert any("failed (signal 9, no report)" in line for line in shown)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_part(tmp_path: Path, number: int) -> None:
    program = f"""
import sys
from pathlib import Path
from tools import run_tests
script = "sleep 600 & echo $!; wait"
run_tests.STAGES = [[[
    run_tests.Part(name, ["sh", "-c", script], 600, Path({str(tmp_path)!r}) / (name + ".log"))] for name in ("one", "two")
]]
sys.exit(run_tests.main())
"""
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    running = start_tied([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    try:
        children = [
            int(
                wait_until(
                    lambda log=log: (log.exists() and log.read_text().strip()) or None, seconds=30, what="a part begins"
                )
            )
            for log in logs
        ]
        assert all(is_alive(child) for child in children)
        running.send_signal(number)
        assert running.wait(60) == 130
    finally:
        running.kill()
        _ = running.wait()
    _ = wait_until(lambda: not any(map(is_alive, children)), seconds=30, what="what they started has ended")


def test_parts_are_chosen_by_name_and_a_name_that_no_part_has_is_an_error() -> None:
    names = [one.name for stage in chosen(STAGES, ["systemd", "core"]) for lane in stage for one in lane]
    assert names == ["core", "systemd"]
    assert chosen(STAGES, []) == [[list(lane) for lane in stage] for stage in STAGES]
    with pytest.raises(LookupError, match=r"no part is called kafka; there are: lint, "):
        _ = chosen(STAGES, ["kafka"])


def test_every_part_is_a_target_of_the_makefile_and_every_folder_of_tests_has_a_part() -> None:
    parts = [one for stage in STAGES for lane in stage for one in lane]
    assert len({one.name for one in parts}) == len(parts)
    told = subprocess.run(
        ["make", "-n", *(str(one.command[2]) for one in parts)], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders == set(re.findall(r"\btests/(\w+)\b", told)) & folders


def test_each_version_of_kafka_that_tests_know_has_a_part() -> None:
    names = {one.name for stage in STAGES for lane in stage for one in lane}
    assert {name for name in names if name.startswith("kafka-")} == {f"kafka-{version}" for version in VERSIONS}


def test_the_limits_leave_room_for_the_set_up_within_90_minutes() -> None:
    longest = [max(sum(one.limit_s for one in lane) for lane in stage) for stage in STAGES]
    assert sum(longest) <= 80 * 60
