"""Topics of the router that nobody sends to: when they are in use all the same, and what becomes of their route."""

from penstock.config.model import KafkaSettings
from penstock.daemon.metadata.cluster_follower import ClusterFollower
from penstock.daemon.metadata.topics import TopicMetadata
from penstock.producer.metadata.cluster import ClusterChange
from penstock.wire.messages import Grant

from tests.fakes.lease_desk import TOPIC, Desk
from tests.harness.metadata_client import MetadataClient

from .intake_world import World, facts, send


def test_a_topic_is_in_use_from_its_first_record_for_as_long_as_a_shard_holds_it() -> None:
    desk = Desk()
    desk.partition(0)
    desk.up()
    assert desk.leases.topics_in_use() == set()
    _ = desk.push(0, 1)
    assert desk.leases.topics_in_use() == {TOPIC}, "it has records"
    (grant,) = [message for _, message in desk.settle() if isinstance(message, Grant)]
    desk.done(grant, 0, 1)
    desk.settle()
    assert desk.leases.pending_records == 0
    assert desk.leases.topics_in_use() == {TOPIC}, "a shard holds it"


def test_a_dropped_topic_keeps_its_route_and_is_asked_for_again_with_the_next_frame() -> None:
    w, desk, changes = World(), Desk(), list[ClusterChange]()
    w.topics.known["t"] = facts()
    session = w.connect("app")
    assert w.offer(session, send(1))
    with MetadataClient("127.0.0.1:1") as client:
        kafka = KafkaSettings.model_validate({"bootstrap.servers": "127.0.0.1:1"})
        follower = ClusterFollower(
            client.metadata, TopicMetadata(client.metadata), w.routing, desk.leases, changes, kafka=kafka
        )
        changes.append(ClusterChange(topics_dropped=("t", "never sent to")))
        assert follower.apply(w.now)
    assert w.topics.wanted == []
    assert w.offer(session, send(2))
    assert w.topics.wanted == ["t"]
    assert len(w.delivery.pushed) >= 2, "no frame waited"
