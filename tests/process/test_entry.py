"""The command `penstock` of an installation for clients only."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(*absent: str) -> subprocess.CompletedProcess[str]:
    """`penstock version` where these modules are not installed."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["penstock"].partition(":")
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in absent)]
    lines += ["sys.argv = ['penstock', 'version']", f"from {module} import {function}", f"{function}()"]
    command = [sys.executable, "-I", "-c", "\n".join(lines)]
    return subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)


def test_the_command_runs_where_everything_is_installed() -> None:
    done = start()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("penstock ")


@pytest.mark.parametrize("absent", ["typer", "pydantic"])
def test_without_the_daemons_parts_it_says_what_to_install(absent: str) -> None:
    done = start(absent)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"needs {absent}" in done.stderr
    assert "penstock[daemon]" in done.stderr
    assert "Traceback" not in done.stderr
