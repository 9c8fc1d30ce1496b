"""The broker's internal topics: they replicate the state of coordinators, so that a successor can load it."""

from __future__ import annotations

from typing import Final

TRANSACTIONS: Final = "__transaction_state"
OFFSETS: Final = "__consumer_offsets"
NAMES: Final = frozenset({TRANSACTIONS, OFFSETS})
PARTITIONS: Final = 4
"""Partitions of each topic; Kafka's default is 50, which only spreads load."""

REPLICAS_MAX: Final = 3
IN_SYNC_MIN: Final = 2
"""In-sync replicas that a transaction state needs, if it has as many (`transaction.state.log.min.isr`)."""


def internal_partition_of(key: str) -> int:
    """Return the partition that holds a group or transactional id: as in Kafka, by Java's string hash."""
    code = 0
    encoded = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        code = (31 * code + int.from_bytes(encoded[at : at + 2], "big")) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % PARTITIONS


def settings_of(name: str, replicas: int) -> tuple[tuple[str, str], ...]:
    """Return the settings of an internal topic with this many replicas."""
    least = min(IN_SYNC_MIN, replicas) if name == TRANSACTIONS else 1
    compacted = ("cleanup.policy", "compact")
    return (compacted,) if least == 1 else (compacted, ("min.insync.replicas", str(least)))
