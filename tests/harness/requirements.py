"""What a test needs of the machine it runs on: root, mounts, programs.

Without it the test is skipped, except where `PENSTOCK_REQUIRE_ALL=1` says that this machine must have everything (`make test`, `make
soak`): there it fails, so that no test can disappear from CI without anybody noticing.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import pytest

REQUIRE_ALL: Final = "PENSTOCK_REQUIRE_ALL"


def missing(reason: str, *, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip this test because this machine lacks something; fail it where nothing may be lacking.

    `reason` says what is lacking and what to install or allow.
    """
    if environment.get(REQUIRE_ALL) == "1":
        pytest.fail(f"{REQUIRE_ALL}=1, but this test {reason}", pytrace=False)
    pytest.skip(reason)


def need_root(purpose: str) -> None:
    """End the test, as `missing` does, unless it runs as root."""
    if os.geteuid() != 0:
        missing(f"needs root to {purpose} (run the tests as root)")


def need_program(program: str, *, package: str) -> None:
    """End the test, as `missing` does, unless this program is in PATH."""
    if shutil.which(program) is None:
        missing(f"needs {program} (Debian package {package})")


@contextmanager
def mounted_tmpfs(mount_point: Path, options: str) -> Iterator[Path]:
    """A file system in memory with these mount options, really full when it is full. Ends the test where it cannot be mounted."""
    need_root("mount a small file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount_point)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        missing(f"needs to mount a tmpfs, which this machine does not allow: {done.stderr.strip()}")
    try:
        yield mount_point
    finally:
        # Lazily, because a test that fails may have left files open.
        _ = subprocess.run(["umount", "--lazy", str(mount_point)], check=True)
