"""The clock that tests step: the wall clock moves, the monotonic one does not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.wall_clock import WallClock

pytestmark = pytest.mark.process

TELL = """
import sys, time
from datetime import datetime, timezone
for _ in sys.stdin:
    print(time.time(), datetime.now(timezone.utc).timestamp(), time.time_ns() / 1e9, time.monotonic(), flush=True)
"""
NEAR_S = 30.0


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path, ahead_s=-7_200)


@pytest.fixture
def teller(clock: WallClock) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-I", "-c", TELL],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def told(teller: subprocess.Popen[str]) -> tuple[list[float], float]:
    """How far ahead of ours its wall clock is, by each way to ask, and its monotonic clock."""
    assert teller.stdin is not None
    assert teller.stdout is not None
    _ = teller.stdin.write("\n")
    teller.stdin.flush()
    *walls, monotonic = (float(word) for word in teller.stdout.readline().split())
    return [wall - time.time() for wall in walls], monotonic - time.monotonic()


def test_the_wall_clock_steps_and_the_other_does_not(clock: WallClock, teller: subprocess.Popen[str]) -> None:
    for step in (0, -1_800, 3 * 3_600, -10 * 86_400):
        clock.step(step)
        walls, monotonic = told(teller)
        assert walls == pytest.approx([clock.ahead_s] * 3, abs=NEAR_S)
        assert abs(monotonic) < NEAR_S
