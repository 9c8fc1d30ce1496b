"""Something that is asked again and again."""

from ..protocol.backoff import Backoff


class Chore:
    """When to ask, whether it is on its way, and how often it failed. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self) -> None:
        self.due: float | None = None
        self.asked = False
        self.attempts = 0

    def wanted(self, at: float) -> None:
        self.due = at if self.due is None else min(self.due, at)

    def is_due(self, now: float) -> bool:
        return not self.asked and self.due is not None and now >= self.due

    def again(self, now: float, backoff: Backoff, chance: float) -> None:
        self.asked = False
        self.due = now + backoff.wait_s(self.attempts, chance)
        self.attempts += 1

    def done(self, due: float | None) -> None:
        self.asked = False
        self.attempts = 0
        self.due = due

    def deadline(self) -> float | None:
        return None if self.asked else self.due
