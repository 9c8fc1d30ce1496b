"""Counts the starts of each daemon process, in files that outlive it. Each start appends one byte to the process's
file."""

import os
from pathlib import Path
from typing import Final

_FOLDER: Final = "starts"


def record_start(runtime_dir: Path, process: str) -> None:
    """Record a start of this process. An append of one byte cannot be torn by a crash."""
    folder = runtime_dir / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / process, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _ = os.write(descriptor, b".")
    finally:
        os.close(descriptor)


def reset_starts(runtime_dir: Path) -> None:
    """Reset the counts when the launcher starts."""
    folder = runtime_dir / _FOLDER
    for path in folder.iterdir() if folder.is_dir() else ():
        path.unlink()


def restarts(runtime_dir: Path) -> dict[str, int]:
    """Return the number of restarts of each process."""
    folder = runtime_dir / _FOLDER
    return {path.name: path.stat().st_size - 1 for path in sorted(folder.iterdir())} if folder.is_dir() else {}
