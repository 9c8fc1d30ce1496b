"""Clients that are slowed down: they are answered at once, told for how long, and not listened to until then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

THROTTLE_S_MAX: Final = 1.0
"""Longest pause that one answer tells: what is over goes into the next (Kafka: one quota window)."""


class QuotaError(ValueError):
    """A quota that cannot be."""


@dataclass(slots=True)
class Quota:
    """A bucket that fills with what a client sends and leaks at its rate."""

    bytes_per_s: float
    level: float = 0.0
    at: float = 0.0


class Quotas:
    """Rates by client id; a client without one is never slowed down."""

    def __init__(self) -> None:
        self._quotas: dict[str, Quota] = {}

    def set(self, client_id: str, bytes_per_s: float | None) -> None:
        """Give a client a rate, or take it away.

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
        """Count `size` bytes of a Produce request, refused ones too, and return for how long to pause (seconds)."""
        quota = self._quotas.get(client_id)
        if quota is None:
            return 0.0
        leaked = (now - quota.at) * quota.bytes_per_s
        # One second's worth passes without a pause.
        quota.level = max(0.0, quota.level - leaked) + size
        quota.at = now
        over = quota.level - quota.bytes_per_s
        return min(max(0.0, over / quota.bytes_per_s), THROTTLE_S_MAX)
