"""Nodes dealt to seats: balanced, deterministic, moving as little as possible."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.leases.placement import NodeAssignment

SEATS = st.sets(st.integers(0, 5), min_size=1)
NODES = st.sets(st.integers(1, 9))


def test_nodes_are_shared_out_evenly() -> None:
    placement = NodeAssignment()

    assert placement.assign([1, 2, 3, 4, 5], [0, 1])

    assert sorted(len(placement.nodes_of(seat)) for seat in (0, 1)) == [2, 3]


def test_dealing_the_same_again_changes_nothing() -> None:
    placement = NodeAssignment()
    placement.assign([1, 2, 3], [0, 1])

    assert not placement.assign([3, 2, 1], [1, 0])


def test_a_new_node_moves_no_other() -> None:
    placement = NodeAssignment()
    placement.assign([1, 2, 3], [0, 1])
    before = dict(placement.lanes)

    placement.assign([1, 2, 3, 4], [0, 1])

    assert {node: placement.lanes[node] for node in before} == before


def test_a_seat_that_goes_leaves_the_others_what_they_have() -> None:
    placement = NodeAssignment()
    placement.assign([1, 2, 3, 4, 5, 6], [0, 1, 2])
    kept = {seat: placement.nodes_of(seat) for seat in (0, 1)}

    placement.assign([1, 2, 3, 4, 5, 6], [0, 1])

    assert all(set(kept[seat]) <= set(placement.nodes_of(seat)) for seat in kept)


def test_more_seats_than_nodes_divide_a_nodes_partitions() -> None:
    placement = NodeAssignment()
    placement.assign([1], [0, 1])

    shares = [placement.shard_of(1, "orders", index) for index in range(12)]

    assert (shares.count(0), shares.count(1)) == (6, 6)


def test_a_node_nobody_was_dealt_has_no_seat() -> None:
    placement = NodeAssignment()
    assert placement.shard_of(1, "orders", 0) is None
    placement.assign([1], [])
    assert placement.shard_of(1, "orders", 0) is None


@given(st.lists(st.tuples(NODES, SEATS), min_size=1, max_size=8))
def test_whatever_comes_and_goes_every_node_is_served_evenly(history: list[tuple[set[int], set[int]]]) -> None:
    placement = NodeAssignment()
    for nodes, seats in history:
        placement.assign(nodes, seats)
        lanes = placement.lanes
        assert set(lanes) == nodes
        assert all(lanes[node] and set(lanes[node]) <= seats for node in nodes)
        if len(seats) <= len(nodes):
            loads = [len(placement.nodes_of(seat)) for seat in seats]
        else:
            loads = [len(lanes[node]) for node in nodes]
            assert nodes == set() or {seat for lane in lanes.values() for seat in lane} == seats
        assert not loads or max(loads) - min(loads) <= 1


@given(st.lists(st.tuples(NODES, SEATS), min_size=1, max_size=6))
def test_the_same_history_gives_the_same_table(history: list[tuple[set[int], set[int]]]) -> None:
    one, other = NodeAssignment(), NodeAssignment()
    for nodes, seats in history:
        one.assign(sorted(nodes), sorted(seats))
        other.assign(sorted(nodes, reverse=True), sorted(seats, reverse=True))
    assert one.lanes == other.lanes
