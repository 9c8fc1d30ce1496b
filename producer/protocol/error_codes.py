"""Classifies every Kafka error code. No other module interprets codes.

Only ACKED and the two REFUSED classes determine the fate of a batch. After every other class the batch may or may not
be in the log, so a refusal that follows one of them is ambiguous (ERR-2).
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from kafka.errors import kafka_errors

NONE: Final = 0
UNKNOWN_SERVER_ERROR: Final = -1
MESSAGE_TOO_LARGE: Final = 10
NETWORK_EXCEPTION: Final = 13
"""Used for a connection that ended, and for a partition missing from the response."""
REQUEST_TIMED_OUT: Final = 7
INVALID_TOPIC: Final = 17
"""No topic can have this name; repeating the query is pointless."""
NOT_ENOUGH_REPLICAS: Final = 19
"""The only retriable code that guarantees that nothing was appended."""
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
CONCURRENT_TRANSACTIONS: Final = 51
"""Not appended: the previous transaction has not ended on this partition yet."""
UNKNOWN_PRODUCER_ID: Final = 59
REBOOTSTRAP_REQUIRED: Final = 129


class ProduceErrorClass(Enum):
    """The meaning of a Produce response for its batch."""

    ACKED = auto()
    """In the log, from this attempt or an earlier one."""
    RETRY = auto()
    """Send it again after the backoff."""
    RETRY_REFRESH_METADATA = auto()
    """Send it again after the backoff; our metadata is stale."""
    NEW_LEADER = auto()
    """Not the leader. A newer leader hint in the response applies; an equal or older one changes nothing."""
    CONFIRM_TOPIC = auto()
    """Keep it. Send nothing of the partition until Metadata has confirmed that the topic is still the same (IDN-8)."""
    SPLIT = auto()
    """Too large with more than one record: smaller batches may be accepted."""
    REFUSED_CONTENT = auto()
    """These records will never be accepted: park them and continue with the rest."""
    REFUSED_UNTIL_FIXED = auto()
    """An operator can fix the cause: the topic's `on_refusal` decides."""
    OUT_OF_ORDER = auto()
    """The broker lacks an earlier batch, or forgot that it has this one: probe if it is the oldest."""
    STALE_EPOCH = auto()
    """The broker knows a newer epoch of our producer id than this batch carries."""
    HALT = auto()
    """The partition cannot continue: keep everything and raise an alarm."""
    UNKNOWN = auto()
    """Not a code of Produce: like RETRY, but an ambiguous refusal after many attempts."""


class ClassifiedError(NamedTuple):
    """An error class with a human-readable reason. `name` is Kafka's name of the code."""

    error_class: ProduceErrorClass
    name: str
    reason: str


