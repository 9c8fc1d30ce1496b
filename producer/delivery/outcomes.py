"""What becomes of records in the direct producer, as the sender thread tells its front: ranges of ordinals of a partition.

Outcomes of a partition are told in the order of ordinals. A ghost (a record that has failed and may be in the log) is told
`Failed` with `released` False when it expires, and `Released` when nothing of it can be written any more.
"""

from enum import Enum
from typing import NamedTuple


class DeliveryFailureKind(Enum):
    """Why records failed."""

    REFUSED = "refused"
    """By the broker, for good; not written."""
    EXPIRED = "expired"
    """Never sent: certainly not written."""
    MAY_BE_WRITTEN = "may be written"
    """Expired or given up while the log may hold them."""
    FATAL = "fatal"
    """The producer cannot go on at all."""
    CLOSED = "closed"
    """Closed before they were sent."""
    ABORTED = "aborted"
    """Their transaction was aborted, or can only be aborted."""
    FENCED = "fenced"
    """Fatal: another producer has taken the transactional id."""


class DeliveryFailure(NamedTuple):
    """Why, for programs and for people. `code` is Kafka's, -1: none; `name` Kafka's name of it, or our own. For expiries the
    message tells where the time went, how many attempts there were and the last error."""

    kind: DeliveryFailureKind
    code: int
    name: str
    message: str


class Delivered(NamedTuple):
    """Records `first` to `first + count - 1` are in the log. `base_offset` is that of the first, -1: not known.
    `log_append_ms`: the broker's time, ms since 1970; -1: the records keep theirs."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]
    base_offset: int
    log_append_ms: int


class Failed(NamedTuple):
    """Their futures fail. `released` False: they are ghosts, whose memory stays taken until `Released`."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]
    failure: DeliveryFailure
    released: bool


class Released(NamedTuple):
    """These ghosts are resolved: nobody reads their memory any more."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]


DeliveryOutcome = Delivered | Failed | Released
