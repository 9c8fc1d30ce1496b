"""Which run of the machine this is: what tells a kill from a power cut."""

import os
import uuid
from pathlib import Path
from typing import Final

BOOT_VARIABLE: Final = "PENSTOCK_BOOT_ID"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """16 bytes that change with every boot. The unit gives them in the environment, because it hides all of /proc/sys.

    Raises:
        OSError: neither the environment nor the kernel tells; without it a power cut would look like a kill.
        ValueError: the environment holds something else.
    """
    told = os.environ.get(BOOT_VARIABLE) or _BOOT_ID.read_text(encoding="ascii")
    return uuid.UUID(told.strip()).bytes
