"""Sequence numbers: 31 bits that wrap around (SEQ-1). They are never compared: ordinals define the order."""

from typing import Final

SEQUENCES: Final = 1 << 31


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` records later, or earlier if `count` is negative."""
    return (sequence + count) % SEQUENCES
