"""The unit in a booted systemd: Penstock installed at /opt/penstock, an embedded broker beside it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.requirements import missing

from .box import Box, unavailable

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "systemd"
BROKER = "127.0.0.1:19092"
TOPIC = "events"
SYSTEM_PYTHON = "/usr/bin/python3"


def _python_problem() -> str | None:
    """The unit hides home directories, so it needs a Python outside of them, of the version the wheel is built for."""
    try:
        told = subprocess.run(
            [SYSTEM_PYTHON, "-c", "import sys; print(*sys.version_info[:2])"],
            check=True,
            text=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return f"needs {SYSTEM_PYTHON} (Debian package python3)"
    ours = f"{sys.version_info.major} {sys.version_info.minor}"
    found = told.stdout.strip()
    return None if found == ours else f"needs {SYSTEM_PYTHON} to be Python {ours}, as the wheel is, and not {found}"


@pytest.fixture(scope="session")
def installed() -> Path:
    """A virtual environment of the system's Python with our wheel and its locked dependencies, to be seen at /opt/penstock."""
    problem = unavailable() or _python_problem()
    if problem is not None:
        missing(problem)
    target = BUILD / "opt"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    if not (target / "ready").exists():
        _do(SYSTEM_PYTHON, "-m", "venv", "--clear", "--without-pip", str(target))
        _do(
            *pip,
            "--python",
            str(target / "bin/python"),
            "install",
            "--require-hashes",
            "-r",
            str(ROOT / "requirements/daemon.txt"),
        )
        (target / "ready").touch()
    _do(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(BUILD / "wheel"), str(ROOT))
    (wheel,) = (BUILD / "wheel").glob("penstock-*.whl")
    _do(*pip, "--python", str(target / "bin/python"), "install", "--no-deps", "--force-reinstall", str(wheel))
    script = target / "bin" / "penstock"
    script.write_text(script.read_text().replace(str(target), "/opt/penstock"))
    return target


@pytest.fixture
def box(installed: Path, tmp_path: Path) -> Iterator[Box]:
    """A booted machine with the unit started and ready."""
    # The checkout is bound to where it is, because it may lie below /tmp, which is fresh inside.
    binds = [(installed, "/opt/penstock"), (ROOT, str(ROOT))]
    with Box("penstock", tmp_path / "box", binds=binds) as machine:
        machine.run("systemd-sysusers", str(ROOT / "systemd/sysusers.conf"))
        machine.run("cp", str(ROOT / "systemd/penstock.service"), "/etc/systemd/system/")
        settings = f'shards = 2\n[kafka]\nbootstrap.servers = "{BROKER}"\n[spool]\nbytes_max = "512MiB"\n'
        machine.run("sh", "-c", f"mkdir -p /etc/penstock && printf '%s' '{settings}' >/etc/penstock/penstock.toml")
        machine.run(
            "systemd-run", "--unit=broker", "--collect", "/opt/penstock/bin/python", "-I", "-m", "penstock.broker.server",
            "--listen", BROKER, "--log-dir", "/var/broker", "--topic", f"{TOPIC}:6",
        )  # fmt: skip
        machine.run("systemctl", "daemon-reload")
        started = machine.run("systemctl", "start", "penstock", check=False)
        assert started.returncode == 0, machine.journal("penstock")
        yield machine


def _do(*command: str) -> None:
    done = subprocess.run(command, text=True, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
