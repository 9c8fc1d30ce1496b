"""Topics with daemons to fill them, and the jobs on all of them at once: an audit takes as long for one topic as for five."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from penstock.client import Producer
from penstock.config.pipeline import load_pipeline
from penstock.pipeline.land.land_job import LandJob
from penstock.pipeline.runner import with_topics
from penstock.pipeline.tables import open_tables
from pyspark.sql import SparkSession

from tests.harness import bronze
from tests.harness.audit_world import AUDIT_CONFIG
from tests.harness.bronze import Judgement, Topic
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import OwnCluster, unique_topic
from tests.harness.land_driver import land_available
from tests.harness.spark_driver import Pipeline

from . import jobs
from .jobs import Verdict

PARTITIONS: Final = 2
SEND_S: Final = 360.0
INTERVAL_S: Final = 0.5
"""Between the daemon's restatements."""


class Told(NamedTuple):
    """What an audit says of one topic."""

    statuses: set[str]
    classes: dict[str, str]
    """Missing ids with their class."""
    doubled: dict[str, int]
    """Doubled ids, and how often they are there."""
    sums: dict[str, int]
    """Over the topic's rows of the report."""
    doubts: list[str]
    rows: list[dict[str, Any]]

    def of_class(self, word: str) -> set[str]:
        """The missing ids of a class."""
        return {name for name, each in self.classes.items() if each == word}


class Rig:
    """Topics by the words that a test has for them. Use it in a `with`."""

    def __init__(self, spark: SparkSession, broker: OwnCluster, words: Iterable[str]) -> None:
        self.spark = spark
        self.broker = broker
        self.topics = {word: broker.create_topic(unique_topic([word]), PARTITIONS) for word in words}
        self.audit_topic = broker.create_topic(unique_topic(["audit"]), 2, config=AUDIT_CONFIG)
        sections: dict[str, Mapping[str, str | int]] = {"audit": {"topic": self.audit_topic}, "seal": {"grace": 0}}
        topics: dict[str, Mapping[str, str | int]] = {topic: {} for topic in self.topics.values()}
        self.pipeline = Pipeline(broker.bootstrap, topics, sections=sections)

    def daemon(self, **more: Any) -> Daemon:
        """A daemon that keeps its books in this audit topic; not started yet."""
        sections: dict[str, Any] = {"audit": {"topic": self.audit_topic, "interval_s": INTERVAL_S}}
        return Daemon(self.broker.bootstrap, shards=1, sections=sections, **more)

    def send(
        self, daemon: Daemon, word: str, count: int, *, level: Literal["spooled", "delivered"] = "delivered"
    ) -> None:
        """So many records, dealt to the partitions, and wait until they are where `level` says."""
        producer = Producer(daemon.socket_path, level=level)
        try:
            sent = producer.send_many(
                self.topics[word],
                [b"%d" % number for number in range(count)],
                partitions=[number % PARTITIONS for number in range(count)],
            )
            _ = sent.result(SEND_S)
        finally:
            # Not longer: a daemon that does not answer is what a test must tell.
            producer.close(5)

    def land(self, *words: str) -> None:
        """Land what is in these topics now, all of them when none is named."""
        settings = load_pipeline(self.pipeline.config_path)
        settings = with_topics(settings, [self.topics[word] for word in words])
        land_available(LandJob(self.spark, settings, open_tables(settings, self.spark)))

    def audit(self, *, topic: str | None = None, ahead_s: float = 0.0) -> Verdict:
        """One audit, of the books in another `topic` if one is named, at a time `ahead_s` from now."""
        return jobs.run_audit(self.spark, self.pipeline, topic=topic, ahead_s=ahead_s)

    def told(self, verdict: Verdict, word: str) -> Told:
        """What it says of one topic."""
        topic = self.topics[word]
        rows = [row for row in verdict.rows if row["topic"] == topic]
        return Told(
            statuses={row["status"] for row in rows},
            classes={name: each for (of, name), each in verdict.classes.items() if of == topic},
            doubled={name: copies for (of, name), copies in verdict.doubled.items() if of == topic},
            sums={
                name: sum(row[name] for row in rows)
                for name in ("accepted", "distinct", "pending", "late", "lost", "duplicated")
            },
            doubts=[doubt for row in rows for doubt in row["doubts"] or ()],
            rows=rows,
        )

    def seal(self, *, ahead_s: float = 0.0) -> list[dict[str, Any]]:
        """Seal what can be sealed, at a time `ahead_s` from now, and return the rows of `seals`."""
        return jobs.run_seal(self.spark, self.pipeline, ahead_s=ahead_s)

    def judge(self, word: str) -> Judgement:
        """How Kafka and the tables compare."""
        return bronze.judge_topic(self.broker, self.pipeline.tables, self.topics[word])

    def landed_ids(self, word: str) -> list[str]:
        """The ids in both tables, as often as they are there."""
        ids = bronze.landed(self.pipeline.tables, self.topics[word])["id"].to_pylist()
        return [each for each in ids if each is not None]

    def kafka_ids(self, word: str) -> list[str]:
        """The ids in Kafka, as often as they are there."""
        return list(self.ids_by_place(word).values())

    def ids_by_place(self, word: str) -> dict[tuple[int, int], str]:
        """Partition and offset to the id of the record there; foreign records are left out."""
        read = Topic(self.broker, self.topics[word])
        places = [(found.partition, found.offset) for found in read.records()]
        return {place: each for place, each in zip(places, read.ids, strict=True) if each is not None}

    def close(self) -> None:
        """Remove the tables."""
        self.pipeline.close()

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close. A failure is told what the drivers logged."""
        if raised is not None:
            raised.add_note(self.pipeline.describe())
        self.close()
