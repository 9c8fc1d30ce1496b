"""A power cut, as far as files can show one: everything ends at once, and the next start finds another boot and no journals."""

import json
import shutil
from typing import Final

from crc32c import crc32c

from .stack import Stack

_SLOT: Final = 4_096


def cut_power(stack: Stack) -> None:
    """End router and shards, and make the machine look as if it had been started anew."""
    stack.kill_router()
    for seat in stack.shards:
        stack.kill_shard(seat)
    identity = stack.settings.spool_dir / "identity"
    slots = identity.read_bytes()
    identity.write_bytes(b"".join(_of_another_boot(slots[at : at + _SLOT]) for at in range(0, len(slots), _SLOT)))
    shutil.rmtree(stack.settings.journal_dir)


def _of_another_boot(slot: bytes) -> bytes:
    """A slot of the identity file as an earlier run of the machine would have written it."""
    if not slot.strip(b"\0 \n"):
        return slot
    serial, _, fields = json.loads(slot)
    fields["boot_id"] = "00000000-0000-0000-0000-000000000000"
    crc = crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    return json.dumps([serial, crc, fields]).encode().ljust(_SLOT - 1) + b"\n"
