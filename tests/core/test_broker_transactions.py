"""Transactions on one node of the embedded broker: the rules of versions 1 and 2, step by step."""

import pytest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from penstock.broker.cluster.acls import AclBinding, AclOperation, AclResourceType
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.error_codes import ErrorCode as E
from penstock.broker.log.internal_topics import TRANSACTIONS, internal_partition_of

from tests.harness.batches import batch
from tests.harness.broker_calls import KeptLogs
from tests.harness.transaction_bench import OneTalk

V1, V2 = 11, 12
"""Produce versions of the two versions of the protocol."""


def begun(version: int) -> OneTalk:
    """A client that has its first epoch."""
    talk = OneTalk()
    assert talk.do("find") == {"error": 0}
    assert talk.do("init", version=4) == {"error": 0, "id": 0, "epoch": 0}
    assert talk.limits.transaction_version == 2
    assert version in {V1, V2}
    return talk


def test_version_1_commits_what_was_added_and_sequences_go_on() -> None:
    talk = begun(V1)
    for number in range(3):
        assert talk.do("add", epoch=0) == {"errors": [0]}
        assert talk.put(V1, 0, number) == (0, 2 * number)
        assert talk.do("read")["batches"] == [
            line for one in range(number) for line in ([2 * one, 1, "transactional"], [2 * one + 1, 1, "commit"])
        ]
        assert talk.do("end", epoch=0, commit=True, version=4) == {"error": 0}
        assert talk.do("state")["state"] == "CompleteCommit"
    read = talk.do("read")
    assert (read["last_stable"], read["high_watermark"], read["aborted"]) == (6, 6, [])


def test_version_2_adds_by_itself_and_every_end_takes_an_epoch() -> None:
    talk = begun(V2)
    for epoch in range(3):
        assert talk.put(V2, epoch, 0) == (0, 3 * epoch)
        assert talk.put(V2, epoch, 1) == (0, 3 * epoch + 1)
        assert talk.do("end", epoch=epoch, commit=True, version=5) == {"error": 0, "id": 0, "epoch": epoch + 1}
        assert talk.do("writers")["writers"] == [[0, epoch + 1, -1, -1]]
    assert talk.do("state")["epoch"] == 3


def test_readers_of_committed_records_stop_at_an_open_transaction_and_learn_of_aborted_ones() -> None:
    talk = begun(V2)
    assert talk.put(V2, 0, 0) == (0, 0)
    read = talk.do("read")
    assert (read["batches"], read["last_stable"], read["high_watermark"]) == ([], 0, 1)
    assert talk.do("read", isolated=False)["batches"] == [[0, 1, "transactional"]]
    assert talk.do("end_of")["offset"] == 0
    assert talk.do("end_of", isolated=False)["offset"] == 1
    assert talk.do("end", epoch=0, commit=False, version=5)["error"] == 0
    assert talk.put(V2, 1, 0) == (0, 2)
    assert talk.do("end", epoch=1, commit=True, version=5)["error"] == 0
    read = talk.do("read")
    assert read["aborted"] == [[0, 0]]
    assert read["batches"] == [[0, 1, "transactional"], [1, 1, "abort"], [2, 1, "transactional"], [3, 1, "commit"]]
    assert talk.do("read", offset=2)["aborted"] == []
    assert talk.do("end_of")["offset"] == 4


@pytest.mark.parametrize("version", [V1, V2])
def test_a_successor_aborts_what_is_open_and_fences(version: int) -> None:
    talk = begun(version)
    if version == V1:
        assert talk.do("add", epoch=0) == {"errors": [0]}
    assert talk.put(version, 0, 0) == (0, 0)
    assert talk.do("init") == {"error": E.CONCURRENT_TRANSACTIONS, "id": -1, "epoch": -1}
    assert talk.do("init")["error"] == 0
    assert talk.do("state")["state"] == "Empty"
    assert talk.put(version, 0, 1)[0] == E.INVALID_PRODUCER_EPOCH
    end = talk.do("end", epoch=0, commit=True, version=4 if version == V1 else 5)
    assert end["error"] == E.PRODUCER_FENCED
    assert talk.do("add", epoch=0) == {"errors": [E.PRODUCER_FENCED]}
    assert talk.do("add", epoch=0, version=1) == {"errors": [E.INVALID_PRODUCER_EPOCH]}
    assert talk.do("read")["aborted"] == [[0, 0]]


