"""A cluster with replicas in one process, used by clients that are not ours while its nodes end and come back."""

import socket
import time
from collections.abc import Iterator

import pytest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from penstock.broker.log.error_codes import ErrorCode

from tests.harness.batches import numbered
from tests.harness.embedded import Caller, ReplicatedCluster, confluent, now_ms, produce, produce_request
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic


@pytest.fixture
def cluster() -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(arguments=["--session-ms", "500", "--replica-lag-ms", "1000"]) as found:
        yield found


def test_an_idempotent_producer_loses_and_doubles_nothing_while_leaders_move_and_nodes_die(
    cluster: ReplicatedCluster,
) -> None:
    topic = cluster.create_topic("moved", 3)
    producer = confluent(cluster, **{"retry.backoff.ms": 20, "reconnect.backoff.ms": 10})
    acknowledged: set[bytes] = set()
    failures: list[object] = []

    def told(error: object, message: object) -> None:
        if error is None:
            acknowledged.add(message.value())  # type: ignore[attr-defined]
        else:
            failures.append(error)

    sent = 0
    for turn in range(6):
        goal = len(acknowledged) + 500
        while len(acknowledged) < goal:
            for _ in range(50):
                producer.produce(topic, b"%d" % sent, on_delivery=told)
                sent += 1
            _ = producer.poll(0.02)
        node = 1 + turn % 3
        if turn % 2:
            cluster.do("kill", node=node)
            _ = wait_until(
                lambda node=node: all(cluster.state(topic, part)["leader"] not in {node, -1} for part in range(3)),
                seconds=20,
                what="others lead",
            )
            cluster.do("start", node=node)
        else:
            cluster.do("stop", node=node)
            cluster.do("start", node=node)
    assert producer.flush(60) == 0
    assert failures == []
    values = [one.value for one in read_topic(cluster, topic)]
    assert len(values) == len(set(values)) == sent


def test_a_dead_node_refuses_connections_and_a_paused_one_takes_them_and_says_nothing(
    cluster: ReplicatedCluster,
) -> None:
    asked = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    with cluster.call(2) as before:
        assert before.ask(asked, 3).error_code == 0
        cluster.do("kill", node=2)
        assert before.hung_up()
    with pytest.raises(ConnectionRefusedError):
        _ = cluster.call(2)
    cluster.do("start", node=2)
    with cluster.call(2) as again:
        cluster.do("pause", node=2)
        with cluster.call(2) as late:
            _ = again.send(asked, 3)
            _ = late.send(asked, 3)
            again.sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                _ = again.sock.recv(1)
            again.sock.settimeout(20)
            cluster.do("resume", node=2)
            assert again.receive()[1].error_code == 0
            assert late.receive()[1].error_code == 0


def test_a_batch_waits_for_a_follower_that_is_held_and_is_answered_when_it_is_let_go(
    cluster: ReplicatedCluster,
) -> None:
    topic = cluster.create_topic("held", 1, config={"min.insync.replicas": "2"})
    leader = int(str(cluster.state(topic)["leader"]))
    follower = 1 + leader % 3
    at = now_ms()
    with cluster.call(leader) as caller:
        assert produce(caller, topic, numbered(7, 0, 0, 1, at)) == (0, 0)
        cluster.do("hold", node=follower)
        _ = caller.send(produce_request(topic, numbered(7, 0, 1, 1, at)), 9)
        cluster.do("release", node=follower)
        _, answer = caller.receive()
        (part,) = answer.responses[0].partition_responses
        assert (part.error_code, part.base_offset) == (0, 1)
        cluster.do("hold", node=follower)
        assert produce(caller, topic, numbered(7, 0, 2, 1, at)) == (0, 2)
        assert follower not in cluster.state(topic)["in_sync"]  # type: ignore[operator]


def test_a_deposed_leader_cut_off_answers_out_of_order_and_never_completes(cluster: ReplicatedCluster) -> None:
    topic = cluster.create_topic("cut", 1, config={"min.insync.replicas": "2"})
    leader = int(str(cluster.state(topic)["leader"]))
    at = now_ms()
    with cluster.call(leader) as caller:
        assert produce(caller, topic, numbered(7, 0, 0, 1, at)) == (0, 0)
        for other in (-1, 1, 2, 3):
            if other != leader:
                cluster.do("cut", node=leader, **{"from": other})
        _ = wait_until(lambda: cluster.state(topic)["leader"] != leader, seconds=20, what="another leads")
        gap = produce(caller, topic, numbered(7, 0, 9, 1, at))
        assert gap == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        request = produce_request(topic, numbered(7, 0, 1, 1, at))
        request.timeout_ms = 300
        (part,) = caller.ask(request, 9).responses[0].partition_responses
        assert (part.error_code, part.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 1)
        cluster.do("heal")
        assert produce(caller, topic, numbered(7, 0, 1, 1, at))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with cluster.call(int(str(cluster.state(topic)["leader"]))) as caller:
        assert produce(caller, topic, numbered(7, 0, 1, 1, at)) == (0, 1)


