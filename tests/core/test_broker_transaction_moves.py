"""Transactions in a cluster with replicas: coordinators move, markers come late or never, and what was decided stays decided."""

import pytest
from penstock.broker.cluster.faults import MarkerFault, MarkerRule
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.error_codes import ErrorCode as E
from penstock.broker.log.internal_topics import TRANSACTIONS, internal_partition_of

from tests.harness.transaction_cluster import ClusterTalk, WaitsError

V1, V2 = 11, 12


def begun() -> ClusterTalk:
    talk = ClusterTalk()
    assert talk.do("init") == {"error": 0, "id": 0, "epoch": 0}
    return talk


def others(talk: ClusterTalk, node: int) -> list[int]:
    return [peer.node_id for peer in talk.cluster.peers if peer.node_id != node]


def replaced(talk: ClusterTalk) -> int:
    """Kill the coordinator; return who it was, when another one is there."""
    dead = talk.coordinator()
    talk.cluster.kill(dead, talk.bench.clock.moment)
    talk.bench.pass_s(6)
    assert talk.coordinator() not in {dead, -1}
    return dead


def test_only_the_coordinator_of_an_id_knows_it() -> None:
    talk = begun()
    for node in others(talk, talk.coordinator()):
        assert talk.do("init", node=node)["error"] == E.NOT_COORDINATOR
        assert talk.do("end", epoch=0, commit=True, version=5, node=node)["error"] == E.NOT_COORDINATOR
        assert talk.do("state", node=node) == {"error": E.NOT_COORDINATOR}


def test_an_open_transaction_goes_on_under_the_next_coordinator() -> None:
    talk = begun()
    assert talk.put(V2, 0, 0)[0] == 0
    _ = replaced(talk)
    assert talk.do("state")["state"] == "Ongoing"
    assert talk.put(V2, 0, 1)[0] == 0
    assert talk.do("end", epoch=0, commit=True, version=5) == {"error": 0, "id": 0, "epoch": 1}
    assert [kind for _, _, kind in talk.do("read")["batches"]] == ["transactional", "transactional", "commit"]


def test_the_next_coordinator_writes_the_markers_that_the_last_one_owed() -> None:
    talk = begun()
    talk.cluster.marker_rules.add(MarkerRule(MarkerFault.HOLD))
    assert talk.put(V2, 0, 0)[0] == 0
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    assert talk.do("state")["state"] == "PrepareCommit"
    _ = replaced(talk)
    assert talk.do("state")["state"] == "PrepareCommit"
    talk.cluster.marker_rules.clear()
    talk.bench.pass_s(1)
    assert talk.do("state")["state"] == "CompleteCommit"
    read = talk.do("read")
    assert (read["last_stable"], read["high_watermark"]) == (2, 2)


def test_until_its_marker_is_written_a_late_batch_falls_into_the_ended_transaction_and_the_next_epoch_waits() -> None:
    talk = begun()
    talk.cluster.marker_rules.add(MarkerRule(MarkerFault.HOLD, topic="t"))
    assert talk.put(V2, 0, 0)[0] == 0
    assert talk.do("end", epoch=0, commit=True, version=5) == {"error": 0, "id": 0, "epoch": 1}
    assert talk.put(V2, 0, 1)[0] == 0
    assert talk.put(V2, 1, 0)[0] == E.CONCURRENT_TRANSACTIONS
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == E.CONCURRENT_TRANSACTIONS
    assert talk.do("end", epoch=0, commit=False, version=5)["error"] == E.INVALID_TXN_STATE
    assert talk.do("init")["error"] == E.CONCURRENT_TRANSACTIONS
    assert talk.do("read")["last_stable"] == 0
    talk.cluster.marker_rules.clear()
    talk.bench.pass_s(1)
    assert talk.put(V2, 0, 2)[0] == E.INVALID_PRODUCER_EPOCH
    assert talk.put(V2, 1, 0)[0] == 0
    assert talk.do("read")["last_stable"] == 3


