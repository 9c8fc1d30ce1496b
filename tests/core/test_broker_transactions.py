"""Transactions on one node of the embedded broker: the rules of versions 1 and 2, step by step."""

import pytest
from penstock.broker.core.errors import ErrorCode as E

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
