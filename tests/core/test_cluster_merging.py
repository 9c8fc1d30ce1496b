"""What is believed of a Metadata answer, a hint, and what is not."""

import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataResponse
from penstock.producer.metadata.cluster import (
    BrokerAddress,
    Cluster,
    ClusterChange,
    MetadataAnswer,
    PartitionView,
    TopicAnswer,
    TopicReplaced,
    read_metadata,
)

ONE, TWO, THREE = (BrokerAddress(node, f"broker-{node}", 9092, "") for node in (1, 2, 3))
ID_A, ID_B, ID_C = (uuid.UUID(int=number).bytes for number in (1, 2, 3))


def part(index: int, leader: int, epoch: int, code: int = 0) -> PartitionView:
    return PartitionView(index, leader, epoch, (1, 2, 3), (1, 2, 3), code)


def topic(
    parts: Sequence[PartitionView], *, topic_id: bytes | None = ID_A, code: int = 0, name: str = "t"
) -> TopicAnswer:
    return TopicAnswer(name, topic_id, code, False, list(parts))


def answer(
    *topics: TopicAnswer, brokers: Sequence[BrokerAddress] = (ONE, TWO, THREE), cluster: str = "c"
) -> MetadataAnswer:
    return MetadataAnswer(list(brokers), cluster, 1, list(topics), 0)


def merged(*answers: MetadataAnswer) -> tuple[Cluster, ClusterChange]:
    cluster, change = Cluster(), ClusterChange()
    for one in answers:
        cluster, change = cluster.merge(one)
    return cluster, change


def leader(cluster: Cluster, index: int = 0) -> tuple[int, int]:
    found = cluster.partition("t", index)
    assert found is not None
    return found.leader, found.leader_epoch


def test_a_first_answer_tells_nodes_topics_and_leaders() -> None:
    cluster, change = merged(answer(topic([part(0, 1, 4), part(1, 2, 7)])))
    assert cluster.leader("t", 1) == TWO
    assert change == ClusterChange(nodes_added=(1, 2, 3), topics_added=("t",), leaders=(("t", 0), ("t", 1)))
    assert cluster.topics["t"].topic_id == ID_A


def test_the_same_answer_again_changes_nothing() -> None:
    _, change = merged(answer(topic([part(0, 1, 4)])), answer(topic([part(0, 1, 4)])))
    assert not change


def test_an_older_leader_epoch_is_not_believed() -> None:
    cluster, change = merged(answer(topic([part(0, 2, 5)])), answer(topic([part(0, 1, 4)])))
    assert leader(cluster) == (2, 5)
    assert not change


def test_a_newer_leader_epoch_is_believed_and_told() -> None:
    cluster, change = merged(answer(topic([part(0, 2, 5)])), answer(topic([part(0, 3, 6)])))
    assert leader(cluster) == (3, 6)
    assert change.leaders == (("t", 0),)


def test_a_broker_too_old_to_tell_epochs_is_believed_but_does_not_wipe_them_out() -> None:
    cluster, _ = merged(answer(topic([part(0, 2, 5)])), answer(topic([part(0, 3, -1)])))
    assert leader(cluster) == (3, 5)


def test_a_topic_made_again_begins_with_epochs_of_its_own() -> None:
    cluster, change = merged(
        answer(topic([part(0, 2, 5), part(1, 1, 9)])), answer(topic([part(0, 1, 0)], topic_id=ID_B))
    )
    assert leader(cluster) == (1, 0)
    assert cluster.partition("t", 1) is None
    assert change.topics_replaced == (TopicReplaced("t", ID_A, ID_B),)
    assert change.leaders == (("t", 0),)


def test_a_topic_made_again_with_the_same_leader_and_epoch_still_counts_as_moved() -> None:
    _, change = merged(answer(topic([part(0, 2, 0)])), answer(topic([part(0, 2, 0)], topic_id=ID_B)))
    assert change.leaders == (("t", 0),)


def test_a_broker_that_still_tells_the_old_topic_id_is_not_believed() -> None:
    new = answer(topic([part(0, 1, 0)], topic_id=ID_B))
    old = answer(topic([part(0, 2, 5)]))
    cluster, change = merged(old, new, old)
    assert not change
    found = cluster.topic("t")
    assert found is not None
    assert found.topic_id == ID_B
    assert leader(cluster) == (1, 0)


