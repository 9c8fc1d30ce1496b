"""The unit as it is shipped, under a real systemd."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.processes import wait_until
from tests.harness.requirements import need_program

from .box import Box
from .conftest import BROKER, ROOT, TOPIC

pytestmark = pytest.mark.systemd
SOCKET = "/run/penstock/penstock.sock"
ROUTER_KILLS = 20


def pid_of(box: Box, module: str) -> int | None:
    """The pid, as the box sees it, of the process of the unit that runs `module`; None when there is none."""
    told = box.run("pgrep", "-n", "-f", f"[-]m penstock.{module}", check=False).stdout.split()
    return int(told[0]) if told else None


def main_pid(box: Box) -> int:
    return int(box.run("systemctl", "show", "-P", "MainPID", "penstock").stdout)


def state(box: Box) -> str:
    return box.run("systemctl", "is-active", "penstock", check=False).stdout.strip()


def replaced(box: Box, look: Callable[[], int | None], kill: int) -> int:
    """Kill a process and wait until another has its place."""
    assert kill > 1, "0 would end the group this test runs in"
    box.run("kill", "-9", str(kill))

    def another() -> int | None:
        found = look()
        return found if found not in (0, kill) else None

    return wait_until(another, seconds=30, what="another process has its place")


def ready(box: Box) -> bool:
    return box.run(sys.executable, "-c", _ASK_READY, check=False).returncode == 0


_ASK_READY = "import urllib.request as u; u.urlopen('http://127.0.0.1:9797/ready', timeout=2)"


def test_no_connect_is_refused_and_nothing_is_lost_whatever_is_killed(box: Box) -> None:
    stop_file = "/run/stop-load"
    load = box.start("env", f"--chdir={ROOT}", sys.executable, "-m", "tests.systemd.load", SOCKET, TOPIC, stop_file)
    try:
        for _ in range(ROUTER_KILLS):
            # A router that serves is killed, not one that has yet to read its spool.
            _ = wait_until(lambda: ready(box), seconds=60, what="a router takes frames")
            serving = pid_of(box, "daemon.router")
            assert serving is not None
            _ = replaced(box, lambda: pid_of(box, "daemon.router"), serving)
        _ = wait_until(lambda: ready(box), seconds=60, what="a router takes frames")
        box.run("systemctl", "restart", "penstock")
        replaced(box, lambda: main_pid(box), main_pid(box))
        _ = wait_until(lambda: state(box) == "active", seconds=60, what="the unit is active again")
        _ = wait_until(lambda: ready(box), seconds=60, what="the daemon takes frames")
        box.run("touch", stop_file)
        output, errors = load.communicate(timeout=180)
    finally:
        load.kill()
    assert load.returncode == 0, errors + box.journal("penstock")
    told = json.loads(output)
    assert told.get("refused", 0) == 0, told
    assert told["connected"] > ROUTER_KILLS, told
    assert told["acknowledged"] == told["sent"] > 0, told
    read = box.run("env", f"--chdir={ROOT}", sys.executable, "-m", "tests.systemd.read_back", BROKER, TOPIC).stdout
    assert json.loads(read) == {"distinct": told["sent"], "doubled": 0, "disorder": 0}


def test_a_stop_is_orderly(box: Box) -> None:
    box.run("/opt/penstock/bin/penstock", "send", TOPIC, "one", "two", "--level", "delivered")
    box.run("systemctl", "stop", "penstock", timeout=100)
    shown = box.run("systemctl", "show", "-p", "Result", "-p", "ActiveState", "penstock").stdout.split()
    assert sorted(shown) == ["ActiveState=inactive", "Result=success"]
    assert "router_stopped" in box.journal("penstock")
    assert box.run("test", "-e", SOCKET, check=False).returncode != 0


def test_the_processes_log_straight_to_the_journal(box: Box) -> None:
    lines = box.run("journalctl", "-u", "penstock", "-o", "json", "--no-pager").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    router = str(pid_of(box, "daemon.router"))
    ours = [item for item in found if item["_PID"] == router]
    assert ours, "no line has the router's own pid"
    assert any(json.loads(item["MESSAGE"])["event"] for item in ours if str(item["MESSAGE"]).startswith("{"))


def test_reload_is_obeyed(box: Box) -> None:
    before = pid_of(box, "daemon.router")
    box.run(
        "sh",
        "-c",
        "echo 'log_level = \"DEBUG\"' | cat - /etc/penstock/penstock.toml >/tmp/t && cp /tmp/t /etc/penstock/penstock.toml",
    )
    box.run("systemctl", "reload", "penstock")
    assert pid_of(box, "daemon.router") == before
    assert state(box) == "active"


def test_the_unit_is_as_closed_as_it_claims(tmp_path: Path) -> None:
    need_program("systemd-analyze", package="systemd")
    unit = tmp_path / "penstock.service"
    unit.write_text((ROOT / "systemd/penstock.service").read_text())
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=16", str(unit)],
        check=False,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
