"""Rows of metadata: what is believed of an answer or a hint, and what stays known."""

import threading
from dataclasses import replace

import pytest
from kafka.protocol.metadata import MetadataResponse
from penstock.producer.metadata.cache import MetadataMerged
from penstock.producer.metadata.cluster import BrokerAddress, Cluster, TopicReplaced, read_metadata
from penstock.producer.metadata.topic_waits import topic_snapshot

from tests.conformance.metadata_world import (
    ID_A,
    ID_B,
    ID_C,
    ID_D,
    LEADER_NOT_AVAILABLE,
    ONE,
    THREE,
    TWO,
    World,
    missing,
    told,
    whole,
)


def knowing(*leaders: tuple[int, int], topic_id: bytes | None = ID_A) -> World:
    world = World()
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", *leaders, topic_id=topic_id))
    return world


def refreshed(world: World, *leaders: tuple[int, int], topic_id: bytes | None = ID_A) -> tuple[int, int]:
    world.plan.refresh(world.now)
    _ = world.ask_and_answer(told("t", *leaders, topic_id=topic_id))
    return world.leader()


@pytest.mark.row("J8")
def test_only_a_newer_epoch_tells_that_something_is_stale() -> None:
    world = knowing((1, 0))
    newer: list[bool] = []
    for at, epoch in enumerate([42, 42, 41, 41, 42, 43, 43, 42, 41, 44]):
        newer.append(bool(world.cache.apply_leader_hint("t", 0, 1 + at % 3, epoch, None, world.now)))
    assert newer == [True, False, False, False, False, True, False, False, False, True]
    assert world.leader() == (1, 44)
    assert world.wait_ms() == 100, "a newer leader is asked for"
    assert world.ask is not None
    assert world.ask.full


@pytest.mark.row("J9")
def test_the_last_epoch_seen_only_grows_whoever_tells_it() -> None:
    world = World()
    world.cache.want("t", world.now)
    assert not world.cache.apply_leader_hint("t", 0, 1, 0, None, world.now), "nothing is known of the topic"
    assert refreshed(world, (1, 10)) == (1, 10)
    assert not world.cache.apply_leader_hint("t", 0, 2, 1, None, world.now)
    assert refreshed(world, (1, 10)) == (1, 10)
    assert world.cache.apply_leader_hint("t", 0, 2, 12, None, world.now)
    assert world.leader() == (2, 12)
    assert refreshed(world, (2, 12)) == (2, 12)
    assert refreshed(world, (1, 11)) == (2, 12)


@pytest.mark.row("J10")
def test_metadata_of_an_older_epoch_is_rejected_also_when_the_topic_was_dropped_in_between() -> None:
    world = knowing((1, 100))
    everywhere, shrunk = (1, 2, 3), (1,)

    def in_sync() -> tuple[int, ...]:
        found = world.cache.cluster.partition("t", 0)
        assert found is not None
        return found.isr

    assert (world.leader(), in_sync()) == ((1, 100), everywhere)
    for epoch, expected in ((99, everywhere), (100, shrunk)):
        world.plan.refresh(world.now)
        _ = world.ask_and_answer(told("t", (1, epoch), in_sync=shrunk))
        assert (world.leader(), in_sync()) == ((1, 100), expected)
    world.cache.forget("t")
    assert world.cache.topic("t") is None
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (2, 99)))
    assert world.leader() == (-1, 100), "whom the older answer names may have been deposed"
    assert world.wait_ms() == 100, "so it is asked for again"
    _ = world.answer(told("t", (2, 100)))
    assert world.leader() == (2, 100)


@pytest.mark.row("J11")
def test_a_hint_holds_against_an_older_answer_until_metadata_has_caught_up() -> None:
    world = knowing((1, 100))
    assert world.cache.apply_leader_hint("t", 0, 2, 101, None, world.now)
    assert world.leader() == (2, 101)
    assert refreshed(world, (1, 100)) == (2, 101)
    assert refreshed(world, (2, 101)) == (2, 101)
    assert refreshed(world, (3, 102)) == (3, 102)


@pytest.mark.row("J12")
def test_a_topic_made_again_begins_with_its_own_epochs_and_one_that_is_back_with_its_old_ones() -> None:
    world = knowing((1, 10))
    world.plan.refresh(world.now)
    _ = world.ask_and_answer(missing("t"))
    assert world.leader() == (1, 10)
    assert topic_snapshot(world.cache.cluster, "t").partition_count == 0, "nobody can send to it"
    assert refreshed(world, (2, 9)) == (1, 10)
    assert refreshed(world, (2, 5), topic_id=ID_B) == (2, 5)


