"""Outcomes of records in the direct producer: ranges of ordinals of a partition, from the delivery to the futures.

Outcomes of a partition are in ordinal order. An in-doubt record (it has failed and may be in the log) gets `Failed`
with `released` False when it expires, and `Released` once it can no longer be written to the log.
"""

from enum import Enum
from typing import NamedTuple


class DeliveryFailureKind(Enum):
    """Why records failed."""

    REFUSED = "refused"
    """The broker refused them permanently; not written."""
    EXPIRED = "expired"
    """Never sent: certainly not written."""
    MAY_BE_WRITTEN = "may be written"
    """Expired or abandoned; the log may have them."""
    FATAL = "fatal"
    """A fatal error of the producer."""
    CLOSED = "closed"
    """Closed before they were sent."""
    ABORTED = "aborted"
    """Their transaction was aborted, or can only be aborted."""
    FENCED = "fenced"
    """Fatal: another producer has taken the transactional id."""


class DeliveryFailure(NamedTuple):
    """Why records failed. `code`: Kafka's error code, -1: none. `name`: its Kafka name, or our own. The message of an
    expiry has the reason for the delay, the number of attempts and the last error."""

    kind: DeliveryFailureKind
    code: int
    name: str
    message: str


class Delivered(NamedTuple):
    """Records `first` to `first + count - 1` are in the log. `base_offset`: offset of the first, -1: not known.
    `log_append_ms`: the broker's append time, ms since 1970; -1: the records keep their timestamps."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]
    base_offset: int
    log_append_ms: int


class Failed(NamedTuple):
    """The futures of these records fail. `released` False: they are in doubt and keep their memory until `Released`."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]
    failure: DeliveryFailure
    released: bool


class Released(NamedTuple):
    """These in-doubt records are resolved: nothing reads their memory any more."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]


DeliveryOutcome = Delivered | Failed | Released