def test_a_lost_marker_leaves_a_transaction_that_its_coordinator_thinks_is_complete() -> None:
    talk = begun()
    talk.cluster.marker_rules.add(MarkerRule(MarkerFault.LOSE, topic="t"))
    assert talk.put(V2, 0, 0)[0] == 0
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    assert talk.do("state")["state"] == "CompleteCommit"
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    assert talk.do("read")["last_stable"] == 0
    assert talk.do("writers")["writers"] == [[0, 0, 0, 0]]


def test_markers_may_be_late_by_so_much() -> None:
    talk = ClusterTalk(BrokerNodeLimits(default_replicas=3, marker_delay_ms=2_000))
    assert talk.do("init")["error"] == 0
    assert talk.put(V2, 0, 0)[0] == 0
    assert talk.do("end", epoch=0, commit=False, version=5)["error"] == 0
    talk.bench.pass_s(1.5)
    assert talk.do("read")["last_stable"] == 0
    talk.bench.pass_s(1)
    assert talk.do("read")["last_stable"] == 2


def test_an_end_is_not_told_before_the_replicas_know_it() -> None:
    talk = begun()
    assert talk.put(V2, 0, 0)[0] == 0
    home = talk.coordinator()
    for node in others(talk, home):
        talk.cluster.pause_replication(node, talk.bench.clock.moment)
    with pytest.raises(WaitsError):
        _ = talk.do("end", epoch=0, commit=True, version=5)
    assert talk.do("init")["error"] == E.CONCURRENT_TRANSACTIONS
    # Nobody has it but the coordinator: what a successor knows is an open transaction.
    talk.cluster.kill(home, talk.bench.clock.moment)
    talk.bench.pass_s(6)
    for node in others(talk, home):
        talk.cluster.pause_replication(node, talk.bench.clock.moment, held=False)
    assert talk.do("state")["state"] == "Ongoing"
    assert talk.do("end", epoch=0, commit=False, version=5)["error"] == 0
    assert talk.do("read")["aborted"] == [[0, 0]]


def test_nothing_is_appended_to_a_transaction_that_only_its_coordinator_knows_of() -> None:
    talk = begun()
    for node in others(talk, talk.coordinator()):
        talk.cluster.pause_replication(node, talk.bench.clock.moment)
    with pytest.raises(WaitsError):
        _ = talk.put(V2, 0, 0)
    waiting = talk.waiting
    assert waiting is not None
    assert talk.bench.log_end(talk.bench.leader) == 0
    talk.bench.clock.pass_ms(5_000)
    answer = talk.bench.go_on(waiting)
    assert not isinstance(answer, type(waiting))
    assert answer.responses[0].partition_responses[0].error_code == E.NOT_ENOUGH_REPLICAS
    assert talk.bench.log_end(talk.bench.leader) == 0


def test_too_few_replicas_of_the_coordinators_log_decide_nothing() -> None:
    talk = begun()
    assert talk.put(V1, 0, 0)[0] == E.TRANSACTION_ABORTABLE
    home = talk.coordinator()
    for node in others(talk, home):
        talk.cluster.stop(node, talk.bench.clock.moment)
    assert talk.do("add", epoch=0, node=home) == {"errors": [E.COORDINATOR_NOT_AVAILABLE]}
    assert talk.do("init", node=home)["error"] == E.COORDINATOR_NOT_AVAILABLE


def test_a_coordinator_that_is_cut_off_promises_nothing_and_hears_of_its_successor() -> None:
    talk = begun()
    assert talk.put(V2, 0, 0)[0] == 0
    old = talk.coordinator()
    moment = talk.bench.clock.moment
    for other in (-1, *others(talk, old)):
        talk.cluster.cut_link(old, other, moment)
    with pytest.raises(WaitsError):
        _ = talk.do("end", epoch=0, commit=True, version=5, node=old)
    talk.bench.pass_s(6)
    assert talk.coordinator() != old
    told = talk.do("end", epoch=0, commit=False, version=5)
    assert told == {"error": 0, "id": 0, "epoch": 1}
    talk.cluster.heal(talk.bench.clock.moment)
    talk.bench.pass_s(2)
    assert talk.do("end", epoch=0, commit=True, version=5, node=old)["error"] == E.NOT_COORDINATOR
    assert talk.do("read")["aborted"] == [[0, 0]]


