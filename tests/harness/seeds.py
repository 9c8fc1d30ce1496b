"""The first seed of what runs by chance: another one with every commit, so that every landing looks at runs that none has seen."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

SEED: Final = "PENSTOCK_SEED"
WITHOUT_GIT: Final = 20_240_601
ROOT: Final = Path(__file__).resolve().parents[2]


@cache
def commit_seed(folder: Path = ROOT) -> int:
    """The first 32 bits of the commit that is checked out; a fixed seed where there is no git, as in an archive of the sources."""
    try:
        told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, text=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return WITHOUT_GIT
    return int(told.stdout[:8], 16)


def first_seed(name: str = SEED, environment: Mapping[str, str] = os.environ) -> int:
    """The seed that the environment names, for one kind of test or for all, or that of the commit."""
    return int(environment.get(name) or environment.get(SEED) or commit_seed())


@contextmanager
def named_in_failures(seed: int, repeat: str = "") -> Iterator[None]:
    """Add to every failure inside the seed and how to repeat it: `repeat`, or the environment variable."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"seed {seed}: " + (repeat or f"{SEED}={seed} repeats it"))
        raise
