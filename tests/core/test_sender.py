"""Whose turn it is: rings, heaps and requests."""

from dataclasses import dataclass, field

import pytest
from penstock.producer.accumulator.batch import ProducerBatch
from penstock.producer.protocol.produce_request import PartitionProduceResponse
from penstock.producer.sender.ready_nodes import REQUEST_OVERHEAD_BYTES, ReadyPartitions, SendPermit, match_outcomes

PERMIT = SendPermit(1, 100, 5)
SIZE = 100


@dataclass(eq=False)
class Part:
    """A partition with batches to send from a moment on."""

    name: str
    node: int = 1
    batches: int = 1
    at: float = 0.0
    unjournaled: int = 1
    seen: list[SendPermit] = field(default_factory=list)

    def ready_at(self, now: float) -> float | None:
        return self.at if self.batches else None

    def estimated_bytes(self) -> int:
        return SIZE

    def take(self, permit: SendPermit, *, now: float) -> ProducerBatch | None:
        self.seen.append(permit)
        if not self.batches or now < self.at:
            return None
        self.batches -= 1
        return ProducerBatch(0, 1, 1, 0, 0, size=SIZE)


def drain(sender: ReadyPartitions[Part], node: int, *, bytes_max: int = 1 << 20, now: float = 0.0) -> list[str]:
    entries = sender.drain(node, PERMIT, bytes_max=bytes_max, now=now)
    for part, _ in entries:
        sender.wake(part, now=now)
    return [part.name for part, _ in entries]


def woken(*parts: Part, now: float = 0.0) -> ReadyPartitions[Part]:
    sender: ReadyPartitions[Part] = ReadyPartitions()
    for part in parts:
        sender.wake(part, now=now)
    return sender


ONE_BATCH = REQUEST_OVERHEAD_BYTES + SIZE


def test_turns_go_round_where_one_request_does_not_hold_all() -> None:
    sender = woken(*(Part(name, node, 9) for name, node in (("p1", 1), ("p2", 1), ("p3", 2), ("p4", 2))))
    rounds = [(drain(sender, 1, bytes_max=ONE_BATCH), drain(sender, 2, bytes_max=ONE_BATCH)) for _ in range(3)]
    assert rounds == [(["p1"], ["p3"]), (["p2"], ["p4"]), (["p1"], ["p3"])]
    assert drain(sender, 1) == ["p2", "p1"]


def test_a_partition_gives_one_batch_per_request() -> None:
    sender = woken(Part("p", batches=3))
    assert [drain(sender, 1) for _ in range(4)] == [["p"], ["p"], ["p"], []]


def test_the_first_batch_goes_whatever_its_size() -> None:
    assert drain(woken(Part("p")), 1, bytes_max=1) == ["p"]


def test_one_that_cannot_send_is_skipped_and_stops_nobody() -> None:
    shut = Part("shut", batches=1)
    sender = woken(shut, Part("open"))
    shut.batches = 0
    assert drain(sender, 1) == ["open"]
    assert not sender.has_work(1, now=0.0)


def test_who_can_send_later_is_woken_by_time_and_the_deadline_says_when() -> None:
    sender = woken(Part("late", at=7.0), Part("later", at=9.0))
    assert not sender.has_work(1, now=6.9)
    assert sender.next_deadline() == 7.0
    assert sender.has_work(1, now=7.0)
    assert drain(sender, 1, now=7.0) == ["late"]
    assert sender.next_deadline() == 9.0


def test_a_moment_that_changed_replaces_the_old_one() -> None:
    part = Part("p", at=7.0)
    sender = woken(part)
    part.at = 3.0
    sender.wake(part, now=0.0)
    assert sender.next_deadline() == 3.0
    assert drain(sender, 1, now=3.0) == ["p"]
    assert sender.next_deadline() is None


def test_nothing_is_left_of_one_that_was_forgotten() -> None:
    ring, heap = Part("ring"), Part("heap", at=5.0)
    sender = woken(ring, heap)
    sender.forget(ring)
    sender.forget(heap)
    assert sender.next_deadline() is None
    assert not sender.has_work(1, now=99.0)
    sender.forget(Part("never seen", node=8))


def test_cuts_left_fall_with_every_cut_of_the_request() -> None:
    first, second = Part("a", unjournaled=3), Part("b")
    _ = drain(woken(first, second), 1)
    assert [permit.journal_slots_left for permit in (*first.seen, *second.seen)] == [100, 97]


def outcome(index: int, topic: str = "", topic_id: bytes | None = None) -> PartitionProduceResponse:
    return PartitionProduceResponse(topic, topic_id, index, 0, 10 + index, -1, 0, [], "", None)


@pytest.mark.parametrize("version", [12, 13])
def test_answers_are_matched_by_partition_and_never_by_position(version: int) -> None:
    parts = [Part("0"), Part("1"), Part("2")]
    sender: ReadyPartitions[Part] = ReadyPartitions()
    entries = [(part, ProducerBatch(0, 1, 1, 0, 0)) for part in parts]
    flight = sender.begin_request(1, 1, version, entries)
    topic_id = b"i" * 16
    told = [outcome(2, topic_id=topic_id), outcome(0, topic_id=topic_id)]
    if version < 13:
        told = [outcome(2, "t"), outcome(0, "t")]

    def key(part: Part, at: int) -> tuple[bytes | str, int]:
        return (topic_id if at >= 13 else "t"), int(part.name)

    found = [None if told is None else told.base_offset for _, _, told in match_outcomes(flight, told, key)]
    assert found == [10, None, 12]


def test_flights_are_numbered_from_one_so_that_zero_means_none() -> None:
    sender: ReadyPartitions[Part] = ReadyPartitions()
    assert [sender.begin_request(1, 1, 9, []).number for _ in range(2)] == [1, 2]
