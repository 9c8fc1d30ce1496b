"""What systemd is told, over a socket of ours."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.runtime.notify import Notifier

pytestmark = pytest.mark.process


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def told(manager: socket.socket) -> list[str]:
    found: list[str] = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


def notifier(manager: socket.socket, **more: str) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": manager.getsockname(), **more})


def test_ready_stopping_and_status_are_told(manager: socket.socket) -> None:
    with notifier(manager) as told_to:
        told_to.ready("serving")
        told_to.status("5 records pending")
        told_to.status("5 records pending")
        told_to.stopping("draining")
    assert told(manager) == ["READY=1\nSTATUS=serving", "STATUS=5 records pending", "STOPPING=1\nSTATUS=draining"]


def test_the_watchdog_is_fed_at_half_of_its_time(manager: socket.socket) -> None:
    with notifier(manager, WATCHDOG_USEC="10000000") as told_to:
        assert told_to.feed(100.0) == 105.0
        assert told_to.feed(104.9) == 105.0
        assert told_to.feed(105.0) == 110.0
    assert told(manager) == ["WATCHDOG=1", "WATCHDOG=1"]


def test_without_a_manager_nothing_is_said_and_nothing_fails() -> None:
    with Notifier.from_environment({"WATCHDOG_USEC": "10000000"}) as told_to:
        told_to.ready("serving")
        assert told_to.feed(1.0) is None


def test_a_manager_that_is_gone_or_odd_numbers_are_no_fault(manager: socket.socket) -> None:
    with notifier(manager, WATCHDOG_USEC="soon") as told_to:
        assert told_to.watchdog_s is None
        manager.close()
        told_to.ready("serving")