def test_a_new_coordinator_may_take_a_while_to_read_its_log() -> None:
    talk = ClusterTalk(BrokerNodeLimits(default_replicas=3, coordinator_load_ms=8_000))
    assert talk.do("init")["error"] == E.COORDINATOR_LOAD_IN_PROGRESS
    talk.bench.pass_s(8)
    assert talk.do("init")["error"] == 0
    assert talk.put(V2, 0, 0)[0] == 0
    index = internal_partition_of("t-a")
    node = next(one for one in others(talk, talk.coordinator()))
    talk.cluster.elect(TRANSACTIONS, index, node, talk.bench.clock.moment)
    for what in ("init", "state"):
        assert talk.do(what)["error"] == E.COORDINATOR_LOAD_IN_PROGRESS
    assert talk.put(V2, 1, 0)[0] == E.NOT_ENOUGH_REPLICAS
    talk.bench.pass_s(8)
    assert talk.do("state")["state"] == "Ongoing"


def test_a_transaction_is_committed_in_all_its_partitions_though_a_leader_dies_meanwhile() -> None:
    talk = begun()
    assert talk.put(V2, 0, 0)[0] == 0
    talk.cluster.marker_rules.add(MarkerRule(MarkerFault.HOLD))
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    dead = talk.bench.leader
    talk.cluster.kill(dead, talk.bench.clock.moment)
    talk.cluster.marker_rules.clear()
    talk.bench.pass_s(6)
    assert talk.do("state")["state"] == "CompleteCommit"
    assert talk.do("read")["last_stable"] == 2


def test_a_marker_that_is_lost_with_its_leader_is_written_again() -> None:
    talk = begun()
    leader, moment = talk.bench.leader, talk.bench.clock.moment
    followers = others(talk, leader)
    talk.cluster.elect(TRANSACTIONS, internal_partition_of("t-a"), followers[0], moment)
    assert talk.put(V2, 0, 0)[0] == 0
    talk.cluster.marker_rules.add(MarkerRule(MarkerFault.HOLD))
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    for node in followers:
        talk.cluster.pause_replication(node, moment)
    talk.cluster.marker_rules.clear()
    talk.bench.pass_s(0.5)
    assert (talk.bench.log_end(leader), talk.bench.high_watermark(leader)) == (2, 1)
    assert talk.do("read")["last_stable"] == 0
    assert talk.do("state")["state"] == "PrepareCommit"
    talk.cluster.kill(leader, moment)
    for node in followers:
        talk.cluster.pause_replication(node, talk.bench.clock.moment, held=False)
    talk.bench.pass_s(6)
    assert talk.do("state")["state"] == "CompleteCommit"
    assert talk.do("read")["batches"] == [[0, 1, "transactional"], [1, 1, "commit"]]


def test_offsets_of_a_transaction_are_those_of_the_next_group_coordinator() -> None:
    talk = begun()
    assert talk.do("commit", epoch=0, offset=5, version=5) == {"error": 0}
    assert talk.do("fetched", stable=True) == {"error": E.UNSTABLE_OFFSET_COMMIT, "offset": -1}
    dead = talk.coordinator("t-group", "__consumer_offsets")
    talk.cluster.kill(dead, talk.bench.clock.moment)
    talk.bench.pass_s(6)
    assert talk.do("fetched", stable=True) == {"error": E.UNSTABLE_OFFSET_COMMIT, "offset": -1}
    assert talk.do("fetched") == {"error": 0, "offset": -1}
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    assert talk.do("fetched", stable=True) == {"error": 0, "offset": 5}
