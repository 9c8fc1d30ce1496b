"""Errors raised to applications, by what they mean for the records."""

from collections.abc import Sequence
from typing import NamedTuple


class RefusedRange(NamedTuple):
    """Why records `first` … `first + count - 1` of a call were refused. `code` is one of the local protocol's codes."""

    first: int
    count: int  # type: ignore[assignment]
    code: str
    text: str


class PenstockError(Exception):
    """Any error of a producer.

    Errors of the direct producer name their records: `topic`, "" if unknown, and `partition`, -1 if none was chosen
    yet.
    """

    topic: str = ""
    partition: int = -1


class RefusedError(PenstockError):
    """Definite failure: the records are not in Kafka and will not be retried. The application may send them again.

    `code` is the reason: a code of the local protocol, or Kafka's name of a broker's error. `retry_ms` suggests when to
    try again, or is None. For several records, `refused` lists the refused ones; all others were accepted.
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
    """Unknown outcome: the records may be in Kafka, or may still get there."""


class ClosedError(PenstockError):
    """The producer is closed or has failed. The records were never handed to the daemon, or never sent to a broker."""


class SessionError(ClosedError):
    """The daemon refuses the session permanently. `code` is one of the local protocol's codes."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SerializationError(PenstockError):
    """The application's serializer cannot serialize a key or value. The record was not buffered."""


class BufferExhaustedError(PenstockError, TimeoutError):
    """The producer's buffer stayed full for the longest allowed wait. The record was not buffered."""


class WaitTimeoutError(PenstockError, TimeoutError):
    """The wait timed out. The producer keeps sending the records."""


# --- the direct producer ---------------------------------------------------------------------------------------------


class BrokerError(RefusedError):
    """A broker refused the records permanently. `code` and `number` are Kafka's name ("MESSAGE_TOO_LARGE") and error
    code."""

    def __init__(self, number: int, name: str, text: str) -> None:
        super().__init__(name, text)
        self.number = number


class RecordTooLargeError(RefusedError):
    """The record, uncompressed, is larger than `max.request.size` or `buffer.memory`. It was not buffered."""

    def __init__(self, text: str) -> None:
        super().__init__("too_large", text)


class InvalidTopicError(RefusedError):
    """The topic name is invalid in Kafka, or the topic cannot be written to. The record was not buffered."""

    def __init__(self, text: str) -> None:
        super().__init__("bad_topic", text)


class TopicForbiddenError(RefusedError):
    """The brokers do not allow this user to see or write the topic. The record was not buffered."""

    def __init__(self, text: str) -> None:
        super().__init__("forbidden", text)


class MetadataTimeoutError(RefusedError, TimeoutError):
    """No metadata for the topic or the partition arrived within `max.block.ms`. The record was not buffered.

    `cause`: Kafka's name of the brokers' last error for the topic, or why no broker could be asked, or None.
    """

    def __init__(self, text: str, cause: str | None = None) -> None:
        super().__init__("no_metadata", text if cause is None else f"{text} ({cause})")
        self.cause = cause


class AuthenticationError(RefusedError):
    """The brokers rejected the producer's credentials, or the producer rejected the broker's certificate (TLS). The
    record was not buffered. The producer keeps trying, because a password, token or certificate may be replaced while
    it runs."""

    def __init__(self, text: str) -> None:
        super().__init__("authentication", text)


class ExpiredError(RefusedError, TimeoutError):
    """The record was not sent within `delivery.timeout.ms`, and is not in Kafka. The text says where the time was
    spent."""

    def __init__(self, text: str) -> None:
        super().__init__("expired", text)


class ExpiredMayBeWrittenError(OutcomeUnknownError, TimeoutError):
    """`delivery.timeout.ms` expired for a record sent but never answered. It may be in Kafka, or may still get
    there."""


class FatalError(ClosedError):
    """The producer has failed permanently and cannot send another record. `code` is Kafka's name of the reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


# --- transactions ----------------------------------------------------------------------------------------------------


class TransactionStateError(PenstockError):
    """The call does not fit the producer's state: no transaction, not initialised, or another call has not finished."""


class TransactionAbortedError(RefusedError):
    """The record's transaction was aborted, or can only be aborted. A read_committed consumer never sees the record.
    `code` is Kafka's name of the reason, or a code of ours."""


class TransactionAbortableError(PenstockError):
    """The transaction has failed and can only be aborted. After `abort_transaction` the producer can begin the next
    one. `code` is Kafka's name of the reason, or a code of ours."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class CommitFailedError(TransactionAbortableError):
    """The consumer's offsets were rejected, because its group has assigned its partitions to another member. The
    transaction can only be aborted."""


class ProducerFencedError(FatalError):
    """Another producer took the transactional id, or the transaction timed out. This producer can only be closed."""


class InitTransactionsRefusedError(RefusedError):
    """The brokers refuse this user a producer id for the transactional id. `init_transactions` may be called again."""


class CommittedNotVisibleError(PenstockError, TimeoutError):
    """The transaction is committed, but read_committed consumers did not see all of it in time.

    Brokers are late, or one lost the commit marker (KAFKA-20734). The producer keeps working, but sends nothing to the
    partitions without the marker until it is there.
    """


class CommitTimeoutError(WaitTimeoutError, OutcomeUnknownError):
    """The commit did not finish in time, and continues. Call `commit_transaction` again to learn its outcome."""


class CommitUnknownError(FatalError, OutcomeUnknownError):
    """The coordinator no longer knows whether the transaction was committed. The producer can only be closed."""