def test_answers_come_late_or_twice_and_connections_close_at_a_byte(cluster: ReplicatedCluster) -> None:
    topic = cluster.create_topic("faults", 1)
    leader = int(str(cluster.state(topic)["leader"]))
    at = now_ms()
    with cluster.call(leader) as caller:
        cluster.do("delay_answer", node=leader, api=0, ms=400)
        begun = time.monotonic()
        assert produce(caller, topic, numbered(7, 0, 0, 1, at)) == (0, 0)
        assert time.monotonic() - begun >= 0.4
        cluster.do("repeat_answer", node=leader, api=0)
        request = produce_request(topic, numbered(7, 0, 1, 1, at))
        _ = caller.send(request, 9)
        correlation, _ = caller.receive()
        caller._asked[correlation] = request
        assert caller.receive()[0] == correlation
    whole = produce_request(topic, numbered(7, 0, 2, 1, at))
    whole.API_VERSION = 9
    whole.with_header(1, "caller")
    size = len(whole.encode(header=True, framed=True))
    for at_byte, applied in ((size - 1, False), (size, True)):
        cluster.do("close_at", node=leader, bytes=at_byte)
        with cluster.call(leader) as caller:
            _ = caller.send(produce_request(topic, numbered(7, 0, 2, 1, at)), 9)
            if applied:
                _ = caller.receive()
            assert caller.hung_up()
        assert cluster.offsets(topic)[0][1] == 2 + applied


@pytest.mark.parametrize(("reset", "appended"), [(False, 3), (True, 2)])
def test_of_a_client_that_is_gone_what_is_served_is_finished_and_after_an_orderly_end_one_request_more(
    cluster: ReplicatedCluster, reset: bool, appended: int
) -> None:
    topic = cluster.create_topic("gone", 1, config={"min.insync.replicas": "2"})
    leader = int(str(cluster.state(topic)["leader"]))
    at = now_ms()
    with cluster.call(leader) as caller:
        assert produce(caller, topic, numbered(7, 0, 0, 1, at)) == (0, 0)
        cluster.do("hold", node=1 + leader % 3)
        for sequence in (1, 2, 3):
            _ = caller.send(produce_request(topic, numbered(7, 0, sequence, 1, at)), 9)
        with cluster.call(leader) as other:
            _ = wait_until(lambda: told_last(other, topic) == 1, seconds=20, what="the first of them is appended")
        if reset:
            caller.reset()
        else:
            caller.sock.shutdown(socket.SHUT_WR)
        # A connection of its own is served after what came before.
        with cluster.call(leader) as other:
            assert told_last(other, topic) == 1
        cluster.do("release", node=1 + leader % 3)
        if not reset:
            assert [part_error(caller) for _ in range(2)] == [0, 0]
            assert caller.hung_up()
    assert cluster.offsets(topic)[0][1] == appended


def told_last(caller: Caller, topic: str) -> int:
    """The last sequence that the node tells of."""
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
    (part,) = caller.ask(DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions
    (state,) = part.active_producers
    last: int = state.last_sequence
    return last


def part_error(caller: Caller) -> int:
    """The error in the next Produce answer."""
    _, answer = caller.receive()
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def test_a_client_over_its_rate_is_not_listened_to_for_a_while(cluster: ReplicatedCluster) -> None:
    topic = cluster.create_topic("slow", 1)
    leader = int(str(cluster.state(topic)["leader"]))
    with cluster.call(leader) as caller:
        cluster.do("throttle", node=leader, client="caller", bytes_per_s=50)
        answer = caller.ask(produce_request(topic, numbered(7, 0, 0)), 9)
        told_s = answer.throttle_time_ms / 1000
        assert told_s > 0.3
        begun = time.monotonic()
        cluster.do("throttle", node=leader, client="caller")
        _ = caller.ask(produce_request(topic, numbered(7, 0, 1)), 9)
        assert time.monotonic() - begun >= told_s - 0.1


def test_rights_clocks_and_limits_are_set_by_command(cluster: ReplicatedCluster) -> None:
    topic = cluster.create_topic("ruled", 1)
    leader = int(str(cluster.state(topic)["leader"]))
    with cluster.call(leader) as caller:
        cluster.do("allow", node=leader, client="other", operation="WRITE", resource="TOPIC", name=topic)
        assert produce(caller, topic, numbered(7, 0, 0))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        cluster.do("allow", node=leader, client="caller", operation="WRITE", resource="TOPIC", name="rul", prefix=True)
        assert produce(caller, topic, numbered(7, 0, 0)) == (0, 0)
        cluster.do("allow_all", node=leader)
        cluster.do("limit", name="log_bytes_max", value=10)
        assert produce(caller, topic, numbered(7, 0, 1))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        cluster.do("limit", name="log_bytes_max", value=1 << 20)
        cluster.do("clock", node=leader, ahead_ms=-60_000 * 60 * 24 * 365)
        late = numbered(7, 0, 1, 1, now_ms())
        assert produce(caller, topic, late)[0] == ErrorCode.INVALID_TIMESTAMP


def test_commands_that_cannot_be_are_refused_and_nothing_ends(cluster: ReplicatedCluster) -> None:
    for bad in (
        {"op": "kill", "node": 9},
        {"op": "start", "node": 1},
        {"op": "elect", "topic": "none", "partition": 0, "node": 1},
        {"op": "fail_next", "api": 0, "error": "NONE"},
        {"op": "throttle", "node": 1, "client": "x", "bytes_per_s": 0},
        {"op": "allow", "node": 1, "client": "x", "operation": "FLY", "resource": "TOPIC"},
        {"op": "limit", "name": "node_id", "value": 1},
        {"op": "what"},
    ):
        assert cluster.process.command(**bad)["ok"] is False
    with cluster.call(1) as caller:
        assert isinstance(caller, Caller)
        asked = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        assert caller.ask(asked, 3).error_code == 0