_PRODUCE: Final[dict[int, ClassifiedError]] = {
    -1: ClassifiedError(
        ProduceErrorClass.UNKNOWN, "UNKNOWN_SERVER_ERROR", "the broker failed in a way it has no code for"
    ),
    0: ClassifiedError(ProduceErrorClass.ACKED, "NONE", "appended"),
    2: ClassifiedError(
        ProduceErrorClass.RETRY, "CORRUPT_MESSAGE", "damaged on the way; says nothing about earlier attempts"
    ),
    3: ClassifiedError(
        ProduceErrorClass.CONFIRM_TOPIC,
        "UNKNOWN_TOPIC_OR_PARTITION",
        "topic deleted, made anew, or not yet known there",
    ),
    5: ClassifiedError(ProduceErrorClass.RETRY_REFRESH_METADATA, "LEADER_NOT_AVAILABLE", "an election is under way"),
    6: ClassifiedError(ProduceErrorClass.NEW_LEADER, "NOT_LEADER_OR_FOLLOWER", "another broker leads the partition"),
    7: ClassifiedError(
        ProduceErrorClass.RETRY, "REQUEST_TIMED_OUT", "not acknowledged by all replicas in time; may be appended"
    ),
    8: ClassifiedError(
        ProduceErrorClass.RETRY_REFRESH_METADATA, "BROKER_NOT_AVAILABLE", "the broker is on its way up or down"
    ),
    9: ClassifiedError(
        ProduceErrorClass.RETRY_REFRESH_METADATA, "REPLICA_NOT_AVAILABLE", "the broker does not hold the replica now"
    ),
    10: ClassifiedError(
        ProduceErrorClass.REFUSED_CONTENT, "MESSAGE_TOO_LARGE", "one record larger than the topic allows"
    ),
    13: ClassifiedError(
        ProduceErrorClass.RETRY_REFRESH_METADATA, "NETWORK_EXCEPTION", "no answer: the connection ended"
    ),
    14: ClassifiedError(
        ProduceErrorClass.RETRY, "COORDINATOR_LOAD_IN_PROGRESS", "the broker is still loading its state"
    ),
    15: ClassifiedError(ProduceErrorClass.RETRY, "COORDINATOR_NOT_AVAILABLE", "the broker is not ready"),
    16: ClassifiedError(ProduceErrorClass.RETRY, "NOT_COORDINATOR", "the coordinator has moved"),
    17: ClassifiedError(
        ProduceErrorClass.REFUSED_UNTIL_FIXED,
        "INVALID_TOPIC_EXCEPTION",
        "the topic is internal or its name is not allowed",
    ),
    18: ClassifiedError(
        ProduceErrorClass.REFUSED_CONTENT, "RECORD_LIST_TOO_LARGE", "the batch is larger than a log segment"
    ),
    19: ClassifiedError(
        ProduceErrorClass.RETRY, "NOT_ENOUGH_REPLICAS", "fewer replicas in sync than min.insync.replicas"
    ),
    20: ClassifiedError(
        ProduceErrorClass.RETRY, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "appended, but too few replicas have it"
    ),
    21: ClassifiedError(ProduceErrorClass.REFUSED_CONTENT, "INVALID_REQUIRED_ACKS", "the broker takes no such acks"),
    29: ClassifiedError(
        ProduceErrorClass.REFUSED_UNTIL_FIXED,
        "TOPIC_AUTHORIZATION_FAILED",
        "no permission to write, or the topic is gone",
    ),
    31: ClassifiedError(ProduceErrorClass.HALT, "CLUSTER_AUTHORIZATION_FAILED", "no permission to write idempotently"),
    32: ClassifiedError(
        ProduceErrorClass.REFUSED_CONTENT, "INVALID_TIMESTAMP", "a timestamp outside the topic's bounds"
    ),
    35: ClassifiedError(
        ProduceErrorClass.HALT, "UNSUPPORTED_VERSION", "the broker takes no version of the request that we speak"
    ),
    42: ClassifiedError(ProduceErrorClass.REFUSED_CONTENT, "INVALID_REQUEST", "the broker finds the request malformed"),
    43: ClassifiedError(
        ProduceErrorClass.REFUSED_CONTENT, "UNSUPPORTED_FOR_MESSAGE_FORMAT", "the topic's message format is too old"
    ),
    44: ClassifiedError(
        ProduceErrorClass.REFUSED_UNTIL_FIXED, "POLICY_VIOLATION", "a policy of the cluster forbids it"
    ),
    45: ClassifiedError(
        ProduceErrorClass.OUT_OF_ORDER, "OUT_OF_ORDER_SEQUENCE_NUMBER", "the broker expects another sequence number"
    ),
    46: ClassifiedError(ProduceErrorClass.ACKED, "DUPLICATE_SEQUENCE_NUMBER", "in the log from an earlier attempt"),
    47: ClassifiedError(
        ProduceErrorClass.STALE_EPOCH, "INVALID_PRODUCER_EPOCH", "a newer epoch of the producer id has been seen"
    ),
    48: ClassifiedError(ProduceErrorClass.HALT, "INVALID_TXN_STATE", "the transaction is over, or never was"),
    49: ClassifiedError(
        ProduceErrorClass.HALT, "INVALID_PRODUCER_ID_MAPPING", "the coordinator knows another producer id"
    ),
    51: ClassifiedError(
        ProduceErrorClass.RETRY, "CONCURRENT_TRANSACTIONS", "the marker of the last transaction is on its way"
    ),
    53: ClassifiedError(
        ProduceErrorClass.HALT, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "no permission to use the transactional id"
    ),
    56: ClassifiedError(
        ProduceErrorClass.RETRY_REFRESH_METADATA, "KAFKA_STORAGE_ERROR", "the leader's disk failed; another will lead"
    ),
    59: ClassifiedError(
        ProduceErrorClass.OUT_OF_ORDER, "UNKNOWN_PRODUCER_ID", "the broker has no state of the producer id"
    ),
    72: ClassifiedError(
        ProduceErrorClass.RETRY_REFRESH_METADATA,
        "LISTENER_NOT_FOUND",
        "the leader has no listener of the kind we came by",
    ),
    74: ClassifiedError(ProduceErrorClass.NEW_LEADER, "FENCED_LEADER_EPOCH", "a newer leader epoch exists"),
    75: ClassifiedError(
        ProduceErrorClass.RETRY, "UNKNOWN_LEADER_EPOCH", "the broker does not know the leader epoch yet"
    ),
    76: ClassifiedError(
        ProduceErrorClass.REFUSED_CONTENT, "UNSUPPORTED_COMPRESSION_TYPE", "the broker does not take this codec"
    ),
    78: ClassifiedError(ProduceErrorClass.RETRY, "OFFSET_NOT_AVAILABLE", "the new leader is not ready"),
    80: ClassifiedError(
        ProduceErrorClass.RETRY_REFRESH_METADATA, "PREFERRED_LEADER_NOT_AVAILABLE", "an election is under way"
    ),
    83: ClassifiedError(
        ProduceErrorClass.RETRY_REFRESH_METADATA, "ELIGIBLE_LEADERS_NOT_AVAILABLE", "an election is under way"
    ),
    84: ClassifiedError(ProduceErrorClass.RETRY_REFRESH_METADATA, "ELECTION_NOT_NEEDED", "an election is under way"),
    87: ClassifiedError(ProduceErrorClass.REFUSED_CONTENT, "INVALID_RECORD", "a record that the topic does not take"),
    88: ClassifiedError(ProduceErrorClass.RETRY, "UNSTABLE_OFFSET_COMMIT", "retriable by Kafka's own word"),
    89: ClassifiedError(ProduceErrorClass.RETRY, "THROTTLING_QUOTA_EXCEEDED", "a quota is used up"),
    90: ClassifiedError(ProduceErrorClass.HALT, "PRODUCER_FENCED", "another producer took the transactional id"),
    100: ClassifiedError(
        ProduceErrorClass.CONFIRM_TOPIC, "UNKNOWN_TOPIC_ID", "topic deleted, made anew, or not yet known there"
    ),
    103: ClassifiedError(
        ProduceErrorClass.CONFIRM_TOPIC, "INCONSISTENT_TOPIC_ID", "the log there belongs to another topic id"
    ),
    120: ClassifiedError(
        ProduceErrorClass.HALT, "TRANSACTION_ABORTABLE", "the transaction cannot go on and has to be aborted"
    ),
}