@pytest.mark.row("J12")
def test_epochs_begin_anew_with_every_other_topic_id_and_only_with_another_one() -> None:
    world = knowing((1, 100), topic_id=None)
    # An id that was not told before may be that of the same log: nothing older is believed (HO-16).
    assert refreshed(world, (1, 10)) == (1, 100)
    assert refreshed(world, (1, 112)) == (1, 112)
    assert refreshed(world, (1, 3), topic_id=ID_B) == (1, 3)
    assert refreshed(world, (1, 20), topic_id=ID_C) == (1, 20)
    assert refreshed(world, (1, 500), topic_id=ID_B) == (1, 20), "an id it had before is not believed again"
    assert refreshed(world, (1, 0), topic_id=ID_D) == (1, 0)


def test_ids_that_a_topic_had_stay_known_while_it_is_dropped() -> None:
    world = knowing((1, 100))
    assert refreshed(world, (1, 3), topic_id=ID_B) == (1, 3)
    world.cache.forget("t")
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 101)))
    assert world.cache.topic("t") is None
    _ = world.wait_ms()
    taken = world.answer(told("t", (2, 0), topic_id=ID_C))
    assert isinstance(taken, MetadataMerged)
    assert taken.change.topics_replaced == (TopicReplaced("t", ID_B, ID_C),)
    assert world.leader() == (2, 0)


def response(version: int, epoch: int) -> MetadataResponse:
    """A whole answer in this version: topic t with one partition, led by node 1."""
    rows = MetadataResponse.MetadataResponseTopic
    part = rows.MetadataResponsePartition(
        error_code=0,
        partition_index=0,
        leader_id=1,
        leader_epoch=epoch,
        replica_nodes=[1],
        isr_nodes=[1],
        offline_replicas=[],
    )
    made = MetadataResponse(
        throttle_time_ms=0,
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9, rack=None)],
        cluster_id="c",
        controller_id=1,
        topics=[rows(error_code=0, name="t", topic_id=None, is_internal=False, partitions=[part])],
        error_code=0,
        version=version,
    )
    return MetadataResponse.decode(made.encode(), version=version)


@pytest.mark.row("J13")
@pytest.mark.parametrize("version", range(14))
def test_epochs_of_old_versions_of_the_answer_are_as_good_as_none(version: int) -> None:
    cluster, _ = Cluster().merge(read_metadata(response(version, 10)))
    view = cluster.partition("t", 0)
    assert view is not None
    assert (view.leader, view.leader_epoch) == (1, 10 if version >= 9 else -1)


@pytest.mark.row("J13")
def test_an_answer_without_epochs_is_believed_and_wipes_out_none() -> None:
    world = knowing((1, 10))
    assert refreshed(world, (2, -1)) == (2, 10)
    assert refreshed(world, (3, 9)) == (2, 10)
    assert refreshed(world, (3, 10)) == (3, 10)


@pytest.mark.row("J15")
def test_a_leader_that_is_not_among_the_brokers_is_none() -> None:
    world = World()
    world.cache.want("t", world.now)
    zero = BrokerAddress(0, "broker-0", 9092, "")
    _ = world.wait_ms()
    _ = world.answer(told("t", (0, 10)), brokers=[zero])
    assert world.leader() == (0, 10)
    world.plan.refresh(world.now)
    _ = world.ask_and_answer(told("t", (1, 8)), brokers=[ONE, TWO])
    assert world.leader() == (-1, 10)
    assert not world.cache.cluster.is_settled("t")


@pytest.mark.row("J16")
def test_an_answer_about_some_topics_leaves_the_others_and_brings_no_forgotten_one_back() -> None:
    world = World()
    for topic in ("a", "b", "c"):
        world.cache.want(topic, world.now)
    _ = world.ask_and_answer(told("a", (1, 1)), told("b", (2, 2)), told("c", (3, 3)))
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    world.cache.forget("c")
    _ = world.answer(told("b", (3, 3)), told("c", (3, 3)))
    assert set(world.cache.cluster.topics) == {"a", "b"}
    assert (world.leader("a"), world.leader("b")) == ((1, 1), (3, 3))


@pytest.mark.row("J16")
def test_a_broker_too_old_to_tell_ids_takes_none_away() -> None:
    world = knowing((1, 5))
    assert refreshed(world, (2, 6), topic_id=None) == (2, 6)
    found = world.cache.topic("t")
    assert found is not None
    assert found.topic_id == ID_A


@pytest.mark.row("J16")
def test_a_snapshot_somebody_holds_stays_as_it_was() -> None:
    world = knowing((1, 5))
    held = world.cache.cluster
    copy = replace(held)
    assert refreshed(world, (2, 6), (1, 1)) == (2, 6)
    assert held == copy
    assert world.cache.cluster != held


