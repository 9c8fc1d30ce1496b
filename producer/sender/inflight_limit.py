"""Limits how many batches of a partition may be unresolved, by what the broker certainly remembers (8.2).

A broker keeps the state of a producer for E (`producer.id.expiration.ms`), counted from the record timestamps of its
last batch, and drops it when the log start passes that batch. Half of E is the margin.
"""

from typing import Final

from ...wire.messages import FIRST, NARROW, OPEN, Anchor

RENEW_S: Final = 60.0
"""A sender whose clock is slightly ahead may have narrowed its pace by itself. While acks arrive, the pace is sent again
at least this often."""


def pace_of(anchor: Anchor | None, log_start: int, oldest_ms: int, *, wall_ms: int, expiration_ms: int) -> str:
    """The widest safe pace. `oldest_ms`: oldest timestamp among unresolved batches, a large number without any."""
    half = expiration_ms // 2
    if anchor is None or wall_ms - anchor.acked_wall_ms > half or log_start > anchor.base_offset:
        return FIRST
    if wall_ms - min(anchor.time_ms, oldest_ms) > half:
        return NARROW
    return OPEN


def is_renewal_due(pace: str, *, log_start_moved: bool, age_s: float) -> bool:
    """Whether an ack is followed by another PACE. `log_start_moved`: so far that the sender may have narrowed its pace
    by itself. `age_s`: seconds since the last PACE."""
    return pace != OPEN or log_start_moved or age_s >= RENEW_S