_NON_PRODUCE_CODES: Final[frozenset[int]] = frozenset(
    # Fetch, groups, administration, quorum, tokens, share groups: brokers do not answer Produce with these.
    {
        1,
        4,
        11,
        12,
        *range(22, 29),
        30,
        33,
        34,
        *range(36, 42),
        50,
        52,
        54,
        55,
        57,
        58,
        *range(60, 72),
        73,
        77,
        79,
        81,
        82,
    }
    | {85, 86, *range(91, 100), 101, 102, *range(104, 120), *range(121, 134)}
)

_NAMES: Final[dict[int, str]] = {
    # Codes that the library names differently or does not know yet.
    39: "INVALID_REPLICA_ASSIGNMENT",
    128: "INVALID_REGULAR_EXPRESSION",
    129: "REBOOTSTRAP_REQUIRED",
    130: "STREAMS_INVALID_TOPOLOGY",
    131: "STREAMS_INVALID_TOPOLOGY_EPOCH",
    132: "STREAMS_TOPOLOGY_FENCED",
    133: "SHARE_SESSION_LIMIT_REACHED",
}

_SPLIT: Final = ClassifiedError(
    ProduceErrorClass.SPLIT, "MESSAGE_TOO_LARGE", "the batch is larger than the topic allows"
)
_UNKNOWN_LOG_START: Final = ClassifiedError(
    ProduceErrorClass.RETRY, "UNKNOWN_PRODUCER_ID", "the broker cannot tell where its log starts"
)


