"""The control socket, and what a router says when it cannot start."""

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock.config import handover
from penstock.daemon.processes.control_client import ControlError, ask

from tests.harness.processes import wait_until
from tests.harness.stack import Stack

pytestmark = pytest.mark.process

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(NOWHERE, shards=1) as found:
        yield found


def log_lines(stack: Stack) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stack.log_path.read_text().splitlines() if line.startswith("{")]


def test_only_the_daemons_user_may_open_the_socket(stack: Stack) -> None:
    mode = stack.settings.control_path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_stats_tell_of_everything_without_a_broker(stack: Stack) -> None:
    told = stack.ask("stats")
    assert told["router"]["phase"] == "running"
    assert told["records"]["received"] == 0
    assert told["metadata"]["connected"] is False
    assert {item["name"] for item in told["processes"]} == {"router", "shard-0"}
    assert all(item["cpu_us"] > 0 and item["memory_bytes"] > 0 for item in told["processes"])
    json.dumps(told)


def test_ready_says_what_is_there(stack: Stack) -> None:
    assert stack.ask("ready") == {
        "ready": True,
        "phase": "running",
        "shards": 1,
        "shards_wanted": 1,
        "brokers": False,
        "alarms": 0,
    }
    stack.kill_shard(0)
    assert wait_until(lambda: stack.ask("ready")["shards"] == 0, seconds=5, what="the shard's end to be seen")


def test_what_is_not_understood_is_said_and_the_connection_goes_on(stack: Stack) -> None:
    with pytest.raises(ControlError, match="'dance' is not known; there are drain, log_level, ready"):
        stack.ask("dance")
    with pytest.raises(ControlError, match="one of DEBUG"):
        stack.ask("log_level", level="LOUD")
    assert stack.ask("log_level", level="DEBUG") == {"level": "DEBUG"}


def test_garbage_on_the_control_socket_hurts_nobody(stack: Stack) -> None:
    for data in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x01\xc1", os.urandom(5_000)):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(stack.settings.control_path))
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert stack.ask("ready")["ready"]


def test_a_reload_takes_what_may_change_and_names_what_needs_a_restart(stack: Stack) -> None:
    wanted = stack.settings.model_copy(
        update={
            "log_level": "WARNING",
            "shards": 5,
            "limits": stack.settings.limits.model_copy(update={"sessions_max": 1}),
        }
    )
    handover.write(wanted, stack.settings_path)
    assert stack.ask("reload") == {"changed": ["limits.sessions_max", "log_level"], "needs_restart": ["shards"]}
    with stack.session() as _, pytest.raises(AssertionError, match="all 1 sessions are taken"):
        stack.session()
    # A shard that starts now is given what is in force.
    assert handover.read(stack.settings_path).shards == 1
    stack.kill_shard(0)
    stack.wait_ready()


def test_a_reload_of_nonsense_changes_nothing(stack: Stack) -> None:
    before = stack.settings_path.read_bytes()
    stack.settings_path.write_text("{")
    with pytest.raises(ControlError, match="cannot be read"):
        stack.ask("reload")
    stack.settings_path.write_bytes(before)
    assert stack.ask("ready")["ready"]


def test_drain_stops_the_router_in_an_orderly_way(stack: Stack) -> None:
    assert stack.ask("drain") == {"pending": 0}
    assert stack.router is not None
    assert stack.router.wait(60) == 0
    with pytest.raises(ControlError, match="does not answer"):
        ask(stack.settings.control_path, "ready", timeout_s=1)


def test_usr2_ends_the_router_at_once_with_everything_synced(stack: Stack) -> None:
    assert stack.router is not None
    stack.router.send_signal(signal.SIGUSR2)
    assert stack.router.wait(60) == 0
    assert any(line["event"] == "router_exiting" for line in log_lines(stack))


def test_a_second_router_on_the_same_spool_says_who_has_it(stack: Stack) -> None:
    first = stack.router
    assert first is not None
    second = stack.start_router()
    assert second.wait(60) == 74
    reason = next(line["reason"] for line in log_lines(stack) if line["event"] == "router_start_failed")
    assert str(first.pid) in reason
    stack.router = first
    assert stack.ask("ready")["ready"]


def test_a_descriptor_that_is_not_the_socket_is_named() -> None:
    with Stack(NOWHERE, start=False) as stack:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(stack.folder / "other"))
            other.listen()
            kept, stack.listening = stack.listening, other
            assert stack.start_router().wait(60) == 78
            stack.listening = kept
        (line,) = [line for line in log_lines(stack) if line["event"] == "router_start_failed"]
        assert "bound to" in line["reason"]
        assert str(stack.settings.socket_path) in line["reason"]


def test_settings_that_cannot_be_read_are_named() -> None:
    with Stack(NOWHERE, start=False) as stack:
        stack.settings_path.write_text("{}")
        assert stack.start_router().wait(60) == 78
        (line,) = [line for line in log_lines(stack) if line["event"] == "router_start_failed"]
        assert str(stack.settings_path) in line["reason"]


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Stack(NOWHERE, start=False, data_dir=str(tmp_path / "file" / "data")) as stack:
        assert stack.start_router().wait(60) == 74
        (line,) = [line for line in log_lines(stack) if line["event"] == "router_start_failed"]
        assert str(tmp_path / "file") in line["reason"]
