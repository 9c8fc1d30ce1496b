"""What can go wrong for an application, by what it means for its records."""

from collections.abc import Sequence
from typing import NamedTuple


class RefusedRange(NamedTuple):
    """Records `first` … `first + count - 1` of what was sent, and why; `code` is one of the local protocol's."""

    first: int
    count: int  # type: ignore[assignment]
    code: str
    text: str


class PenstockError(Exception):
    """Any error of the client library."""


class RefusedError(PenstockError):
    """Definite: the records are not in Kafka and the daemon will never send them; they are the application's again.

    `code` says why, as a word of the local protocol; `retry_ms` is a hint when to try again, or None. For several records
    `refused` says which of them, and those not named there were taken.
    """

    def __init__(
        self, code: str, text: str, *, retry_ms: int | None = None, refused: Sequence[RefusedRange] = ()
    ) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.retry_ms = retry_ms
        self.refused = tuple(refused)


class OutcomeUnknownError(PenstockError):
    """Neither yes nor no: the records may be in Kafka, or may still get there."""


class ClosedError(PenstockError):
    """The producer is closed, or cannot go on; the records were never handed to the daemon."""


class SessionError(ClosedError):
    """The daemon refuses the session for good. `code` is a word of the local protocol."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class BufferExhaustedError(PenstockError, TimeoutError):
    """The client's buffer stayed full for `max_block_ms`; the record was not taken."""


class WaitTimeoutError(PenstockError, TimeoutError):
    """What was waited for did not happen in time. The records keep going."""
