"""Expected failures of Spark, the JVM and Kafka, as one sentence that names the remedy."""

import re
from typing import Final

from kafka.errors import KafkaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

_CHARS_MAX: Final = 1_000
_PYTHON_TRACE: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b")
_KNOWN: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(r"UnknownTopicOrPartition|does not host this topic-partition"),
        "Kafka has no such topic, or does not show it to this user",
    ),
    (
        re.compile(r"Some data may have been lost|KAFKA_DATA_LOSS|OffsetOutOfRange|failOnDataLoss"),
        "Kafka no longer has records that were not landed yet: retention ran ahead of the job. The audit names what is gone",
    ),
    (
        re.compile(
            r"CONCURRENT_STREAM_LOG_UPDATE|ConcurrentModificationException.*(?:checkpoint|offsets|commits)", re.DOTALL
        ),
        "another driver uses this checkpoint: end one of them",
    ),
    (
        re.compile(r"TopicAuthorization|GroupAuthorization|ClusterAuthorization"),
        "Kafka does not allow this user to read",
    ),
    (
        re.compile(r"SaslAuthentication|SslAuthentication|SSLHandshake"),
        "Kafka and this user do not believe each other: look at the settings of TLS and SASL under [kafka]",
    ),
    (
        re.compile(
            r"No resolvable bootstrap|Timed out waiting for a node assignment|Failed to (?:construct|create new) Kafka",
            re.IGNORECASE,
        ),
        "no broker of kafka.bootstrap.servers can be reached",
    ),
    (
        re.compile(r"All masters are unresponsive|Failed to connect to master"),
        "the Spark master cannot be reached: look at --master",
    ),
    (
        re.compile(r"JAVA_GATEWAY_EXITED|JAVA_HOME"),
        "the JVM did not start: Java 17 or later is needed, found by JAVA_HOME or the PATH",
    ),
    (
        re.compile(r"Answer from Java side is empty|Py4JNetworkError"),
        "the JVM has ended: out of memory (spark.driver.memory), or killed",
    ),
    (
        re.compile(r"DATA_SOURCE_NOT_FOUND.*kafka|Failed to find data source: kafka", re.DOTALL),
        "Spark has no Kafka connector: name its jars in `jars`",
    ),
)
"""Known patterns in the text of an error, with their meanings."""


class JobRefusedError(Exception):
    """The job refuses the request. The message gives the reason."""


def is_expected(error: Exception) -> bool:
    """Whether one sentence is enough: the failure came from outside this program, or the program refused the
    request."""
    # Recognise the jobs' own errors by the ends of their names: importing the jobs for this would load all of them.
    own = type(error).__module__.startswith("penstock.") and type(error).__name__.endswith("Error")
    # PySpark's own classes for programming errors derive from Python's.
    mistake = isinstance(error, TypeError | LookupError | AttributeError | AssertionError)
    return own or (isinstance(error, PySparkException | Py4JError | KafkaError | OSError) and not mistake)


def failure_message(error: BaseException) -> str:
    """Return one line for people: the meaning, if known, and the original message."""
    said = _first(str(error)) or type(error).__name__
    for pattern, meaning in _KNOWN:
        if pattern.search(_whole(error)):
            return f"{meaning} ({said})" if said not in meaning else meaning
    return said


def _whole(error: BaseException) -> str:
    """The texts of an error and its causes."""
    texts: list[str] = []
    found: BaseException | None = error
    while found is not None and len(texts) < 10:
        texts.append(f"{type(found).__name__}: {found}")
        found = found.__cause__ or found.__context__
    return "\n".join(texts)


def _first(text: str) -> str:
    """Join the lines of a text before any stack trace or plan. For an error of a Python worker, take the last error
    line of its trace."""
    kept: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("at ", "JVM stacktrace", "=== ", "== ", "Caused by")):
            break
        if _PYTHON_TRACE in line:
            kept.append(line.split(_PYTHON_TRACE)[0].strip())
            raised = [later for later in lines[number:] if _RAISED.match(later)]
            kept += raised[-1:]
            break
        if line.strip():
            kept.append(line.strip())
    return " ".join(kept).strip()[:_CHARS_MAX]
