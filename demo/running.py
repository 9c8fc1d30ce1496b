"""Ports, and waiting for a daemon: what both demos need."""

import socket
import subprocess
import time
from pathlib import Path

from penstock.daemon.processes.control_client import ControlError, ask

START_S = 60


class DemoError(Exception):
    """The demo could not be carried through; the text says where."""


def free_ports(count: int) -> list[int]:
    """A run of free ports; nothing holds them until they are used."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return list(range(first, first + count))


def await_ready(process: subprocess.Popen[bytes], runtime: Path) -> None:
    """Wait until router, shards and brokers are there. Raise DemoError."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(f"the daemon ended at its start with exit code {process.returncode}")
        try:
            told = ask(runtime / "control.sock", "ready")
            if told["ready"] and told["brokers"] and told["shards"] == told["shards_wanted"]:
                return
        except ControlError:
            pass
        time.sleep(0.1)
    raise DemoError(f"the daemon was not ready within {START_S} s")
