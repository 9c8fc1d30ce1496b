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
    """Any error of a producer.

    Errors of the direct producer say which records they are about: `topic`, "" where that is not known, and `partition`, -1
    where none was chosen yet.
    """

    topic: str = ""
    partition: int = -1


class RefusedError(PenstockError):
    """Definite: the records are not in Kafka and nobody will send them any more; they are the application's again.

    `code` says why, as a word of the local protocol, or for a broker's error as Kafka's name of it; `retry_ms` is a hint when
    to try again, or None. For several records
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
    """The producer is closed, or cannot go on; the records were never handed to the daemon, or never sent to a broker."""


class SessionError(ClosedError):
    """The daemon refuses the session for good. `code` is a word of the local protocol."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SerializationError(PenstockError):
    """A serializer of the application cannot make bytes of a key or value; the record was not taken."""


class BufferExhaustedError(PenstockError, TimeoutError):
    """The producer's memory stayed full for as long as it may be waited for; the record was not taken."""


class WaitTimeoutError(PenstockError, TimeoutError):
    """What was waited for did not happen in time. The records keep going."""


# --- the direct producer ---------------------------------------------------------------------------------------------


class BrokerError(RefusedError):
    """A broker refused the records for good. `code` is Kafka's name of the error ("MESSAGE_TOO_LARGE"), `number` its number."""

    def __init__(self, number: int, name: str, text: str) -> None:
        super().__init__(name, text)
        self.number = number


class RecordTooLargeError(RefusedError):
    """The record is larger than `max.request.size` or `buffer.memory` allow, before compression; it was not taken."""

    def __init__(self, text: str) -> None:
        super().__init__("too_large", text)


class InvalidTopicError(RefusedError):
    """Kafka has no topic of such a name, or lets nobody write to it; the record was not taken."""

    def __init__(self, text: str) -> None:
        super().__init__("bad_topic", text)


class TopicForbiddenError(RefusedError):
    """The brokers do not let this user see or write the topic; the record was not taken."""

    def __init__(self, text: str) -> None:
        super().__init__("forbidden", text)


class MetadataTimeoutError(RefusedError, TimeoutError):
    """Nothing was learnt of the topic, or of that partition of it, within `max.block.ms`; the record was not taken.

    `cause`: Kafka's name of the last error that brokers gave for the topic, or why no broker could be asked, or None.
    """

    def __init__(self, text: str, cause: str | None = None) -> None:
        super().__init__("no_metadata", text if cause is None else f"{text} ({cause})")
        self.cause = cause


class AuthenticationError(RefusedError):
    """The brokers do not believe who the producer says it is, or it does not believe that it talks to them (TLS); the record
    was not taken. The producer goes on trying: a password, a token or a certificate may be replaced under it."""

    def __init__(self, text: str) -> None:
        super().__init__("authentication", text)


class ExpiredError(RefusedError, TimeoutError):
    """The record was not sent within `delivery.timeout.ms`, and certainly is not in Kafka. The text says where the time went."""

    def __init__(self, text: str) -> None:
        super().__init__("expired", text)


class ExpiredMayBeWrittenError(OutcomeUnknownError, TimeoutError):
    """`delivery.timeout.ms` is over for a record that was sent and never answered: it may be in Kafka, or still get there."""


class FatalError(ClosedError):
    """The producer cannot go on at all: it never will get another record into Kafka. `code` is Kafka's name of the reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


# --- transactions ----------------------------------------------------------------------------------------------------


class TransactionStateError(PenstockError):
    """The call does not fit where the producer stands: in no transaction, not initialised, or another call is not finished."""


class TransactionAbortedError(RefusedError):
    """The record's transaction was aborted, or can only be aborted: nobody who reads committed records ever sees the record.
    `code` is Kafka's name of the reason, or a word of ours."""


class TransactionAbortableError(PenstockError):
    """Something went wrong in the transaction: it can only be aborted. After `abort_transaction` the producer goes on with the
    next. `code` is Kafka's name of the reason, or a word of ours."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class CommitFailedError(TransactionAbortableError):
    """The consumer's offsets were not taken: its group has given its partitions to another member. The transaction can only be
    aborted."""


class ProducerFencedError(FatalError):
    """Another producer began with the same transactional id, or the transaction lasted too long: this one can only be closed."""


class InitTransactionsRefusedError(RefusedError):
    """The brokers do not give this user a producer id under the transactional id. `init_transactions` may be called again."""


class CommittedNotVisibleError(PenstockError, TimeoutError):
    """The transaction is committed, once and for all; but within the time readers of committed records did not see all of it.

    Brokers are late, or the mark of the commit was lost in one (KAFKA-20734). The producer goes on; partitions where it lacks are
    not sent to before it is there."""


class CommitTimeoutError(WaitTimeoutError, OutcomeUnknownError):
    """The commit did not end in time, and goes on: call `commit_transaction` again to learn how it ended."""


class CommitUnknownError(FatalError, OutcomeUnknownError):
    """The coordinator cannot tell any more whether the transaction was committed. The producer can only be closed."""
