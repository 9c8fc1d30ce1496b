"""Runs a job: checks its requirements, starts Spark, and stops it in order. Errors are raised to `cli`, which reports
them."""

import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from ..config.errors import ConfigError
from ..config.pipeline import PipelineSettings
from ..runtime import logs
from . import session
from .failures import JobRefusedError
from .kafka_admin import JavaOnlyKafkaError, missing_topics
from .land.lag_group import LagGroup
from .listener import PipelineQueryListener, QueryEventSink
from .query_metrics import LagGroupSink, PrometheusSink, QueryMetrics, StatsdSink
from .tables import Tables, open_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .audit.audit_job import AuditResult
    from .hours import HourRange
    from .seal.seal_job import SealResult

_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_CONFIG: Final = Path(__file__).resolve().parent / "log4j2.properties"
_POLL_S: Final = 0.5
_LISTENER_S: Final = 15.0


def with_topics(settings: PipelineSettings, topics: Iterable[str]) -> PipelineSettings:
    """Return the settings with only these topics; with all topics if `topics` is empty.

    Raises:
        ConfigError: one of them is not in the settings.
    """
    wanted = list(dict.fromkeys(topics))
    unknown = [name for name in wanted if name not in settings.topics]
    if unknown:
        known = ", ".join(settings.topics)
        raise ConfigError([f"--topic {name}: the settings have no such topic, but {known}" for name in unknown])
    if not wanted:
        return settings
    return settings.model_copy(update={"topics": {name: settings.topics[name] for name in wanted}})


def with_log(settings: PipelineSettings, *, debug: bool) -> PipelineSettings:
    """Return the settings with the JVM's log as JSON lines without stack traces; with `debug`, Spark's default log."""
    given = settings.spark.get(_JVM_OPTIONS, "")
    in_cluster = settings.spark.get("spark.submit.deployMode") == "cluster"
    if debug or in_cluster or "log4j2.configurationFile" in given:
        return settings
    options = f"{given} -Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}".strip()
    return settings.model_copy(update={"spark": {**settings.spark, _JVM_OPTIONS: options}})


def require_topics(settings: PipelineSettings, wanted: Iterable[str]) -> None:
    """Check the topics in Kafka before a JVM starts: half a second instead of a minute and a stack trace.

    Raises:
        KafkaUnreachableError: no broker can be used.
        JobRefusedError: topics do not exist.
    """
    try:
        missing = missing_topics(settings.kafka, wanted, timeout_s=settings.kafka_timeout)
    except JavaOnlyKafkaError as error:
        _ = logs.get().info("topic_check_skipped", reason=str(error))
        return
    if missing:
        raise JobRefusedError(f"Kafka has no topic {', '.join(missing)}, or does not show it to this user")


class JobStopSignal:
    """Whether SIGTERM or SIGINT has requested the end of the job. Must be created in the main thread."""

    def __init__(self) -> None:
        self._received = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            _ = signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._received.set()

    @property
    def received(self) -> bool:
        return self._received.is_set()


def land(settings: PipelineSettings, *, master: str | None, once: bool, new_query: bool) -> None:
    """Land until a signal arrives, or once. Raises the errors of `LandJob`."""
    from .land.land_job import LandJob

    require_topics(settings, settings.topics)
    spark = session.start(settings, "penstock-pipeline land", master=master)
    # After the session, which installs its own handlers.
    ending = JobStopSignal()
    listener = _listener(settings)
    try:
        spark.streams.addListener(listener)
        job = LandJob(spark, settings, open_tables(settings, spark), new_query=new_query)
        queries = job.start(once=once or settings.land.is_once)
        _ = logs.get().info("land_started", topics=list(settings.topics), queries=[str(query.id) for query in queries])
        ended = False
        while not ended and not ending.received:
            ended = job.wait(seconds=_POLL_S)
        if not ended:
            job.stop(seconds=settings.stop_timeout)
        _ = logs.get().info("land_ended", by_signal=ending.received)
    finally:
        listener.close(seconds=_LISTENER_S)
        spark.stop()


def _listener(settings: PipelineSettings) -> PipelineQueryListener:
    """Create the listener with the configured sinks. Raise JobRefusedError: an address is taken or cannot be used."""
    told = settings.listener
    book = QueryMetrics()
    try:
        followers: list[QueryEventSink] = [PrometheusSink(book, now=time.monotonic, listen=told.listen)]
    except OSError as error:
        raise JobRefusedError(f"listener.listen = {told.listen}: {error.strerror or error}") from error
    if told.statsd:
        try:
            followers.append(StatsdSink(told.statsd))
        except OSError as error:
            raise JobRefusedError(f"listener.statsd = {told.statsd}: {error.strerror or error}") from error
    if told.lag_group:
        followers.append(LagGroupSink(LagGroup.of(settings), book))
    return PipelineQueryListener(followers, queue_max=told.queue_max)


def audit(settings: PipelineSettings, *, master: str | None, hours: "HourRange | None") -> "AuditResult":
    from .audit import audit_job as job

    require_topics(settings, [settings.audit.topic])
    spark, tables = _open(settings, "audit", master)
    try:
        return job.run(spark, settings, tables, hours=hours, now_ms=_now_ms())
    finally:
        spark.stop()


def seal(settings: PipelineSettings, *, master: str | None) -> "SealResult":
    from .seal import seal_job as job

    spark, tables = _open(settings, "seal", master)
    try:
        return job.run(spark, settings, tables, now_ms=_now_ms())
    finally:
        spark.stop()


def _open(settings: PipelineSettings, verb: str, master: str | None) -> "tuple[SparkSession, Tables]":
    spark = session.start(settings, f"penstock-pipeline {verb}", master=master)
    return spark, open_tables(settings, spark)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