def test_a_missing_topic_keeps_what_is_known_and_gets_its_error() -> None:
    cluster, change = merged(answer(topic([part(0, 2, 5)])), answer(topic([], topic_id=None, code=3)))
    assert cluster.topic_error("t") == "UNKNOWN_TOPIC_OR_PARTITION"
    assert leader(cluster) == (2, 5)
    assert change.topics_failing == ("t",)
    found = cluster.topic("t")
    assert found is not None
    assert found.topic_id == ID_A
    assert not cluster.is_settled("t")


def test_a_topic_that_comes_back_under_its_old_id_keeps_its_epochs() -> None:
    gone = answer(topic([], topic_id=None, code=3))
    cluster, change = merged(answer(topic([part(0, 2, 5)])), gone, answer(topic([part(0, 1, 4)])))
    assert cluster.topic_error("t") is None
    assert change.topics_recovered == ("t",)
    assert leader(cluster) == (2, 5)


def test_an_error_is_told_once_and_another_error_again() -> None:
    missing, forbidden = (answer(topic([], topic_id=None, code=code)) for code in (3, 29))
    assert merged(missing)[1].topics_failing == ("t",)
    assert not merged(missing, missing)[1]
    assert merged(missing, missing, forbidden)[1].topics_failing == ("t",)


def test_an_answer_about_one_topic_leaves_the_others_alone() -> None:
    cluster, _ = merged(answer(topic([part(0, 2, 5)])), answer(topic([part(0, 1, 1)], topic_id=ID_B, name="u")))
    assert leader(cluster) == (2, 5)
    assert cluster.leader("u", 0) == ONE


def test_partitions_are_added_and_never_taken_away() -> None:
    first, second = answer(topic([part(0, 1, 1)])), answer(topic([part(0, 1, 1), part(1, 2, 1)]))
    cluster, change = merged(first, second)
    assert change.topics_grown == ("t",)
    assert change.leaders == (("t", 1),)
    cluster, change = cluster.merge(first)
    assert not change
    assert leader(cluster, 1) == (2, 1)


def test_a_leader_whose_node_is_gone_has_no_address() -> None:
    cluster, change = merged(answer(topic([part(0, 3, 5)])), answer(brokers=[ONE, TWO]))
    assert change.nodes_gone == (3,)
    assert leader(cluster) == (3, 5)
    assert cluster.leader("t", 0) is None


def test_a_node_at_another_address_has_moved() -> None:
    _, change = merged(answer(), answer(brokers=[ONE, TWO, THREE._replace(port=1)]))
    assert change == ClusterChange(nodes_moved=(3,))


def test_a_partition_without_leader_is_asked_for_again() -> None:
    cluster, _ = merged(answer(topic([part(0, -1, 5, code=5), part(1, 1, 5)])))
    assert not cluster.is_settled("t")
    cluster, _ = cluster.merge(answer(topic([part(0, 2, 6), part(1, 1, 5)])))
    assert cluster.is_settled("t")


def test_a_forgotten_topic_is_gone() -> None:
    cluster, _ = merged(answer(topic([part(0, 2, 5)])))
    assert cluster.without_topics(["t"]).topic("t") is None


# --- hints -----------------------------------------------------------------------------------------------------------


def test_a_newer_hint_moves_the_leader() -> None:
    cluster, _ = merged(answer(topic([part(0, 1, 4)])))
    cluster, change = cluster.apply_leader_hint("t", 0, 2, 5)
    assert leader(cluster) == (2, 5)
    assert change == ClusterChange(leaders=(("t", 0),))


@pytest.mark.parametrize(
    ("index", "node", "epoch"),
    [(0, 2, 4), (0, 2, 3), (0, -1, 9), (0, 77, 9), (9, 2, 9)],
    ids=["equal", "older", "nobody", "unknown node", "unknown partition"],
)
def test_other_hints_change_nothing(index: int, node: int, epoch: int) -> None:
    before, _ = merged(answer(topic([part(0, 1, 4)])))
    after, change = before.apply_leader_hint("t", index, node, epoch)
    assert after is before
    assert not change
    assert before.apply_leader_hint("unknown", 0, 2, 9) == (before, change)


def test_a_hint_may_bring_the_address_of_its_node() -> None:
    cluster, _ = merged(answer(topic([part(0, 1, 4)])))
    fourth = BrokerAddress(4, "broker-4", 9092, "")
    cluster, change = cluster.apply_leader_hint("t", 0, 4, 5, fourth)
    assert cluster.leader("t", 0) == fourth
    assert change.nodes_added == (4,)