def test_a_transaction_that_is_open_for_too_long_is_aborted() -> None:
    talk = OneTalk()
    assert talk.do("find") == {"error": 0}
    assert talk.do("init", timeout_ms=20_000)["error"] == 0
    assert talk.put(V2, 0, 0)[0] == 0
    for _ in range(2):
        talk.pass_ms(10_000)
    assert talk.do("state")["state"] == "Ongoing"
    talk.pass_ms(10_000)
    assert talk.do("state")["state"] == "CompleteAbort"
    assert talk.do("read")["aborted"] == [[0, 0]]
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == E.INVALID_TXN_STATE


def test_the_feature_tells_which_version_is_finalised_and_old_brokers_offer_less() -> None:
    found: dict[int, tuple[list[tuple[str, int]], int, int]] = {}
    for level in (0, 1, 2):
        bench = OneTalk(BrokerNodeLimits(transaction_version=level)).bench
        answer = bench.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
        told = [(one.name, one.max_version_level) for one in answer.finalized_features]
        assert [one.name for one in answer.supported_features] == [name for name, _ in told]
        highest = {one.api_key: one.max_version for one in answer.api_keys}
        found[level] = (told, highest[0], highest[26])
    assert found == {
        0: ([], 11, 4),
        1: ([("transaction.version", 1)], 13, 5),
        2: ([("transaction.version", 2)], 13, 5),
    }


def test_a_broker_of_old_closes_the_connection_of_a_client_that_asks_too_much() -> None:
    talk = OneTalk(BrokerNodeLimits(transaction_version=0))
    request = talk.bench.produce_request({0: [batch()]})
    assert talk.bench.reply(request, 12).close
    assert not talk.bench.reply(request, 11).close


def test_what_coordinators_know_outlives_the_process() -> None:
    talk = OneTalk(logs=KeptLogs())
    for kind in (0, 1):
        assert talk.do("find", kind=kind) == {"error": 0}
    assert talk.do("init")["error"] == 0
    assert talk.put(V2, 0, 0)[0] == 0
    assert talk.do("commit", epoch=0, offset=7, version=5) == {"error": 0}
    talk.bench.restart()
    assert talk.do("state") | {"partitions": 2} == talk.do("state")
    assert talk.do("fetched", stable=True)["error"] == E.UNSTABLE_OFFSET_COMMIT
    assert talk.do("read")["last_stable"] == 0
    assert talk.do("end", epoch=0, commit=True, version=5) == {"error": 0, "id": 0, "epoch": 1}
    talk.bench.restart()
    assert talk.do("state")["state"] == "CompleteCommit"
    assert talk.do("fetched", stable=True) == {"error": 0, "offset": 7}
    assert talk.do("read")["last_stable"] == 2
    assert talk.do("init") == {"error": 0, "id": 0, "epoch": 2}


def test_a_log_that_says_most_things_more_than_once_is_written_anew() -> None:
    talk = begun(V1)
    for _ in range(1_100):
        assert talk.do("init")["error"] == 0
    epoch = talk.do("state")["epoch"]
    topic = talk.bench.node.topic(TRANSACTIONS)
    assert topic is not None
    partition = talk.bench.node.partition(topic, internal_partition_of("t-a"))
    assert not isinstance(partition, int)
    talk.pass_ms(10_000)
    assert partition.log.end_offset - partition.log.start_offset == 1
    assert talk.do("init") == {"error": 0, "id": 0, "epoch": epoch + 1}


