"""What is told of a partition in one round, in whatever order its parts come: nothing of it is lost or told twice."""

from penstock.producer.delivery.outcomes import Delivered, DeliveryFailureKind
from penstock.producer.metadata.cluster import PartitionView
from penstock.producer.protocol.produce_request import PartitionProduceResponse

from tests.conformance.joined_rig import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_RECORD,
    JoinedRig,
    Request,
    error,
    outcome,
)
from tests.fakes.model_broker import Answer

INVALID_PRODUCER_EPOCH = 47


def hear(rig: JoinedRig, request: Request, answer: Answer | None = None) -> None:
    """An answer comes, and the round goes on with other events."""
    outcomes: list[PartitionProduceResponse] = [
        outcome(sent.partition, answer or rig.log(sent.partition).produce(sent.data)) for sent in request.sent
    ]
    rig.wire.remove(request)
    rig.joined.table.request_answered(request.flight, outcomes, now=rig.now, chance=0.5)


def node_gone(rig: JoinedRig, partition: int, node: int) -> None:
    """Metadata knows the node no more, and no leader of the partition."""
    told = rig._metadata(None)
    parts = [
        PartitionView(part.index, -1 if part.index == partition else part.leader, 1, (), (), 0)
        for part in told.topics[0].partitions
    ]
    told = told._replace(
        brokers=[one for one in told.brokers if one.node != node], topics=[told.topics[0]._replace(partitions=parts)]
    )
    rig._cluster, change = rig._cluster.merge(told)
    rig.joined.cluster_changed(rig._cluster, change, now=rig.now)


def test_an_acknowledgement_just_before_the_node_leaves_the_cluster_counts() -> None:
    rig = JoinedRig()
    first = rig.append(2)
    rig.run()
    hear(rig, rig.request_of(2))
    node_gone(rig, 2, 1)
    rig.joined.upkeep(now=rig.now)
    assert rig.delivered(2) == {first: first}
    assert rig.joined.idle


def test_an_acknowledgement_heard_in_the_round_that_ends_the_producer_is_told() -> None:
    rig = JoinedRig()
    refused, taken = rig.append(0), rig.append(2)
    rig.run()
    hear(rig, rig.request_of(0), error(CLUSTER_AUTHORIZATION_FAILED))
    hear(rig, rig.request_of(2))
    rig.joined.upkeep(now=rig.now)
    assert list(rig.failed(0)) == [refused]
    assert rig.delivered(2) == {taken: taken}
    assert rig.failed(2) == {}


def test_what_is_acknowledged_behind_a_halt_is_not_sent_again() -> None:
    rig = JoinedRig(delivery_ms=120_000)
    rig.append(0)
    rig.run()
    rig.append(0)
    rig.run()
    older, newer = rig.wire
    _ = rig.log(0).produce(older.sent[0].data)
    hear(rig, older, error(INVALID_PRODUCER_EPOCH))
    hear(rig, newer)
    rig.joined.upkeep(now=rig.now)
    rig.until_idle()
    assert len(rig.log(0).records) == 3
    told = [one for one in rig.outcomes if isinstance(one, Delivered)]
    assert sum(one.count for one in told) + len(rig.failed(0)) == 2


def test_a_run_of_refused_records_over_several_slices_leaves_a_hole() -> None:
    rig = JoinedRig()
    for _ in range(3):
        rig.append(0, count=10)
    rig.run()
    assert [(sent.first, sent.count) for sent in rig.on_wire(0)] == [(1, 30)]
    bad = range(8, 24)
    rig.refuse(INVALID_RECORD, partition=0, errors=[(place, "no key") for place in bad])
    rig.until_idle()
    assert sorted(rig.failed(0)) == [1 + place for place in bad]
    assert {failure.kind for failure in rig.failed(0).values()} == {DeliveryFailureKind.REFUSED}
    assert sorted(rig.delivered(0)) == [1 + place for place in range(30) if place not in bad]


def test_closing_does_not_wait_for_ghosts() -> None:
    rig = JoinedRig(delivery_ms=1500)
    rig.append(0)
    rig.run()
    rig.lose(0)
    rig.down.add(0)
    rig.joined.close(float("inf"), now=rig.now)
    rig.pass_ms(1500)
    rig.run()
    assert [failure.kind for failure in rig.failed(0).values()] == [DeliveryFailureKind.MAY_BE_WRITTEN]
    assert rig.joined.idle
    assert rig.ghosts(0) == []


def test_without_idempotence_what_comes_back_unanswered_is_sent_again_without_anything_new() -> None:
    rig = JoinedRig(idempotent=False, delivery_ms=120_000)
    first = rig.append(2)
    rig.run()
    node_gone(rig, 2, 1)
    rig.lose(1)
    rig.run()
    assert not rig.wire
    rig.lead(2, node=1, epoch=2)
    rig.run()
    assert [sent.first for sent in rig.on_wire(2)] == [first]


def test_a_partition_without_memory_waits_for_it_once_however_much_comes() -> None:
    rig = JoinedRig(pool_bytes=40_000, delivery_ms=120_000)
    rig.down.add(0)
    for _ in range(50):
        for partition in (0, 1):
            rig.append(partition, value=bytes(9000))
        rig.run()
    starved = rig.joined.table.accumulator._starved
    assert [len(waiting) for waiting in starved.values()] == [1]
    rig.down.clear()
    rig.until_idle()
    assert len(rig.delivered(0)) == len(rig.delivered(1)) == 50
