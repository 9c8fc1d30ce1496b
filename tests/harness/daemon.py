"""A whole daemon in a folder of its own: `penstock run`, its processes by name, and ways to kill them."""

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, NamedTuple, Self

from .ports import free_ports
from .processes import PATIENCE, Deadline, TooLateError, end, start_tied, tail, wait_until

READY_S: Final = 60.0
STOP_S: Final = 20.0
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Child(NamedTuple):
    """One of supervisord's programs, as it runs now."""

    name: str
    """`router`, `shard-0`, `exporter`."""
    pid: int


def _name_of(arguments: list[str]) -> str | None:
    """The program that a command line belongs to; None for what is none of ours."""
    if "-m" not in arguments:
        return None
    module = arguments[arguments.index("-m") + 1]
    if module == "penstock.shards.worker" and "--seat" in arguments:
        return f"shard-{arguments[arguments.index('--seat') + 1]}"
    return {"penstock.daemon.router.main": "router", "penstock.daemon.processes.exporter": "exporter"}.get(module)


def cpu_seconds(pid: int) -> float:
    """User and system time of a living process, all its threads, in seconds. Raise OSError when it has gone."""
    # The name in parentheses may hold anything, also a parenthesis.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


LIVING: Final["set[Daemon]"] = set()
"""Daemons that are not closed yet: a failed test shows their logs."""


class Daemon:
    """`penstock run` with settings for tests. Use it in a `with`: its failure brings the end of the log along."""

    def __init__(
        self,
        bootstrap: str,
        *,
        shards: int = 2,
        kafka: Mapping[str, str | int | bool] | None = None,
        sections: Mapping[str, Mapping[str, str | int | bool]] | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Write the settings file. `kafka` are Kafka's settings by their names, `sections` further tables of the file.

        The folder is short, because sockets' paths must be; `folder` places it elsewhere, on another disk say. What is in
        `environment` is added to ours.
        """
        self._environment = environment
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-test-", dir=folder))
        self.log_path = self.folder / "log"
        self.socket_path = self.folder / "run" / "penstock.sock"
        self.exporter_port = free_ports(1)[0]
        self.shards = shards
        self._config_path = self.folder / "penstock.toml"
        self._process: subprocess.Popen[bytes] | None = None
        tables: dict[str, Mapping[str, str | int | bool]] = {
            "kafka": {"bootstrap.servers": bootstrap, **(kafka or {})},
            "exporter": {"listen": f"127.0.0.1:{self.exporter_port}"},
            **(sections or {}),
        }
        lines = [
            f"data_dir = {json.dumps(str(self.folder / 'data'))}",
            f"runtime_dir = {json.dumps(str(self.folder / 'run'))}",
            f"shards = {shards}",
        ]
        for table, values in tables.items():
            lines += ["", f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
        _ = self._config_path.write_text("\n".join(lines) + "\n")
        _ = atexit.register(self.close)
        LIVING.add(self)

    @property
    def pid(self) -> int:
        """The launcher's pid, which becomes supervisord's."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the launcher, or supervisord, lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, ready: bool = True) -> None:
        """Start it and, unless told otherwise, wait until `/ready` says so. Raise TooLateError, or AssertionError."""
        assert not self.running
        with self.log_path.open("ab") as log:
            self._process = start_tied(
                [sys.executable, "-I", "-m", "penstock.cli.main", "run", "--config", str(self._config_path)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | (self._environment or {}),
            )
        if ready:
            self.wait_ready()

    def wait_ready(self, *, seconds: float = READY_S) -> None:
        """Wait until the exporter answers 200 to `/ready`."""

        def look() -> bool:
            assert self.running, f"penstock run ended with {self._process and self._process.returncode}"
            return self.get("/ready")[0] == 200

        _ = wait_until(look, seconds=seconds, what="the daemon is ready")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of one page of the exporter; status 0 when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.exporter_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read().decode(errors="replace")
        except OSError:
            return 0, ""

    def children(self) -> list[Child]:
        """The programs that live now; those that have exec'ed into themselves."""
        found: list[Child] = []
        try:
            pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return []
        for pid in map(int, pids):
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            name = _name_of(arguments)
            if name is not None:
                found.append(Child(name, pid))
        return sorted(found)

    def pids(self) -> dict[str, int]:
        """Program to pid, of those that live now."""
        return {child.name: child.pid for child in self.children()}

    def kill(self, name: str, *, seconds: float = READY_S) -> int:
        """`kill -9` of one program, waiting for it to be there first; returns the pid that died."""
        pid = wait_until(lambda: self.pids().get(name), seconds=seconds, what=f"{name} is there to be killed")
        self._kill_and_wait([pid])
        return pid

    def kill_some_shard(self, random: Random) -> str:
        """`kill -9` of a shard drawn by `random`; returns its name."""
        name = f"shard-{random.randrange(self.shards)}"
        _ = self.kill(name)
        return name

    def kill_everything(self) -> None:
        """`kill -9` of supervisord and all its programs, at once."""
        children = [child.pid for child in self.children()]
        # supervisord first, or it would start again what dies before it.
        self._kill_and_wait([self.pid, *children])

    def _kill_and_wait(self, pids: Iterable[int]) -> None:
        """Kill, and wait until the kernel has let go of each: sockets closed, locks free."""
        ends: list[int] = []
        try:
            for pid in pids:
                try:
                    ends.append(os.pidfd_open(pid))
                except ProcessLookupError:
                    continue
            for descriptor in ends:
                try:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            deadline = Deadline(20, "the killed processes are gone")
            for descriptor in ends:
                while not select.select([descriptor], [], [], deadline.left())[0]:
                    pass
        finally:
            for descriptor in ends:
                os.close(descriptor)
        if self._process is not None:
            _ = self._process.poll()

    def stop(self, *, seconds: float = STOP_S) -> int:
        """Wait until it is ready, SIGTERM to supervisord, as systemd does it; returns the exit status.

        Ready first, because a SIGTERM that meets a child between supervisord's fork and exec is lost, and supervisord
        then waits all of `stopwaitsecs`. Killed, with TooLateError, when it takes too long.
        """
        assert self._process is not None
        self.wait_ready()
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill_everything()
            raise TooLateError(f"the daemon did not stop within {seconds * PATIENCE} s") from None

    def describe(self) -> str:
        """What `/stats` says and the end of the log, for the message of a failure."""
        return f"folder: {self.folder}\n/stats: {self.get('/stats')[1][:4000]}\nthe daemon's log:\n{tail(self.log_path, lines=60)}"

    def close(self) -> None:
        """Kill what runs and remove the folder, unless PENSTOCK_KEEP is set. Harmless when done already."""
        atexit.unregister(self.close)
        LIVING.discard(self)
        if self.running:
            self.kill_everything()
        if self._process is not None:
            _ = end(self._process)
        if "PENSTOCK_KEEP" not in os.environ:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """For `with`; nothing is started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close. A failure is told what `describe` says."""
        if raised is not None:
            raised.add_note(self.describe())
        self.close()
