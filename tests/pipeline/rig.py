"""One topic with a daemon to fill it, and the jobs on it. Ids are told without the topic."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from penstock.client import Producer
from pyspark.sql import SparkSession

from tests.harness import bronze
from tests.harness.audit_world import AUDIT_CONFIG
from tests.harness.bronze import Judgement
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import OwnCluster
from tests.harness.spark_driver import Pipeline

from . import jobs
from .jobs import Verdict

SEND_S: Final = 60.0
INTERVAL_S: Final = 0.5
"""Between the daemon's restatements."""


class Audited(NamedTuple):
    """One run of the audit, of one topic."""

    verdict: Verdict
    classes: dict[str, str]
    doubled: dict[str, int]

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code

    @property
    def statuses(self) -> set[str]:
        return self.verdict.statuses

    def of_class(self, word: str) -> set[str]:
        """The missing ids of a class."""
        return {name for name, each in self.classes.items() if each == word}

    def total(self, column: str) -> int:
        """Sum of a column of the report."""
        return self.verdict.total(column)


class Rig:
    """One topic and all that belongs to it. Use it in a `with`."""

    def __init__(self, spark: SparkSession, broker: OwnCluster, topic: str, *, partitions: int = 2) -> None:
        self.spark = spark
        self.broker = broker
        self.topic = broker.create_topic(topic, partitions)
        self.audit_topic = broker.create_topic(f"{topic}-audit", 2, config=AUDIT_CONFIG)
        sections: dict[str, Mapping[str, str | int]] = {"audit": {"topic": self.audit_topic}, "seal": {"grace": 0}}
        self.pipeline = Pipeline(broker.bootstrap, {self.topic: {}}, sections=sections)

    def daemon(self, **more: Any) -> Daemon:
        """A daemon that keeps its books in this audit topic; not started yet."""
        sections: dict[str, Any] = {"audit": {"topic": self.audit_topic, "interval_s": INTERVAL_S}}
        return Daemon(self.broker.bootstrap, shards=1, sections=sections, **more)

    def send(
        self, daemon: Daemon, count: int, *, level: Literal["spooled", "delivered"] = "delivered", partitions: int = 2
    ) -> None:
        """So many records, dealt to the partitions, and wait until they are where `level` says."""
        producer = Producer(daemon.socket_path, level=level)
        try:
            sent = producer.send_many(
                self.topic,
                [b"%d" % number for number in range(count)],
                partitions=[number % partitions for number in range(count)],
            )
            _ = sent.result(SEND_S)
        finally:
            # Not longer: a daemon that does not answer is what a test must tell.
            producer.close(5)

    def land(self) -> None:
        """Land what is in the topic now."""
        jobs.land_once(self.spark, self.pipeline)

    def audit(self, *, topic: str | None = None, ahead_s: float = 0.0) -> Audited:
        """One audit, of the books in another `topic` if one is named, at a time `ahead_s` from now."""
        found = jobs.run_audit(self.spark, self.pipeline, topic=topic, ahead_s=ahead_s)
        classes = {name: each for (_, name), each in found.classes.items()}
        return Audited(found, classes, {name: copies for (_, name), copies in found.doubled.items()})

    def seal(self, *, ahead_s: float = 0.0) -> list[dict[str, Any]]:
        """Seal what can be sealed, at a time `ahead_s` from now, and return the rows of `seals`."""
        return jobs.run_seal(self.spark, self.pipeline, ahead_s=ahead_s)

    def judge(self) -> Judgement:
        """How Kafka and the tables compare."""
        return bronze.judge_topic(self.broker, self.pipeline.tables, self.topic)

    def landed_ids(self) -> list[str]:
        """The ids in both tables, as often as they are there."""
        return [each for each in bronze.landed(self.pipeline.tables, self.topic)["id"].to_pylist() if each is not None]

    def kafka_ids(self) -> list[str]:
        """The ids in Kafka, as often as they are there."""
        return [each for each in bronze.Topic(self.broker, self.topic).read().ids if each is not None]

    def close(self) -> None:
        """Remove the tables."""
        self.pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()
