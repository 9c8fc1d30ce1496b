"""Every way to say who one is, with the same settings for Spark's connector and for our own questions to the brokers."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from penstock.config.pipeline import PipelineSettings, validate_pipeline
from penstock.config.pipeline_kafka import connector_options
from penstock.pipeline.kafka_admin import KafkaUnreachableError, missing_topics
from penstock.pipeline.land.lag_group import LagGroup
from penstock.producer import DirectProducer
from pyspark.sql import SparkSession

from tests.harness.kafka_cluster import REQUEST_S
from tests.harness.kafka_node import VERSIONS
from tests.harness.secure_kafka import PASSWORD, SecureKafka, Way

TOPIC = "open-landed"
GROUP = "lag."


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecureKafka]:
    with SecureKafka(VERSIONS[0]) as started:
        started.cluster.create_topic(TOPIC, partitions=1)
        rights = [(ResourceType.TOPIC, TOPIC), (ResourceType.GROUP, GROUP), (ResourceType.GROUP, "spark-")]
        bindings = [
            AclBinding(
                kind, name, ResourcePatternType.PREFIXED, "User:*", "*", AclOperation.READ, AclPermissionType.ALLOW
            )
            for kind, name in rights
        ]
        for done in started.cluster.admin.create_acls(bindings).values():
            _ = done.result(REQUEST_S)
        producer = DirectProducer({"bootstrap.servers": started.cluster.bootstrap})
        _ = producer.send(TOPIC, b"value").result(60)
        producer.close(10)
        yield started


def settings(kafka: SecureKafka, way: Way, **more: str) -> PipelineSettings:
    return validate_pipeline(
        {
            "tables": "/t",
            "checkpoints": "/c",
            "topics": {TOPIC: {}},
            "kafka": {"bootstrap.servers": kafka.bootstrap(way), **kafka.settings(way), **more},
            "listener": {"lag_group_prefix": GROUP},
        },
        "test",
    )


@pytest.mark.parametrize("way", [Way.TLS, Way.MTLS, Way.PLAIN, Way.SCRAM_512, Way.OAUTH])
def test_the_connector_is_let_in_and_so_are_our_questions(kafka: SecureKafka, spark: SparkSession, way: Way) -> None:
    found = settings(kafka, way)
    assert missing_topics(found.kafka, [TOPIC], timeout_s=30) == []
    group = LagGroup.of(found)
    try:
        assert group.commit({TOPIC: {0: 1}}) == ("committed", "")
    finally:
        group.close()
    options = connector_options(found.kafka)
    rows = spark.read.format("kafka").options(**options).option("subscribe", TOPIC).load().collect()
    assert [bytes(row["value"]) for row in rows] == [b"value"]


def test_a_keytab_lets_our_questions_in(kafka: SecureKafka) -> None:
    with kafka.realm():
        assert missing_topics(settings(kafka, Way.KERBEROS).kafka, [TOPIC], timeout_s=30) == []


def test_who_is_not_believed_is_told_so_without_the_password(kafka: SecureKafka) -> None:
    wrong = {"sasl.password.file": str(kafka.files.wrong_password)}
    with pytest.raises(KafkaUnreachableError) as raised:
        _ = missing_topics(settings(kafka, Way.PLAIN, **wrong).kafka, [TOPIC], timeout_s=3)
    assert "guess" not in str(raised.value)
    assert PASSWORD not in str(raised.value)
