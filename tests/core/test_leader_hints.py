"""A Produce answer that names a leader and where it is: both reach what is known of the cluster."""

from kafka.protocol.producer.produce import ProduceResponse
from penstock.producer.metadata.cluster import BrokerAddress

from tests.conformance.metadata_world import World, told
from tests.fakes.link_world import LinkWorld, link_world
from tests.fakes.shard_bench import TOPIC

NOT_LEADER = 6
SEVEN = BrokerAddress(7, "10.0.0.7", 9092, "rack-b")


def moved(version: int, epoch: int) -> bytes:
    """Partition 0 is led by node 7 in this epoch."""
    part = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    row = part(
        index=0,
        error_code=NOT_LEADER,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[],
        error_message=None,
        current_leader=part.LeaderIdAndEpoch(leader_id=SEVEN.node, leader_epoch=epoch),
    )
    endpoint = ProduceResponse.NodeEndpoint(node_id=SEVEN.node, host=SEVEN.host, port=SEVEN.port, rack=SEVEN.rack)
    response = ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name=TOPIC, partition_responses=[row])],
        throttle_time_ms=0,
        node_endpoints=[endpoint],
        version=version,
    )
    return b"\0" + bytes(response.encode())


def answered_with_hint(world: LinkWorld, epoch: int) -> None:
    world.bench.grant(0)
    world.warm([0])
    world.bench.put(0, 1)
    world.send()
    asked = world.socket().read()
    world.socket().answer(asked, moved(asked.version, epoch))


def test_the_address_of_a_leader_that_nobody_knew_comes_with_its_hint_and_is_told_once() -> None:
    with link_world() as links:
        answered_with_hint(links, 9)
        endpoints = links.links.take_endpoints()
        assert endpoints == {7: SEVEN}
        assert links.links.take_endpoints() == {}
    world = World()
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 8)))
    assert not world.cache.apply_leader_hint("t", 0, 7, 9, None, world.now), "nobody knows where it is"
    assert world.cache.apply_leader_hint("t", 0, 7, 9, endpoints[7], world.now)
    assert world.cache.cluster.leader("t", 0) == SEVEN
