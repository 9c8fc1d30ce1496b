"""The units and timers of the pipeline, as systemd reads them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.requirements import need_program

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("penstock-land.service", "penstock-audit.service", "penstock-seal.service")
TIMERS = ("penstock-audit.timer", "penstock-seal.timer")
COMMAND = "/opt/penstock/bin/penstock-pipeline"
pytestmark = pytest.mark.systemd


def analyze(*words: str) -> "subprocess.CompletedProcess[str]":
    need_program("systemd-analyze", package="systemd")
    return subprocess.run(["systemd-analyze", *words], check=False, text=True, capture_output=True, timeout=60)


def test_the_units_and_timers_have_no_mistake_that_systemd_can_see(tmp_path: Path) -> None:
    for name in SERVICES:
        text = (ROOT / "systemd" / name).read_text()
        assert f"ExecStart={COMMAND} " in text
        # This machine has neither the program nor its user.
        text = text.replace(COMMAND, "/bin/true").replace("=penstock-pipeline\nGroup", "=root\nGroup")
        _ = (tmp_path / name).write_text(text.replace("Group=penstock-pipeline", "Group=root"))
    for name in TIMERS:
        _ = shutil.copyfile(ROOT / "systemd" / name, tmp_path / name)
    done = analyze("verify", "--man=no", *(str(tmp_path / name) for name in (*SERVICES, *TIMERS)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_the_units_are_as_closed_as_a_jvm_allows(name: str) -> None:
    done = analyze("security", "--offline=true", "--threshold=20", str(ROOT / "systemd" / name))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
