"""Limits what one session may have unanswered, in bytes and records: reading stops there and resumes at three quarters.

The gap between the two keeps a session at its limit from being paused and resumed with every answer.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class SessionCredit:
    """One session's credit. A frame is accepted whole, so the last one before the pause may exceed the limit."""

    bytes_max: int
    records_max: int
    nbytes: int = 0
    records: int = 0
    exhausted: bool = False

    def take(self, nbytes: int, records: int) -> None:
        """A frame was accepted and is unanswered."""
        self.nbytes += nbytes
        self.records += records
        self.exhausted = self.exhausted or self.nbytes >= self.bytes_max or self.records >= self.records_max

    def give(self, nbytes: int, records: int) -> bool:
        """A frame was answered. Returns True when the session may be read again because of it."""
        self.nbytes -= nbytes
        self.records -= records
        assert self.nbytes >= 0, "more bytes were answered than taken"
        assert self.records >= 0, "more records were answered than taken"
        if not self.exhausted:
            return False
        self.exhausted = self.nbytes * 4 > self.bytes_max * 3 or self.records * 4 > self.records_max * 3
        return not self.exhausted