def error_name(code: int) -> str:
    """Kafka's name of a code, for logs and errors."""
    if code in _PRODUCE:
        return _PRODUCE[code].name
    if code in _NAMES:
        return _NAMES[code]
    known = kafka_errors.get(code)
    return str(known.message) if known is not None else f"error {code}"


def is_known(code: int) -> bool:
    """Whether the tables contain this code."""
    return code in _PRODUCE or code in _NON_PRODUCE_CODES


def classify_produce_error(code: int, *, record_count: int, log_start: int) -> ClassifiedError:
    """Classify a response's code for a batch of `record_count` records. `log_start`: of the response, -1 if it has
    none."""
    if code == MESSAGE_TOO_LARGE and record_count > 1:
        return _SPLIT
    if code == UNKNOWN_PRODUCER_ID and log_start < 0:
        return _UNKNOWN_LOG_START
    found = _PRODUCE.get(code)
    if found is not None:
        return found
    reason = "no answer to Produce" if code in _NON_PRODUCE_CODES else "a code newer than this program"
    return ClassifiedError(ProduceErrorClass.UNKNOWN, error_name(code), reason)


class TopicErrorClass(Enum):
    """The state of a topic or partition in a Metadata response."""

    FINE = auto()
    LEADERLESS = auto()
    """Exists but has no leader now: query again soon."""
    MISSING = auto()
    """The responding broker does not know the topic."""
    REFUSED = auto()
    """Forbidden or not a valid name: query again with backoff, and fail the waiters."""
    RETRY = auto()


_TOPIC: Final[dict[int, TopicErrorClass]] = {
    0: TopicErrorClass.FINE,
    3: TopicErrorClass.MISSING,
    5: TopicErrorClass.LEADERLESS,
    # The leader is known and alive; only a replica is not available.
    9: TopicErrorClass.FINE,
    17: TopicErrorClass.REFUSED,
    29: TopicErrorClass.REFUSED,
    72: TopicErrorClass.LEADERLESS,
    100: TopicErrorClass.MISSING,
}


def classify_topic_error(code: int) -> TopicErrorClass:
    """Classify a topic's or partition's code in a Metadata response."""
    return _TOPIC.get(code, TopicErrorClass.RETRY)


class ControlErrorClass(Enum):
    """The result of a control request."""

    FINE = auto()
    FORBIDDEN = auto()
    """A permission is missing; it may be granted later."""
    UNSUPPORTED = auto()
    RETRY = auto()


_CONTROL: Final[dict[int, ControlErrorClass]] = {
    0: ControlErrorClass.FINE,
    29: ControlErrorClass.FORBIDDEN,
    31: ControlErrorClass.FORBIDDEN,
    35: ControlErrorClass.UNSUPPORTED,
    53: ControlErrorClass.FORBIDDEN,
}


def classify_control_error(code: int) -> ControlErrorClass:
    """Classify the code of an InitProducerId or DescribeConfigs response."""
    return _CONTROL.get(code, ControlErrorClass.RETRY)
