"""A right exchange with one rule broken at a time, rule by rule: rights, partitions, replicas, epochs, sequences, quotas, faults.

The rules of what is inside a batch are in test_broker_batches.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.protocol.admin.topics import DeleteRecordsRequest, DeleteTopicsRequest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from penstock.broker.cluster.acls import AclBinding, AclOperation, AclResourceType
from penstock.broker.cluster.controller import CONTROLLER
from penstock.broker.cluster.faults import DelayAnswer, RepeatAnswer
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.log.topics import BrokerTopic
from penstock.broker.requests.dispatch import RequestReply, apply, decode, with_pending
from penstock.broker.storage import FolderLogStore

from tests.harness.batches import batch, numbered
from tests.harness.broker_calls import CORRELATION, Bench
from tests.harness.cluster_calls import ClusterBench, Waiting

FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ME = "test"


# One rule broken each


def good(bench: ClusterBench) -> None:
    """The batch after which the next one is judged."""
    assert bench.send(0, count=10) == (ErrorCode.NONE, 0)


def outcome_of(bench: ClusterBench, data: bytes, *, acks: int = -1) -> tuple[int, int, int]:
    """Error, base offset and log start of a batch, waited for."""
    found = bench.offer(data, acks=acks, timeout_ms=500, node=1)
    if isinstance(found, Waiting):
        bench.pass_s(0.5)
        found = bench.finish(found)
    return found.error_code, found.base_offset, found.log_start_offset


def nothing(_bench: ClusterBench) -> None:
    """Break no rule."""


def shrink(bench: ClusterBench) -> None:
    for node in (2, 3):
        bench.cluster.stop(node, bench.clock.moment)


def hold(bench: ClusterBench) -> None:
    bench.cluster.pause_replication(2, bench.clock.moment)


def move(bench: ClusterBench) -> None:
    bench.cluster.elect("t", 0, 2, bench.clock.moment)


def forbid(bench: ClusterBench) -> None:
    bench.cluster.node(1).authorizer.add(AclBinding(ME, AclOperation.READ, AclResourceType.TOPIC))


def lower(bench: ClusterBench) -> None:
    topic = bench.cluster.controller.topic("t")
    _ = bench.cluster.controller.alter(topic, (("max.message.bytes", "80"), ("min.insync.replicas", "2")))


def delete(bench: ClusterBench) -> None:
    _ = bench.cluster.controller.delete(bench.cluster.controller.topic("t"))


def cut_off(bench: ClusterBench) -> None:
    for other in (CONTROLLER, 2, 3):
        bench.cluster.cut_link(1, other, bench.clock.moment)


NEXT = (0, 10, 10)
BROKEN_RULES: dict[str, tuple[Callable[[ClusterBench], None], tuple[int, int, int], tuple[int, int, int]]] = {
    "none": (nothing, NEXT, (ErrorCode.NONE, 10, 0)),
    "none, sent again": (nothing, (0, 0, 10), (ErrorCode.NONE, 0, 0)),
    "none, a new epoch": (nothing, (1, 0, 10), (ErrorCode.NONE, 10, 0)),
    "a gap": (nothing, (0, 11, 10), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 0)),
    "another cut": (nothing, (0, 0, 9), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 0)),
    "a new epoch that does not begin at 0": (nothing, (1, 10, 10), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 0)),
    "no right to write": (forbid, NEXT, (FORBIDDEN, -1, -1)),
    "no right to write what is in the log": (forbid, (0, 0, 10), (FORBIDDEN, -1, -1)),
    "another leader": (move, NEXT, (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)),
    "another leader, sent again": (move, (0, 0, 10), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)),
    "too few in sync": (shrink, NEXT, (ErrorCode.NOT_ENOUGH_REPLICAS, -1, 0)),
    "too few in sync, sent again": (shrink, (0, 0, 10), (ErrorCode.NOT_ENOUGH_REPLICAS, -1, 0)),
    "too few in sync, a gap": (shrink, (0, 77, 10), (ErrorCode.NOT_ENOUGH_REPLICAS, -1, 0)),
    "a slow replica": (hold, NEXT, (ErrorCode.REQUEST_TIMED_OUT, 10, 0)),
    "a slow replica, sent again": (hold, (0, 0, 10), (ErrorCode.NONE, 0, 0)),
    "a slow replica, a gap": (hold, (0, 77, 10), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 0)),
    "cut off": (cut_off, NEXT, (ErrorCode.REQUEST_TIMED_OUT, 10, 0)),
    "too large": (lower, NEXT, (ErrorCode.MESSAGE_TOO_LARGE, -1, -1)),
    "too large, sent again": (lower, (0, 0, 10), (ErrorCode.MESSAGE_TOO_LARGE, -1, -1)),
    "no topic": (delete, NEXT, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)),
}


@pytest.mark.parametrize("what", BROKEN_RULES)
def test_a_batch_with_one_rule_of_its_partition_broken(what: str) -> None:
    change, (epoch, first, count), wanted = BROKEN_RULES[what]
    bench = ClusterBench()
    good(bench)
    change(bench)
    bench.cluster.run_until_stable(bench.clock.moment)
    if what == "no topic":
        request = Bench().produce_request({0: [numbered(7, epoch, first, count)]})
        (part,) = bench.ask(1, request, 9).responses[0].partition_responses
        assert (part.error_code, part.base_offset, part.log_start_offset) == wanted
    else:
        assert outcome_of(bench, numbered(7, epoch, first, count, bench.clock.wall_ms)) == wanted


def test_an_old_epoch_is_refused_also_when_its_batch_is_in_the_log() -> None:
    bench = ClusterBench()
    good(bench)
    assert bench.send(0, epoch=1) == (ErrorCode.NONE, 10)
    for first in (0, 10):
        found = outcome_of(bench, numbered(7, 0, first, 10))
        assert found == (ErrorCode.INVALID_PRODUCER_EPOCH, -1, 0)


# Rights


def ask_everything(bench: Bench) -> dict[str, int]:
    """Ask about topic t in every way; the errors."""
    describe = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
    offsets = ListOffsetsRequest.ListOffsetsTopic
    offset = offsets(name="t", partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)])
    epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    epoch = epochs(topic="t", partitions=[epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)])
    wanted = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    fetch = FetchRequest.FetchTopic(topic="t", partitions=[wanted])
    named = [MetadataRequest.MetadataRequestTopic(name="t")]

    def one(request: ApiMessage, version: int, kind: str, parts: str = "partitions") -> int:
        (topic,) = getattr(bench.ask(request, version), kind)
        code: int = getattr(topic, parts)[0].error_code
        return code

    fetching = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=0, topics=[fetch], forgotten_topics_data=[]
    )
    told = bench.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
    return {
        "produce": bench.produce(batch()).error_code,
        "metadata": bench.ask(MetadataRequest(topics=named), 9).topics[0].error_code,
        "offsets": one(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[offset]), 7, "topics"),
        "epochs": one(OffsetForLeaderEpochRequest(replica_id=-1, topics=[epoch]), 4, "topics"),
        "fetch": one(fetching, 11, "responses"),
        "producers": one(DescribeProducersRequest(topics=[describe]), 0, "topics"),
        "id": told.error_code,
    }


NO_ID = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
RIGHTS: dict[str, tuple[list[AclBinding], set[str]]] = {
    "write": (
        [AclBinding(ME, AclOperation.WRITE, AclResourceType.TOPIC, "t")],
        {"produce", "metadata", "offsets", "epochs", "id"},
    ),
    "read": (
        [AclBinding(ME, AclOperation.READ, AclResourceType.TOPIC, "t")],
        {"metadata", "offsets", "epochs", "fetch", "producers"},
    ),
    "describe": (
        [AclBinding(ME, AclOperation.DESCRIBE, AclResourceType.TOPIC, "t")],
        {"metadata", "offsets", "epochs"},
    ),
    "write elsewhere, to what is not there": (
        [AclBinding(ME, AclOperation.WRITE, AclResourceType.TOPIC, "x", prefix=True)],
        {"id"},
    ),
    "write, and denied the same": (
        [
            AclBinding(ME, AclOperation.WRITE, AclResourceType.TOPIC, "t"),
            AclBinding("*", AclOperation.WRITE, AclResourceType.TOPIC, "t", deny=True),
        ],
        {"metadata", "offsets", "epochs"},
    ),
    "idempotent write": (
        [AclBinding(ME, AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, "kafka-cluster")],
        {"id"},
    ),
    "for another client": ([AclBinding("other", AclOperation.WRITE, AclResourceType.TOPIC)], set()),
    "everything, for everybody": (
        [AclBinding("*", one, AclResourceType.TOPIC) for one in (AclOperation.READ, AclOperation.WRITE)],
        {"produce", "metadata", "offsets", "epochs", "fetch", "producers", "id"},
    ),
}


@pytest.mark.parametrize("what", RIGHTS)
def test_each_right_opens_what_it_names_and_nothing_else(what: str) -> None:
    grants, opened = RIGHTS[what]
    bench = Bench()
    assert set(ask_everything(bench).values()) == {ErrorCode.NONE}
    for grant in grants:
        bench.node.authorizer.add(grant)
    told = ask_everything(bench)
    assert {name for name, code in told.items() if code == 0} == opened
    assert {code for name, code in told.items() if name not in opened | {"id"}} <= {FORBIDDEN}
    assert told["id"] in {0, NO_ID}


def test_without_rights_a_topic_that_is_deleted_looks_like_one_that_is_forbidden() -> None:
    bench = Bench()
    bench.node.authorizer.add(AclBinding("other", AclOperation.WRITE, AclResourceType.TOPIC))
    before = ask_everything(bench)
    topic = bench.node.topic("t")
    assert topic is not None
    assert bench.node.delete_topic(topic, bench.clock.moment)
    part = bench.ask(Bench().produce_request({0: [batch()]}), 9).responses[0].partition_responses[0]
    assert part.error_code == before["produce"] == FORBIDDEN
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
    assert bench.ask(asked, 9).topics[0].error_code == before["metadata"]
    gone = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1)
    assert bench.ask(gone, 4).responses[0].error_code == FORBIDDEN


def test_a_right_that_is_taken_away_hides_what_is_in_the_log() -> None:
    bench = Bench()
    write = AclBinding(ME, AclOperation.WRITE, AclResourceType.TOPIC, "t")
    bench.node.authorizer.add(write)
    assert bench.produce(numbered(7, 0, 0)).error_code == 0
    bench.node.authorizer.remove(write)
    assert bench.produce(numbered(7, 0, 0)).error_code == FORBIDDEN
    bench.node.authorizer.clear()
    assert bench.produce(numbered(7, 0, 0)).base_offset == 0


# Records deleted


def trim(bench: Bench, offset: int) -> tuple[int, int]:
    kind = DeleteRecordsRequest.DeleteRecordsTopic
    part = kind.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[kind(name="t", partitions=[part])], timeout_ms=1)
    (told,) = bench.ask(request, 2).topics[0].partitions
    return told.error_code, told.low_watermark


def test_deleted_records_stay_deleted_and_their_producer_is_forgotten_by_a_restart(tmp_path: Path) -> None:
    logs = FolderLogStore(tmp_path)
    bench = Bench(logs=logs)
    for number in range(3):
        assert bench.produce(numbered(7, 0, number)).base_offset == number
    assert trim(bench, 4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert trim(bench, 2) == (0, 2)
    assert bench.produce(numbered(7, 0, 2)).log_start_offset == 2
    assert trim(bench, -1) == (0, 3)
    assert bench.produce(numbered(7, 0, 2)).base_offset == 2
    bench.restart()
    assert (logs.start_offset(bench.node.topics()[0], 0), bench.end()) == (3, 3)
    assert bench.produce(numbered(7, 0, 900)).base_offset == 3
    bench.restart()
    assert bench.produce(numbered(7, 0, 900)).base_offset == 3
    assert logs.start_offset(BrokerTopic("other", 0, 1), 0) == 0
    logs.close()


# Quotas and answers that come otherwise


def test_a_client_over_its_rate_is_told_to_wait_and_others_are_not() -> None:
    bench = Bench()
    data = batch()
    bench.node.quotas.set(ME, len(data) * 2)
    throttles: list[int] = []
    for _ in range(6):
        reply = bench.reply(bench.produce_request({0: [data]}), 9)
        throttles.append(round(reply.mute_s * 1000))
    assert throttles == [0, 0, 500, 1000, 1000, 1000]
    bench.clock.pass_ms(10_000)
    answer = bench.ask(bench.produce_request({0: [data]}), 9)
    assert answer.throttle_time_ms == 0
    bench.node.quotas.set(ME, 1)
    assert bench.ask(bench.produce_request({0: [data]}), 9).throttle_time_ms == 1000
    bench.node.quotas.set(ME, None)
    bench.node.quotas.set("other", 1)
    assert bench.ask(bench.produce_request({0: [data]}), 9).throttle_time_ms == 0


def test_an_answer_may_come_late_after_the_work_was_done() -> None:
    bench = Bench()
    bench.node.faults.add(DelayAnswer(0, 1, 2.0))
    request = bench.produce_request({0: [numbered(7, 0, 0)]})
    request.API_VERSION = 9
    request.with_header(CORRELATION, ME)
    asked = decode(request.encode(header=True), arrived=bench.clock.now)
    waiting = apply(bench.node, asked, bench.clock.moment)
    assert isinstance(waiting, DelayedResponse)
    assert waiting.deadline == bench.clock.now + 2
    assert bench.end() == 1
    bench.clock.pass_ms(1000)
    assert isinstance(apply(bench.node, with_pending(asked, waiting), bench.clock.moment), DelayedResponse)
    bench.clock.pass_ms(1000)
    reply = apply(bench.node, with_pending(asked, waiting), bench.clock.moment)
    assert isinstance(reply, RequestReply)
    assert reply.data
    assert bench.end() == 1


def test_an_answer_may_come_twice() -> None:
    bench = Bench()
    once = bench.reply(bench.produce_request({0: [numbered(7, 0, 0)]}), 9).data
    bench.node.faults.add(RepeatAnswer(0, 1))
    twice = bench.reply(bench.produce_request({0: [numbered(7, 0, 1)]}), 9).data
    assert len(twice) == 2 * len(once)
    assert twice[: len(once)] == twice[len(once) :]
    assert bench.end() == 2
