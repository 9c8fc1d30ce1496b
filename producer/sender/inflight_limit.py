"""Limits how many batches of a partition may be unresolved, by what the broker certainly remembers (8.2).

A broker keeps the state of a producer for E (`producer.id.expiration.ms`), counted from the record timestamps of its
last batch, and drops it when the log start passes that batch. Half of E is the margin.
"""

from ...wire.messages import FIRST, NARROW, OPEN, Anchor


def pace_of(anchor: Anchor | None, log_start: int, oldest_ms: int, *, wall_ms: int, expiration_ms: int) -> str:
    """The widest safe pace. `oldest_ms`: oldest timestamp among unresolved batches, a large number without any."""
    half = expiration_ms // 2
    if anchor is None or wall_ms - anchor.acked_wall_ms > half or log_start > anchor.base_offset:
        return FIRST
    if wall_ms - min(anchor.time_ms, oldest_ms) > half:
        return NARROW
    return OPEN
