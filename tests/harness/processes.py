"""Processes that end with the test run, and waits that end at a deadline."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TypeVar

T = TypeVar("T")

REPOSITORY: Final = Path(__file__).resolve().parents[2]
TIED: Final = Path(__file__).with_name("tied.py")
PATIENCE: Final = 3.0
"""How many times longer than it says a wait for something that must happen may take. Such a limit only ends a hang, and a
machine that does something else meanwhile may need several times what a quiet one needs."""


class TooLateError(AssertionError):
    """Something awaited did not come before its deadline."""


class Deadline:
    """An instant on the monotonic clock that waits must not pass."""

    __slots__ = ("at", "what")

    def __init__(self, seconds: float, what: str) -> None:
        """Begin now, and last `PATIENCE` times `seconds`; `what` is named when it is missed."""
        self.at = time.monotonic() + seconds * PATIENCE
        self.what = what

    def left(self) -> float:
        """Seconds left. Raise TooLateError when there are none."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise TooLateError(f"too late: {self.what}")
        return left


def wait_until(look: Callable[[], T | None], *, seconds: float, what: str, every: float = 0.05) -> T:
    """Ask `look` until its answer is neither None nor False, and return that answer. Raise TooLateError
    after `PATIENCE` times `seconds`."""
    deadline = Deadline(seconds, what)
    pause = threading.Event()
    while True:
        answer = look()
        if answer is not None and answer is not False:
            return answer
        _ = pause.wait(min(every, deadline.left()))


def start_tied(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = REPOSITORY,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command that the kernel kills when this process ends."""
    assert threading.current_thread() is threading.main_thread(), "the tie is to the starting thread"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(TIED), str(os.getpid()), *argv],
        env=None if env is None else dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )


def end(process: subprocess.Popen[bytes], *, seconds: float = 20) -> int:
    """Ask a process to end, kill it when it does not, and return its exit status."""
    if process.poll() is None:
        # A stopped process acts on no signal but SIGKILL and SIGCONT.
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait(seconds)


def tail(path: Path, *, lines: int = 40) -> str:
    """The last lines of a log, for the message of a failure."""
    if not path.exists():
        return f"({path} does not exist)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
