"""A throw-away machine with a real systemd as process 1, for tests of the unit: systemd-nspawn over an overlay of this machine.

Nothing is written to the host's tree. `/tmp` and `/run` are fresh inside, the network is the box's own (loopback only), and only
`basic.target` is started, so that services of the host stay out. Needs root and the Debian package systemd-container.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

BOOT_S: Final = 60.0
STOP_S: Final = 30.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
# On cgroup v1 these are mounted read-only inside, and limits of the unit would do nothing.
_CONTROLLERS: Final = ("memory", "pids", "devices", "cpu")


def unavailable() -> str | None:
    """Why no box can be booted here, or None."""
    if os.geteuid() != 0:
        return "needs root to boot a systemd (run the tests as root)"
    for program in ("systemd-nspawn", "nsenter", "mount"):
        if shutil.which(program) is None:
            return f"needs {program} (Debian package systemd-container)"
    return None


class BoxError(Exception):
    """The box did not boot or stop; the text ends with its console."""


class Box:
    """One booted machine. Use as a context manager."""

    def __init__(self, name: str, state: Path, *, binds: Sequence[tuple[Path, str]] = ()) -> None:
        self.name = f"{name}-{os.getpid()}"
        self.state = state
        self.binds = binds
        self.leader = 0
        self._nspawn: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._mount()
            self._boot()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def run(self, *command: str, check: bool = True, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root, and wait for it."""
        return subprocess.run(
            self._inside(command),
            check=check,
            text=True,
            capture_output=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command inside, as root; its output comes through pipes."""
        return subprocess.Popen(
            self._inside(command), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "-u", unit, "--no-pager", "-n", "200", check=False).stdout

    def stop(self) -> None:
        """Power off in order; with force when that takes too long."""
        if self.leader:
            self.run("systemctl", "--no-block", "poweroff", check=False)
        if self._nspawn is not None:
            try:
                self._nspawn.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._unmount()

    def kill(self) -> None:
        """End everything at once."""
        if self.leader:
            _kill(self.leader)
        if self._nspawn is not None:
            if self.leader == 0:
                self._nspawn.terminate()
            try:
                self._nspawn.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()
        self._unmount()

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self.leader), "-a", "--", *command]

    def _mount(self) -> None:
        layers, root = self.state / "layers", self.state / "root"
        layers.mkdir(parents=True)
        root.mkdir()
        _do("mount", "-t", "tmpfs", "tmpfs", str(layers))
        (layers / "upper").mkdir()
        (layers / "work").mkdir()
        # nspawn refuses the host's own root folder; an overlay mount of it is another folder with the same files.
        _do(
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work",
            str(root),
        )

    def _boot(self) -> None:
        for group in self._groups():
            group.mkdir(exist_ok=True)
        command = [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.state / 'root'}",
            f"--machine={self.name}",
            "--register=no",
        ]
        command += ["--keep-unit", "--private-network", "--capability=CAP_BPF,CAP_PERFMON", "--system-call-filter=bpf"]
        command += [f"--bind-ro={source}:{target}" for source, target in self.binds]
        command += ["--boot", "systemd.unit=basic.target"]
        with (self.state / "console").open("wb") as console:
            self._nspawn = subprocess.Popen(
                ["/bin/sh", "-c", _JOIN_GROUPS, "sh", *[str(group / "cgroup.procs") for group in self._groups()], "--", *command],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
            )  # fmt: skip
        self._await_boot()
        if (_CGROUPS / "memory").is_dir():
            mounts = "; ".join(f"mount -o remount,bind,rw /sys/fs/cgroup/{name}" for name in _CONTROLLERS)
            self.run("sh", "-c", mounts, check=False)
            self.run("systemctl", "daemon-reexec")
        self.run("ip", "link", "set", "lo", "up")

    def _await_boot(self) -> None:
        assert self._nspawn is not None
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            if self._nspawn.poll() is not None:
                break
            children = _children(self._nspawn.pid)
            if children:
                self.leader = children[0]
                told = self.run("systemctl", "is-system-running", check=False).stdout.strip()
                if told in ("running", "degraded"):
                    return
            time.sleep(0.05)
        self.leader = 0
        raise BoxError("systemd did not boot:\n" + (self.state / "console").read_text(errors="replace")[-2000:])

    def _groups(self) -> list[Path]:
        """A control group of its own in each hierarchy, so that two boxes do not meet."""
        if (_CGROUPS / "cgroup.procs").exists():
            return [_CGROUPS / self.name]
        # Version 1 groups of cpuset would need processors first; they are not used.
        return [
            path / self.name
            for path in sorted(_CGROUPS.iterdir())
            if (path / "cgroup.procs").exists() and path.name != "cpuset"
        ]

    def _unmount(self) -> None:
        for group in self._groups():
            if group.is_dir():
                subprocess.run(
                    ["find", str(group), "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"],
                    check=False,
                    capture_output=True,
                )
        for name in ("root", "layers"):
            if os.path.ismount(self.state / name):
                _do("umount", "-l", str(self.state / name))


_JOIN_GROUPS: Final = 'while [ "$1" != "--" ]; do echo $$ >"$1" || exit 1; shift; done; shift; exec "$@"'


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
