"""A wall clock that a test may step: a library is preloaded into the processes that live by it, their other clocks go on as ever."""

import hashlib
import os
import struct
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from .processes import REPOSITORY

SOURCE: Final = Path(__file__).with_name("wall_clock.c")


@cache
def library() -> Path:
    """The library, compiled if it is not there yet. Raise CalledProcessError."""
    name = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = REPOSITORY / "build" / "wall_clock" / f"{name}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
        _ = subprocess.run(command, check=True, timeout=60)
        # Whole or not at all: others may be compiling it, too.
        _ = made.rename(path)
    return path


class WallClock:
    """How far ahead of the machine's the clock is of those processes that are started in its environment."""

    def __init__(self, folder: Path, *, ahead_s: float = 0.0) -> None:
        """The clock's file is made in `folder`."""
        self._path = folder / "clock"
        self._ahead_s = ahead_s
        _ = self._path.write_bytes(self._packed())

    def _packed(self) -> bytes:
        return struct.pack("=q", round(self._ahead_s * 1e9))

    @property
    def ahead_s(self) -> float:
        """Seconds ahead of the machine's clock; below 0: behind."""
        return self._ahead_s

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back when below 0, for all processes at once."""
        self._ahead_s += seconds
        # In place, in one write of eight bytes: the processes have the file mapped.
        with self._path.open("r+b") as file:
            _ = file.write(self._packed())

    @property
    def environment(self) -> dict[str, str]:
        """What to add to the environment of a process that shall live by this clock."""
        return {"LD_PRELOAD": str(library()), "PENSTOCK_TEST_CLOCK": str(self._path)}
