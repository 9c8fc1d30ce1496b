"""What systemd is told, over a socket of ours."""

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.daemon.spool.identity import SpoolIdentity
from penstock.daemon.spool.log import Spool
from penstock.daemon.spool.segment_files import segment_numbers
from penstock.runtime.notify import Notifier

from tests.harness.processes import Deadline
from tests.harness.stack import Stack
from tests.model.spool_world import LIMITS, SpoolWorld

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
        assert told_to.ping_watchdog(100.0) == 105.0
        assert told_to.ping_watchdog(104.9) == 105.0
        assert told_to.ping_watchdog(105.0) == 110.0
    assert told(manager) == ["WATCHDOG=1", "WATCHDOG=1"]


def test_without_a_manager_nothing_is_said_and_nothing_fails() -> None:
    with Notifier.from_environment({"WATCHDOG_USEC": "10000000"}) as told_to:
        told_to.ready("serving")
        assert told_to.ping_watchdog(1.0) is None


def test_a_manager_that_is_gone_or_odd_numbers_are_no_fault(manager: socket.socket) -> None:
    with notifier(manager, WATCHDOG_USEC="soon") as told_to:
        assert told_to.watchdog_s is None
        manager.close()
        told_to.ready("serving")


def test_long_work_feeds_the_watchdog_and_extends_the_start_once_a_second(manager: socket.socket) -> None:
    with notifier(manager) as told_to:
        for now in (100.0, 100.5, 100.9, 101.0):
            told_to.extend_start_timeout(now, "recovering")
    assert told(manager) == ["WATCHDOG=1\nEXTEND_TIMEOUT_USEC=60000000\nSTATUS=recovering"] * 2


def test_recovery_gives_a_sign_of_life_for_every_segment(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    world = SpoolWorld(folder, LIMITS)
    world.append(world.ledger.new_partition_entry("topic", b"", 0))
    for _ in range(40):
        world.frame("a", [(0, 1, 650)])
    world.write()
    world.sync()
    world.close()
    segments = len(segment_numbers(folder))
    signs: list[None] = []
    identity = SpoolIdentity.open(folder, allow_unsafe_filesystem=True)
    _ = Spool.open(folder, LIMITS, identity=identity, alive=lambda: signs.append(None))
    identity.close()
    assert segments > 5
    assert len(signs) >= segments


def test_a_router_feeds_the_watchdog_before_it_is_ready(manager: socket.socket) -> None:
    said: list[str] = []
    with Stack("127.0.0.1:1", shards=1, start=False) as stack:
        os.environ["NOTIFY_SOCKET"] = manager.getsockname()
        try:
            stack.start_router()
        finally:
            del os.environ["NOTIFY_SOCKET"]
        deadline = Deadline(30, "the router is ready")
        while not any("READY=1" in text for text in said):
            _ = select.select([manager], [], [], deadline.left())
            said += told(manager)
    assert "WATCHDOG=1\nEXTEND_TIMEOUT_USEC=60000000" in said[0]
