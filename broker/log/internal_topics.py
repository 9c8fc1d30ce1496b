"""The broker's own topics: what coordinators know lies in them, so that it is copied, and loaded again by the next one."""

from __future__ import annotations

from typing import Final

TRANSACTIONS: Final = "__transaction_state"
OFFSETS: Final = "__consumer_offsets"
NAMES: Final = frozenset({TRANSACTIONS, OFFSETS})
PARTITIONS: Final = 4
"""Of each of them; Kafka's default is 50, which only spreads load."""

REPLICAS_MAX: Final = 3
IN_SYNC_MIN: Final = 2
"""Replicas that a state of a transaction needs, where there are as many (`transaction.state.log.min.isr`)."""


def internal_partition_of(key: str) -> int:
    """Which partition keeps what is known of a group or a transactional id: chosen as Kafka does, by Java's hash of strings."""
    code = 0
    encoded = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        code = (31 * code + int.from_bytes(encoded[at : at + 2], "big")) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % PARTITIONS


def settings_of(name: str, replicas: int) -> tuple[tuple[str, str], ...]:
    """Topic settings of an internal topic that gets so many replicas."""
    least = min(IN_SYNC_MIN, replicas) if name == TRANSACTIONS else 1
    compacted = ("cleanup.policy", "compact")
    return (compacted,) if least == 1 else (compacted, ("min.insync.replicas", str(least)))
