"""Rows of the accumulator: when a node has something to send, what goes into its request, and when a batch may be sent again."""

import pytest
from penstock.producer.records.compression import Codec
from penstock.producer.sender.ready_nodes import REQUEST_OVERHEAD_BYTES
from penstock.wire.messages import NARROW, OPEN

from tests.conformance.rig import NOT_ENOUGH_REPLICAS, Ready, Rig, partitions

INT_MAX = (1 << 31) - 1
KV_BYTES = 15
LEAST, MIDDLE, MOST = 0.0, 0.5, 1.0 - 1e-9
"""Chance: waits 20 % shorter, as told, 20 % longer."""


def refuse(rig: Rig, partition: int) -> None:
    """The broker takes the batch on the wire not now, and it is to be sent again."""
    rig.refuse(NOT_ENOUGH_REPLICAS, wire=rig.wire_of(partition))


@pytest.mark.row("E1")
def test_turns_go_round_among_the_partitions_of_a_node() -> None:
    one_record = 5 + 61
    rig = Rig(batch_bytes=5, linger_ms=10, leaders={0: 1, 1: 1, 2: 2, 3: 2})

    def drained(max_bytes: int = one_record) -> set[int]:
        return partitions(rig.drain({1, 2}, max_bytes=max_bytes))

    for partition in range(4):
        rig.append(partition)
    assert rig.ready().nodes == {1, 2}
    assert drained() == {0, 2}
    rig.append(0)
    rig.append(2)
    assert drained() == {1, 3}
    assert drained() == {0, 2}
    rig.pace(NARROW, 3)
    for partition in (1, 3, 2):
        rig.append(partition)
        _ = rig.ready()
    assert drained() == {1, 2}, "3 is muted: one of its batches is on the wire and may not be joined by another"
    for partition in (0, 1, 2):
        rig.append(partition)
    rig.pace(OPEN, 3)
    assert drained(INT_MAX) == {0, 1, 2, 3}


@pytest.mark.row("E1")
def test_who_did_not_fit_any_more_is_first_in_the_next_request() -> None:
    rig = Rig(batch_bytes=5, leaders={0: 1, 1: 1, 2: 1})
    turns: list[int] = []
    for _ in range(6):
        for partition in range(3):
            rig.append(partition)
        turns += partitions(rig.drain(max_bytes=5 + 61))
        rig.answer()
    assert turns == [0, 1, 2] * 2


