"""The timer of a query that is repeated."""

from ..protocol.backoff import Backoff


class RetryTimer:
    """When a query is due, whether it is in flight, and how often it failed. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self) -> None:
        self.due: float | None = None
        self.in_flight = False
        self.attempts = 0

    def schedule(self, at: float) -> None:
        self.due = at if self.due is None else min(self.due, at)

    def is_due(self, now: float) -> bool:
        return not self.in_flight and self.due is not None and now >= self.due

    def retry(self, now: float, backoff: Backoff, chance: float) -> None:
        self.in_flight = False
        self.due = now + backoff.wait_s(self.attempts, chance)
        self.attempts += 1

    def succeed(self, due: float | None) -> None:
        self.in_flight = False
        self.attempts = 0
        self.due = due

    def deadline(self) -> float | None:
        return None if self.in_flight else self.due
