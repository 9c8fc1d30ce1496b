"""The rules by which a partition's leader is followed, for the metadata, the daemon's leases and the direct producer."""

from typing import Final

NO_EPOCH: Final = -1
"""The broker is too old to report leader epochs."""


def may_follow(epoch: int, newest: int) -> bool:
    """Whether a leader with this epoch may be used where `newest` is the newest epoch known. Epochs never go back
    (HO-16): the log of an older leader may lack what was acknowledged since."""
    return epoch == NO_EPOCH or epoch >= newest


def is_recreated(known_id: bytes | None, told_id: bytes | None) -> bool:
    """Whether the topic was deleted and recreated: both ids are known and differ. Its log is another one (IDN-8)."""
    return bool(known_id) and bool(told_id) and known_id != told_id
