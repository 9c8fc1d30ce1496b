"""Identifies the current boot of the machine, which separates a killed process from a power failure."""

import os
import uuid
from pathlib import Path
from typing import Final

BOOT_VARIABLE: Final = "PENSTOCK_BOOT_ID"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return 16 bytes that change with every boot. The systemd unit passes them in the environment, because it hides
    all of /proc/sys.

    Raises:
        OSError: neither the environment nor the kernel provides the id; without it a power failure would look like a
        kill.
        ValueError: the environment holds something else.
    """
    told = os.environ.get(BOOT_VARIABLE) or _BOOT_ID.read_text(encoding="ascii")
    return uuid.UUID(told.strip()).bytes
