"""`retire` and the lag group on a real broker."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kafka import KafkaConsumer
from penstock.config.pipeline import PipelineSettings, validate_pipeline
from penstock.pipeline.failures import JobRefusedError
from penstock.pipeline.kafka_admin import missing_topics
from penstock.pipeline.land.lag_group import LagGroup, committed_offsets
from penstock.pipeline.retire import find_incarnation, retire
from penstock.producer import DirectProducer
from penstock.wire.audit_records import AuditHeartbeat, AuditIntake, AuditRecord

from tests.harness.kafka_cluster import OwnCluster
from tests.harness.processes import wait_until

NOW_MS = 1_700_000_000_000
OURS, OTHER = "0123456789ab", "ba9876543210"
BEAT = AuditHeartbeat(
    incarnation=OURS,
    host="alpha",
    version=5,
    sent_at=NOW_MS - 3_600_000,
    era=0,
    closed_before=NOW_MS - 3_700_000,
    settled_before=NOW_MS - 3_800_000,
    state="running",
    interval_s=10.0,
)
INTAKE = AuditIntake(
    incarnation=OURS,
    host="alpha",
    version=9,
    sent_at=NOW_MS - 3_500_000,
    topic="clicks",
    minute=1,
    era=0,
    ids=True,
    accepted=0,
    bytes=0,
    refused={},
    ranges=(),
    holes=(),
)


@pytest.fixture
def settings(broker: OwnCluster, topic_name: str) -> PipelineSettings:
    broker.create_topic(topic_name, partitions=2)
    return validate_pipeline(
        {
            "tables": "/t",
            "checkpoints": "/c",
            "topics": {"a": {}},
            "kafka": {"bootstrap.servers": broker.bootstrap},
            "audit": {"topic": topic_name},
            "listener": {"lag_group_prefix": f"lag.{uuid.uuid4().hex}."},
        },
        "test",
    )


@pytest.fixture
def producer(broker: OwnCluster) -> Iterator[DirectProducer]:
    made = DirectProducer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    yield made
    made.close(10)


def write(producer: DirectProducer, settings: PipelineSettings, *records: AuditRecord) -> None:
    for record in records:
        _ = producer.send(settings.audit.topic, record.encode(), record.key(), partition=1).result(60)


def test_a_daemon_that_is_silent_is_retired_by_a_heartbeat_that_outranks_all_it_said(
    settings: PipelineSettings, producer: DirectProducer
) -> None:
    write(producer, settings, BEAT, INTAKE, replace(BEAT, incarnation=OTHER, version=50))
    done = retire(settings, OURS, now_ms=NOW_MS, force=False, timeout_s=30)
    assert done.written
    known = find_incarnation(settings, OURS, timeout_s=30)
    assert known is not None
    assert known.heartbeat == AuditHeartbeat(
        incarnation=OURS,
        host="alpha",
        version=INTAKE.version + 1,
        sent_at=NOW_MS,
        era=0,
        closed_before=NOW_MS,
        settled_before=BEAT.settled_before,
        state="closed",
        interval_s=10.0,
    )
    assert known.partition == 1
    assert not retire(settings, OURS, now_ms=NOW_MS, force=False, timeout_s=30).written
    other = find_incarnation(settings, OTHER, timeout_s=30)
    assert other is not None
    assert other.heartbeat is not None
    assert other.heartbeat.state == "running"


def test_a_daemon_that_may_be_alive_is_retired_by_force_only(
    settings: PipelineSettings, producer: DirectProducer
) -> None:
    write(producer, settings, replace(BEAT, sent_at=NOW_MS - 20_000))
    with pytest.raises(JobRefusedError, match="sign of life 20 s ago: it may be alive"):
        _ = retire(settings, OURS, now_ms=NOW_MS, force=False, timeout_s=30)
    assert retire(settings, OURS, now_ms=NOW_MS, force=True, timeout_s=30).written


def test_a_daemon_that_nobody_knows_is_not_retired(settings: PipelineSettings) -> None:
    with pytest.raises(JobRefusedError, match=f"no daemon {OURS} has written"):
        _ = retire(settings, OURS, now_ms=NOW_MS, force=True, timeout_s=30)
    nowhere = settings.model_copy(update={"audit": settings.audit.model_copy(update={"topic": "no.such"})})
    with pytest.raises(JobRefusedError, match=r"Kafka has no topic no\.such"):
        _ = retire(nowhere, OURS, now_ms=NOW_MS, force=True, timeout_s=30)


def test_offsets_of_the_lag_group_are_read_back_and_a_member_makes_it_refuse(settings: PipelineSettings) -> None:
    topic = settings.audit.topic
    assert committed_offsets(settings) == {}
    group = LagGroup.of(settings)
    assert group.commit({topic: {0: 7, 1: 3}}) == ("committed", "")
    assert committed_offsets(settings) == {topic: {0: 7, 1: 3}}
    member = KafkaConsumer(
        topic, bootstrap_servers=settings.kafka.bootstrap_servers, group_id=group.group, enable_auto_commit=False
    )
    try:
        _ = wait_until(
            lambda: member.poll(timeout_ms=100) or bool(member.assignment()), seconds=30, what="it is a member"
        )
        outcome, reason = group.commit({topic: {0: 8}})
    finally:
        member.close()
        group.close()
    assert (outcome, reason) == ("refused", "UnknownMemberIdError")
    assert committed_offsets(settings)[topic][0] == 7


def test_topics_that_kafka_lacks_are_named(settings: PipelineSettings) -> None:
    assert missing_topics(settings.kafka, [settings.audit.topic, "no.such"], timeout_s=30) == ["no.such"]