# --- what an earlier life recorded -----------------------------------------------------------------------------------


def test_a_leader_older_than_what_was_recorded_is_none() -> None:
    cluster = Cluster().with_floors("t", ID_A, {0: 7})
    cluster, _ = cluster.merge(answer(topic([part(0, 1, 6), part(1, 1, 6)])))
    assert leader(cluster) == (-1, 7)
    assert leader(cluster, 1) == (1, 6)
    cluster, change = cluster.apply_leader_hint("t", 0, 2, 7)
    assert not change
    cluster, _ = cluster.merge(answer(topic([part(0, 2, 7)])))
    assert leader(cluster) == (2, 7)


def test_what_was_recorded_of_another_topic_id_does_not_count() -> None:
    cluster = Cluster().with_floors("t", ID_B, {0: 7}).with_floors("t", ID_B, {0: 3, 1: 1})
    assert cluster.floors["t", ID_B, 0] == 7
    cluster, _ = cluster.merge(answer(topic([part(0, 1, 6)])))
    assert leader(cluster) == (1, 6)


# --- any history at all ----------------------------------------------------------------------------------------------

_PARTS = st.builds(
    part, st.integers(0, 2), st.sampled_from([-1, 1, 2, 3, 9]), st.integers(-1, 6), st.sampled_from([0, 5, 9])
)
_TOPICS = st.builds(
    topic,
    st.lists(_PARTS, max_size=3, unique_by=lambda one: one.index),
    topic_id=st.sampled_from([ID_A, ID_B, ID_C, None]),
    code=st.sampled_from([0, 0, 0, 3, 5, 29]),
)
_EVENTS = st.one_of(
    st.builds(answer, _TOPICS, brokers=st.lists(st.sampled_from([ONE, TWO, THREE]), unique=True)),
    st.tuples(st.integers(0, 2), st.integers(-1, 4), st.integers(-1, 8)),
)


@given(st.lists(_EVENTS, max_size=25))
def test_epochs_never_go_back_within_a_topic_id_and_no_id_ever_returns(
    events: list[MetadataAnswer | tuple[int, int, int]],
) -> None:
    cluster = Cluster()
    seen: list[bytes] = []
    for event in events:
        before = cluster.topic("t")
        if isinstance(event, MetadataAnswer):
            cluster, change = cluster.merge(event)
        else:
            cluster, change = cluster.apply_leader_hint("t", *event)
        after = cluster.topic("t")
        if after is None:
            continue
        if after.topic_id is not None and (not seen or seen[-1] != after.topic_id):
            assert after.topic_id not in seen
            seen.append(after.topic_id)
            assert len(seen) == 1 or change.topics_replaced
        if before is None or (before.topic_id is not None and before.topic_id != after.topic_id):
            continue
        for index, was in before.partitions.items():
            now = after.partitions[index]
            assert now.leader_epoch >= was.leader_epoch
            changed = (was.leader, was.leader_epoch) != (now.leader, now.leader_epoch)
            assert not changed or ("t", index) in change.leaders


# --- out of real responses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 14))
def test_a_response_is_read_as_far_as_its_version_can_be_believed(version: int) -> None:
    rows = MetadataResponse.MetadataResponseTopic
    response = MetadataResponse(
        throttle_time_ms=0,
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9, rack="r")],
        cluster_id="cid",
        controller_id=1,
        topics=[
            rows(
                error_code=0,
                name="t",
                topic_id=uuid.UUID(bytes=ID_A),
                is_internal=False,
                partitions=[
                    rows.MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=node,
                        leader_epoch=3,
                        replica_nodes=[1, 2],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                    for index, node in enumerate([1, 2])
                ],
            ),
            rows(error_code=3, name="gone", topic_id=uuid.UUID(int=0), is_internal=False, partitions=[]),
        ],
        error_code=0,
        version=version,
    )
    read = read_metadata(MetadataResponse.decode(response.encode(), version=version))
    assert read.brokers == [BrokerAddress(1, "h", 9, "r")]
    assert read.cluster_id == ("cid" if version >= 2 else "")
    first, gone = read.topics
    assert first.topic_id == (ID_A if version >= 10 else None)
    assert gone == TopicAnswer("gone", None, 3, False, [])
    epoch = 3 if version >= 9 else -1
    # The second leader is not among the brokers: nobody could be asked.
    assert [(one.leader, one.leader_epoch) for one in first.partitions] == [(1, epoch), (-1, epoch)]
