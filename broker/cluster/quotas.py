"""Client quotas: a throttled client gets its response and throttle time at once, and is muted for that time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

THROTTLE_S_MAX: Final = 1.0
"""Longest throttle time of one response; the excess counts for the next (Kafka: one quota window)."""


class QuotaError(ValueError):
    """An invalid quota."""


@dataclass(slots=True)
class Quota:
    """A leaky bucket: the bytes of a client fill it, and it drains at the client's rate."""

    bytes_per_s: float
    level: float = 0.0
    at: float = 0.0


class Quotas:
    """Rates by client id; a client without a rate is never throttled."""

    def __init__(self) -> None:
        self._quotas: dict[str, Quota] = {}

    def set(self, client_id: str, bytes_per_s: float | None) -> None:
        """Set the rate of a client; None removes it.

        Raises:
            QuotaError: the rate is not above zero.
        """
        if bytes_per_s is None:
            _ = self._quotas.pop(client_id, None)
            return
        if not bytes_per_s > 0:
            raise QuotaError("a rate is above zero")
        self._quotas[client_id] = Quota(bytes_per_s)

    def throttle_s(self, client_id: str, size: int, now: float) -> float:
        """Count the `size` bytes of a Produce request, even if rejected; return the throttle time (seconds)."""
        quota = self._quotas.get(client_id)
        if quota is None:
            return 0.0
        leaked = (now - quota.at) * quota.bytes_per_s
        # The bytes of one second pass without throttling.
        quota.level = max(0.0, quota.level - leaked) + size
        quota.at = now
        over = quota.level - quota.bytes_per_s
        return min(max(0.0, over / quota.bytes_per_s), THROTTLE_S_MAX)
