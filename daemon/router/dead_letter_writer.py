"""Writes permanently refused records to the dead letters; a partition stays blocked until they are on disk."""

from collections import Counter
from typing import Final

from ...config.model import Settings
from ...runtime import logs
from ...wire.frames import RefusedRecords
from ..deadletters.files import DeadLetterStore
from ..leases.ownership import Leases
from ..leases.refused_batches import DeadLetterRequest
from .startup import StartedRouter

AGAIN_S = 1.0
"""Backoff after a failed write: the disk may have space by then."""


class DeadLetterWriter:
    """The dead letters, and the requests that wait for the disk."""

    def __init__(self, settings: Settings, started: StartedRouter) -> None:
        self._letters = DeadLetterStore(settings.dead_letter_dir, started.identity.spool_id)
        self._letters.restore(started.recovered.frames)
        self._spool = started.spool
        self._leases: Leases = started.leases
        self._waiting: list[DeadLetterRequest] = []
        self._again_at = 0.0
        self.records: Final[Counter[str]] = Counter()
        """Records written to dead letters since the start, by Kafka's error."""
        self._log = logs.get()

    def lookup(self, client_id: str, seq: int) -> tuple[RefusedRecords, ...]:
        """Which records of a frame were dead-lettered."""
        return self._letters.lookup(client_id, seq)

    def write_pending(self, now: float) -> None:
        """Write the requested dead letters, and report each one on disk to the leases."""
        self._waiting += self._leases.dead_letter_requests
        self._leases.dead_letter_requests.clear()
        if now < self._again_at:
            return
        while self._waiting:
            request = self._waiting[0]
            try:
                letter = self._letters.park(request, self._spool.read_slice)
            except OSError as error:
                self._log.error(
                    "dead_letter_write_failed", topic=request.topic, partition=request.index, reason=str(error)
                )
                self._again_at = now + AGAIN_S
                return
            del self._waiting[0]
            records = sum(piece.count for piece in request.ranges)
            self.records[request.error] += records
            self._log.warning(
                "records_dead_lettered",
                topic=request.topic,
                partition=request.index,
                records=records,
                error=request.error,
                dead_letter=letter,
            )
            self._leases.dead_lettered(request, letter, now)

    def next_deadline(self) -> float | None:
        return self._again_at if self._waiting else None