def test_a_producer_is_not_forgotten_while_its_transaction_is_open_and_then_by_the_time_of_its_end() -> None:
    talk = begun(V2)
    assert talk.put(V2, 0, 0)[0] == 0
    node, clock = talk.bench.node, talk.bench.clock
    clock.pass_ms(50_000)
    node.expire_producers(clock.moment, 1_000)
    assert talk.do("writers")["writers"] == [[0, 0, 0, 0]]
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    node.expire_producers(clock.moment, 1_000)
    assert talk.do("writers")["writers"] == [[0, 1, -1, -1]]
    clock.pass_ms(1_000)
    node.expire_producers(clock.moment, 1_000)
    assert talk.do("writers")["writers"] == []


def test_of_many_transactions_only_the_aborted_ones_are_kept_in_mind() -> None:
    talk = begun(V1)
    for number in range(600):
        assert talk.do("add", epoch=0) == {"errors": [0]}
        assert talk.put(V1, 0, 2 * number)[0] == 0
        assert talk.do("end", epoch=0, commit=True, version=4) == {"error": 0}
        assert talk.do("add", epoch=0) == {"errors": [0]}
        assert talk.put(V1, 0, 2 * number + 1)[0] == 0
        assert talk.do("end", epoch=0, commit=False, version=4) == {"error": 0}
    topic = talk.bench.node.topic("t")
    assert topic is not None
    partition = talk.bench.node.partition(topic, 0)
    assert not isinstance(partition, int)
    assert len(partition.log.aborted_transactions(0, 1 << 40)) == 600
    assert len(partition.log._completed_txns) <= 800
    assert partition.log.last_stable_offset == partition.log.end_offset == 2400


# Rights


RIGHTS = {
    "nothing": (
        set(),
        {"find": 53, "init": 53, "add": 53, "put": 53, "end": 53, "state": 53, "join": 53, "commit": 53},
    ),
    "DESCRIBE": (
        {("DESCRIBE", "TRANSACTIONAL_ID")},
        {"find": 0, "init": 53, "add": 53, "put": 53, "end": 53, "state": 0, "join": 53, "commit": 53},
    ),
    "WRITE": (
        {("WRITE", "TRANSACTIONAL_ID")},
        {"find": 0, "init": 0, "add": 29, "put": 29, "end": 48, "state": 0, "join": 30, "commit": 30},
    ),
    "WRITE, and to the topic": (
        {("WRITE", "TRANSACTIONAL_ID"), ("WRITE", "TOPIC")},
        {"find": 0, "init": 0, "add": 0, "put": 0, "end": 0, "state": 0, "join": 30, "commit": 30},
    ),
    "WRITE, and READ of the group": (
        {("WRITE", "TRANSACTIONAL_ID"), ("READ", "GROUP")},
        {"find": 0, "init": 51, "add": 29, "put": 29, "end": 48, "state": 0, "join": 0, "commit": 29},
    ),
    "WRITE, and READ of group and topic": (
        {("WRITE", "TRANSACTIONAL_ID"), ("READ", "GROUP"), ("READ", "TOPIC")},
        {"find": 0, "init": 51, "add": 29, "put": 29, "end": 48, "state": 0, "join": 0, "commit": 0},
    ),
}


@pytest.mark.parametrize("what", RIGHTS)
def test_every_request_needs_its_rights(what: str) -> None:
    granted, wanted = RIGHTS[what]
    talk = OneTalk()
    for kind in (0, 1):
        assert talk.do("find", kind=kind) == {"error": 0}
    assert talk.do("init") == {"error": 0, "id": 0, "epoch": 0}
    rules = talk.bench.node.authorizer
    rules.add(AclBinding("nobody", AclOperation.READ, AclResourceType.TOPIC))
    for operation, resource in granted:
        rules.add(AclBinding("test", AclOperation[operation], AclResourceType[resource]))
    steps = {
        "find": {},
        "add": {"epoch": 0},
        "put": {"version": V1, "epoch": 0, "first": 0},
        "end": {"epoch": 0, "commit": True, "version": 4},
        "state": {},
        "join": {"epoch": 0},
        "commit": {"epoch": 0, "offset": 1},
        "init": {"race": True},
    }
    told = {name: talk.do(name, **step) for name, step in steps.items()}
    errors = {name: answer.get("error", answer.get("errors", [0])[0]) for name, answer in told.items()}
    assert errors == wanted