@pytest.mark.row("E2")
def test_a_batch_is_full_when_the_next_record_does_not_fit() -> None:
    rig = Rig(batch_bytes=1025, linger_ms=10, pool_bytes=20 * 1025)
    rig.append(0, count=1025 // KV_BYTES)
    assert rig.ready().nodes == set()
    queue = rig.table.partitions[0].queue
    assert (queue.closed_count, queue.has_open, queue.estimated_bytes()) == (0, True, 61 + 1024)
    rig.append(0)
    assert rig.ready().nodes == {1}
    assert (queue.closed_count, queue.has_open) == (1, True), "two batches: a full one and one with the last record"
    ((partition, batch),) = rig.drain()[1]
    assert (partition, batch.count, batch.record_bytes) == (0, 68, 1024)
    rig.answer()
    assert rig.counts(0) == [68]


@pytest.mark.row("E3")
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_record_larger_than_a_batch_is_taken_and_goes_at_once(codec: Codec) -> None:
    rig = Rig(batch_bytes=512, linger_ms=10, codec=codec)
    rig.append(0, value=b"\x07" * 1024)
    assert rig.ready().nodes == {1}
    ((_, batch),) = rig.drain()[1]
    assert (batch.first, batch.count) == (1, 1)
    rig.answer()
    assert rig.log(0).records[1:] == [b"\x07" * 1024]
    assert rig.pool.lent_bytes == 0, "nor is the batch forgotten that was too small for it"


@pytest.mark.row("E5")
def test_a_record_waits_for_company_as_long_as_linger_says() -> None:
    rig = Rig(batch_bytes=1024, linger_ms=10)
    rig.append(0)
    assert rig.ready() == Ready(set(), 10)
    rig.pass_ms(9)
    rig.append(0)
    assert rig.ready() == Ready(set(), 1), "linger counts from the creation of the batch, not from its last record"
    rig.pass_ms(1)
    assert rig.ready().nodes == {1}
    ((_, batch),) = rig.drain()[1]
    assert batch.count == 2


@pytest.mark.row("E6")
def test_a_request_takes_no_second_batch_that_would_make_it_too_large() -> None:
    rig = Rig(batch_bytes=1024, linger_ms=10)
    for partition in (0, 1):
        rig.append(partition, count=1024 // KV_BYTES + 1)
    assert rig.ready().nodes == {1}
    assert len(rig.drain(max_bytes=1024)[1]) == 1


@pytest.mark.row("E6")
@pytest.mark.parametrize(("spare", "batches"), [(-1, 1), (0, 2)])
def test_a_request_is_as_large_as_allowed_to_the_byte(spare: int, batches: int) -> None:
    rig = Rig(batch_bytes=1024)
    for partition in (0, 1):
        rig.append(partition, count=1024 // KV_BYTES + 1)
    rig.fill()
    sizes = [rig.table.partitions[partition].queue.estimated_bytes() for partition in (0, 1)]
    assert sizes == [61 + 1024 // KV_BYTES * KV_BYTES + 4] * 2, "from the 64th on a record's offset takes two bytes"
    drained = rig.drain(max_bytes=REQUEST_OVERHEAD_BYTES + sum(sizes) + spare)
    assert len(drained[1]) == batches


@pytest.mark.row("E8")
def test_the_next_look_is_due_when_the_first_partition_has_lingered() -> None:
    rig = Rig(batch_bytes=1025, linger_ms=10)
    rig.append(0, count=68)
    assert rig.ready() == Ready(set(), 10)
    rig.pass_ms(5)
    rig.append(2, count=68)
    assert rig.ready() == Ready(set(), 5)
    rig.append(1, count=69)
    ready = rig.ready()
    assert ready.nodes == {1}
    assert ready.delay_ms is not None
    assert ready.delay_ms <= 10


@pytest.mark.row("E9")
def test_a_batch_that_failed_waits_longer_than_linger_and_others_do_not_wait_for_it() -> None:
    linger, backoff = INT_MAX // 16, INT_MAX // 8
    rig = Rig(batch_bytes=1024, linger_ms=linger, retry_ms=(backoff, 10 * backoff))
    rig.chance = MOST
    rig.append(0)
    rig.pass_ms(linger + 1)
    assert partitions(rig.drain()) == {0}
    refuse(rig, 0)
    rig.append(1)
    assert rig.ready() == Ready(set(), linger)
    rig.pass_ms(linger + 1)
    assert partitions(rig.drain()) == {1}
    rig.flush()
    assert rig.ready().nodes == set(), "a flush ends linger, not the wait after a failure"
    rig.pass_ms(1.2 * backoff - 1 - (linger + 1))
    assert rig.ready().nodes == set()
    rig.pass_ms(2)
    assert partitions(rig.drain()) == {0}


@pytest.mark.row("E10")
def test_the_wait_after_each_failure_doubles() -> None:
    rig = Rig(retry_ms=(100, 1000))
    rig.append(0)
    assert partitions(rig.drain()) == {0}
    for retry in range(8):
        wait = min(100 * 2**retry, 1000)
        rig.chance = LEAST if retry % 2 else MOST
        refuse(rig, 0)
        rig.pass_ms(0.8 * wait - 1)
        assert rig.ready().nodes == set()
        rig.pass_ms(2 if retry % 2 else min(0.4 * wait, 1000 - 0.8 * wait) + 2)
        assert partitions(rig.drain()) == {0}


@pytest.mark.row("E11")
def test_another_leader_without_a_newer_epoch_does_not_end_the_wait() -> None:
    rig = Rig(retry_ms=(100, 1000))
    rig.append(0)
    rig.chance = LEAST
    for wait in (100, 200):
        assert partitions(rig.drain()) == {0}
        refuse(rig, 0)
        rig.pass_ms(wait)
    assert partitions(rig.drain()) == {0}
    refuse(rig, 0)
    rig.move(2, -1)
    rig.pass_ms(0.8 * 400 - 1)
    assert rig.ready().nodes == set()
    rig.pass_ms(2)
    assert rig.ready().nodes == {2}
    rig.chance = MOST
    for wait in (1000, 1000):
        assert partitions(rig.drain()) == {0}
        refuse(rig, 0)
        rig.pass_ms(0.8 * wait - 1)
        assert rig.ready().nodes == set()
        rig.pass_ms(0.2 * wait + 1)


@pytest.mark.row("E12")
def test_a_newer_leader_epoch_ends_the_wait_of_one_attempt() -> None:
    rig = Rig(batch_bytes=10, linger_ms=10, leader_epoch=100)

    def attempts_drained() -> list[int]:
        return [batch.attempts for entries in rig.drain().values() for _, batch in entries]

    rig.append(0)
    rig.pass_ms(11)
    assert attempts_drained() == [1]
    refuse(rig, 0)
    rig.pass_ms(1)
    assert attempts_drained() == [], "the same leader"
    rig.move(1, 101)
    rig.pass_ms(1)
    assert attempts_drained() == [2], "another epoch"
    refuse(rig, 0)
    assert attempts_drained() == [], "the change is used up"
    rig.pass_ms(2000)
    assert attempts_drained() == [3]
    refuse(rig, 0)
    rig.pass_ms(2000)
    rig.move(1, 102)
    assert attempts_drained() == [4]
    rig.tell()
    rig.answer()
    assert rig.unresolved(0) == []


@pytest.mark.row("E19")
def test_a_muted_partition_is_neither_ready_nor_drained() -> None:
    rig = Rig(batch_bytes=1024, linger_ms=10)
    rig.append(0)
    rig.pass_ms(10)
    assert partitions(rig.drain()) == {0}
    rig.pace(NARROW, 0)
    rig.append(0)
    rig.pass_ms(2000)
    assert rig.ready().nodes == set()
    assert partitions(rig.drain({1})) == set()
    rig.answer()
    assert rig.ready().nodes == {1}
    assert partitions(rig.drain()) == {0}


@pytest.mark.row("E28")
def test_a_node_without_partitions_is_drained_of_nothing() -> None:
    rig = Rig(batch_bytes=10, linger_ms=10)
    rig.nodes(1, 2, 3)
    rig.append(0)
    rig.pass_ms(10)
    assert rig.drain({3}) == {3: []}


@pytest.mark.row("E33")
def test_a_partition_that_is_blocked_does_not_stop_its_neighbour() -> None:
    rig = Rig()
    rig.append(0)
    assert partitions(rig.drain()) == {0}
    refuse(rig, 0)
    rig.append(0)
    rig.append(1)
    assert partitions(rig.drain()) == {1}
    assert [batch.first for batch in rig.unresolved(0)] == [1]