@pytest.mark.row("J16")
def test_replicas_on_nodes_that_are_gone_stay_named() -> None:
    world = knowing((1, 5))
    _ = refreshed(world, (1, 5))
    world.plan.refresh(world.now)
    _ = world.ask_and_answer(told("t", (1, 5), in_sync=(1,)), brokers=[ONE])
    view = world.cache.cluster.partition("t", 0)
    assert view is not None
    assert (view.replicas, view.isr) == ((1, 2, 3), (1,))
    assert set(world.cache.cluster.nodes) == {1}
    assert world.leader() == (1, 5)


@pytest.mark.row("J16")
def test_who_listens_is_told_what_changed_and_nothing_where_nothing_did() -> None:
    world = knowing((1, 5))
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    same = world.answer(told("t", (1, 5)))
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    moved = world.answer(told("t", (2, 6)), brokers=[ONE, TWO])
    assert isinstance(same, MetadataMerged)
    assert isinstance(moved, MetadataMerged)
    assert not same.change
    assert (moved.change.leaders, moved.change.nodes_gone) == ((("t", 0),), (3,))


@pytest.mark.row("J17")
def test_a_hint_moves_its_partition_alone_and_adds_the_nodes_it_names() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.wait_ms()
    _ = world.answer(told("t", (1, 3), (1, 2)), brokers=[ONE])
    before = world.cache.cluster.partition("t", 0)
    change = world.cache.apply_leader_hint("t", 1, 2, 3, TWO, world.now)
    assert (change.leaders, change.nodes_added) == ((("t", 1),), (2,))
    assert world.cache.cluster.partition("t", 0) == before
    assert [world.leader("t", index) for index in range(2)] == [(1, 3), (2, 3)]
    assert topic_snapshot(world.cache.cluster, "t").partition_count == 2
    assert not world.cache.apply_leader_hint("t", 1, 7, 9, None, world.now), "nobody knows where node 7 is"


@pytest.mark.row("J18")
def test_whoever_reads_from_another_thread_sees_one_state_of_the_snapshot() -> None:
    world = knowing((1, 0), (1, 0))
    brokers = {1: ONE, 2: TWO, 3: THREE}
    rounds, ready, torn = 2_000, threading.Barrier(6), []

    def read() -> None:
        _ = ready.wait()
        epoch = 0
        while epoch < rounds:
            seen = world.cache.cluster
            parts = [seen.topics["t"].partitions[index] for index in range(2)]
            # In every state both partitions have one epoch, and the node that leads them is the only one.
            if parts[0].leader_epoch != parts[1].leader_epoch or (epoch and set(seen.nodes) != {parts[0].leader}):
                torn.append(seen)
            epoch = parts[0].leader_epoch

    threads = [threading.Thread(target=read) for _ in range(5)]
    for thread in threads:
        thread.start()
    _ = ready.wait()
    for epoch in range(1, rounds + 1):
        node = 1 + epoch % 3
        world.plan.refresh(world.now)
        _ = world.ask_and_answer(told("t", (node, epoch), (node, epoch)), brokers=[brokers[node]])
    for thread in threads:
        thread.join()
    assert torn == []


@pytest.mark.row("J19")
def test_an_answer_after_the_end_is_a_fault() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.wait_ms()
    world.cache.close()
    with pytest.raises(AssertionError, match="nobody asks any more"):
        _ = world.answer(told("t", (1, 1)))


@pytest.mark.row("J20")
def test_epochs_recorded_in_an_earlier_life_hold_for_their_topic_id_only() -> None:
    world = World()
    world.cache.seed("t", ID_A, {0: 7})
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 6)))
    assert world.leader() == (-1, 7)
    assert not world.cache.cluster.is_settled("t")
    assert refreshed(world, (2, 7)) == (2, 7)
    assert refreshed(world, (1, 0), topic_id=ID_B) == (1, 0)


@pytest.mark.row("J20")
def test_a_recorded_epoch_holds_against_hints_too() -> None:
    world = World()
    world.cache.seed("t", ID_A, {0: 7})
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 6)))
    assert not world.cache.apply_leader_hint("t", 0, 1, 7, None, world.now)
    assert world.cache.apply_leader_hint("t", 0, 1, 8, None, world.now)
    assert world.leader() == (1, 8)


def test_a_passing_error_of_a_topic_leaves_its_partitions_in_place() -> None:
    cluster, _ = Cluster().merge(whole(told("t", (1, 5))))
    cluster, _ = cluster.merge(whole(missing("t", LEADER_NOT_AVAILABLE)))
    assert cluster.leader("t", 0) == ONE
    assert not cluster.is_settled("t")
