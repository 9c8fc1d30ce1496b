"""Sequence numbers: 31 bits that go round (SEQ-1). They are never compared: order is told by ordinals."""

from typing import Final

SEQUENCES: Final = 1 << 31


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` records further; below 0: before."""
    return (sequence + count) % SEQUENCES
