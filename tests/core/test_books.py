"""The books, case by case: minutes, holes, shards, limits, what a checkpoint brings back."""

import pytest
from penstock.daemon.ledger.audit_counts import REFUSED_TOPICS_MAX, AuditCounts
from penstock.daemon.ledger.entries import (
    OWN_SEQ,
    AckedEntry,
    CheckpointEntry,
    FrameEntry,
    IncarnationEntry,
    ParkedEntry,
    RefusedEntry,
    SliceEntry,
)
from penstock.daemon.ledger.partition_state import Ledger
from penstock.wire.messages import Anchor

MINUTE = 60_000
ANCHOR = Anchor(1, 1, 1, 1)
OWN = "penstock.audit"


class World:
    """A ledger with books, fed with entries."""

    def __init__(self, *, weight_max: int = 1_000) -> None:
        self.ledger = Ledger(AuditCounts(OWN, weight_max=weight_max))
        self.ledger.apply(IncarnationEntry(7))

    @property
    def books(self) -> AuditCounts:
        assert self.ledger.audit_counts is not None
        return self.ledger.audit_counts

    def partition(self, topic: str = "clicks", index: int = 0) -> int:
        entry = self.ledger.new_partition_entry(topic, b"", index)
        self.ledger.apply(entry)
        return entry.partition

    def frame(self, number: int, count: int, at_ms: int, *, era: int = 0, own: bool = False, ids: bool = True) -> None:
        first = self.ledger.by_number[number].next_ordinal
        part = SliceEntry(number, first, count, 1, 0, 48 + 10 * count)
        incarnation = 7 if ids and not own else 0
        self.ledger.apply(
            FrameEntry(None, 1, OWN_SEQ if own else 0, -1, 0, at_ms, count, None, [part], incarnation, era)
        )

    def ack(self, number: int, mark: int, *, seat: int = 0, offset_end: int = 100, batches: int = 1) -> None:
        self.ledger.apply(AckedEntry(number, mark, ANCHOR, 0, seat, batches, 0, offset_end))

    def ranges(self) -> list[tuple[int, int, int, int, int]]:
        """(minute, first, end, settled, offset_end) of all spans."""
        return [
            (minute.key.minute, span.first, span.end, span.settled, span.offset_end)
            for minute in self.books.minutes.values()
            for span in minute.ranges
        ]


def test_ordinals_are_counted_into_the_minute_of_their_frame_and_ranges_tile() -> None:
    world = World()
    number = world.partition()
    for at_ms in (10, 59_999, 60_000, 180_000):
        world.frame(number, 5, at_ms)
    assert [found[:3] for found in world.ranges()] == [(0, 0, 10), (1, 10, 15), (3, 15, 20)]
    assert [minute.nbytes for minute in world.books.minutes.values()] == [100, 50, 50]


def test_one_acknowledgement_settles_every_minute_that_it_covers() -> None:
    world = World()
    number = world.partition()
    for at_ms in (0, MINUTE, 2 * MINUTE):
        world.frame(number, 4, at_ms)
    world.ack(number, 10, offset_end=910, batches=3)
    assert world.ranges() == [(0, 0, 4, 4, 910), (1, 4, 8, 8, 910), (2, 8, 12, 10, 910)]
    assert [minute.key.minute for minute in world.books.settled] == [0, 1]
    by_minute = [minute.outcomes[0] for minute in world.books.minutes.values()]
    assert [(row.delivered, row.nbytes, row.batches) for row in by_minute] == [(4, 40, 0), (4, 40, 0), (2, 20, 3)]


def test_bytes_of_shards_add_up_to_those_taken_whatever_the_steps() -> None:
    world = World()
    number = world.partition()
    world.frame(number, 7, 0)
    for mark, seat in ((1, 0), (3, 1), (4, 0), (7, 1)):
        world.ack(number, mark, seat=seat)
    [minute] = world.books.minutes.values()
    assert sum(row.nbytes for row in minute.outcomes.values()) == minute.nbytes == 70
    assert {seat: row.delivered for seat, row in minute.outcomes.items()} == {0: 2, 1: 5}


def test_an_offset_that_is_not_known_leaves_none_that_is_too_low() -> None:
    world = World()
    number = world.partition()
    world.frame(number, 10, 0)
    world.ack(number, 4, offset_end=40)
    world.ack(number, 8, offset_end=-1)
    assert world.ranges() == [(0, 0, 10, 8, -1)]
    world.ack(number, 10, offset_end=50)
    assert world.ranges() == [(0, 0, 10, 10, 50)]


def test_parked_records_are_holes_and_settle_with_the_mark_that_jumps_over_them() -> None:
    world = World()
    number = world.partition()
    world.frame(number, 10, 0)
    world.ledger.apply(ParkedEntry(number, [(4, 2)], 10, "too large", "letter"))
    world.ledger.apply(ParkedEntry(number, [(5, 3)], 10, "again", "letter"))
    [minute] = world.books.minutes.values()
    assert minute.pending == 10
    world.ack(number, 4)
    assert world.ranges()[0][3] == 8
    assert [tuple(part) for part in minute.ranges[0].lost] == [(4, 8, "parked")]
    assert minute.outcomes[0].delivered == 4


def test_a_minute_is_settled_only_when_it_is_over() -> None:
    world = World()
    number = world.partition()
    world.frame(number, 3, 0)
    world.ack(number, 3)
    assert not world.books.settled
    world.books.advance_to(MINUTE, 0)
    assert len(world.books.settled) == 1


def test_frames_of_the_routers_own_and_topics_without_ids_are_told_apart() -> None:
    world = World()
    counted, own = world.partition("counted"), world.partition(OWN)
    world.frame(counted, 3, 0, ids=False)
    world.frame(own, 9, 0, own=True)
    [minute] = world.books.minutes.values()
    assert (minute.key.topic, minute.ids, minute.accepted) == ("counted", False, 3)


def test_minutes_that_come_again_are_another_eras() -> None:
    world = World()
    number = world.partition()
    world.frame(number, 3, 100 * MINUTE)
    world.frame(number, 4, 10 * MINUTE, era=1)
    world.frame(number, 5, 100 * MINUTE, era=1)
    keys = [(key.minute, key.era) for key in world.books.minutes]
    assert keys == [(100, 0), (10, 1), (100, 1)]
    assert [found[1:3] for found in world.ranges()] == [(0, 3), (3, 7), (7, 12)]


def test_a_new_incarnation_begins_empty_and_at_the_next_ordinal() -> None:
    world = World()
    number = world.partition()
    world.frame(number, 3, 0)
    world.ledger.apply(IncarnationEntry(8))
    world.ack(number, 2)
    assert world.ranges() == []
    part = SliceEntry(number, 3, 2, 1, 0, 68)
    world.ledger.apply(FrameEntry(None, 1, 0, -1, 0, 0, 2, None, [part], 8, 0))
    world.ack(number, 5)
    assert world.ranges() == [(0, 3, 5, 5, 100)]


@pytest.mark.parametrize("records", [1, 5])
def test_refusals_are_counted_of_names_that_a_topic_may_have_and_of_so_many(records: int) -> None:
    world = World(weight_max=10_000)
    world.books.count_refused("clicks", "busy", records)
    world.books.count_refused("clicks", "busy", records)
    world.books.count_refused("a|b", "bad_topic", records)
    world.books.count_refused(OWN, "not_allowed", records)
    for number in range(REFUSED_TOPICS_MAX):
        world.books.count_refused(f"t{number}", "unknown_topic", records)
    assert len(world.books.minutes) == REFUSED_TOPICS_MAX
    assert next(iter(world.books.minutes.values())).refused == {"busy": 2 * records}
    assert world.books.refused_unpublished == 2 * records


def test_beyond_the_limit_the_oldest_minute_is_forgotten_and_what_comes_later_is_counted_on() -> None:
    world = World(weight_max=6)
    number = world.partition()
    for minute in range(5):
        world.frame(number, 2, minute * MINUTE)
    assert [found[0] for found in world.ranges()] == [2, 3, 4]
    assert (world.books.dropped_minutes, world.books.entry_count) == (2, 6)
    world.ack(number, 10)
    assert [found[3] for found in world.ranges()] == [6, 8, 10]


def test_the_limit_never_touches_the_minute_that_is_not_over() -> None:
    world = World(weight_max=3)
    for index in range(8):
        world.frame(world.partition(index=index), 1, 0)
    assert (len(world.ranges()), world.books.dropped_minutes) == (8, 0)


def test_a_checkpoint_brings_everything_back_and_counting_goes_on_in_it() -> None:
    world = World()
    number, other = world.partition(), world.partition(index=1)
    world.frame(number, 4, 0)
    world.frame(other, 4, MINUTE)
    world.frame(number, 4, MINUTE)
    world.ack(number, 5, seat=1)
    world.books.count_refused("clicks", "busy", 3)
    ledger = world.ledger
    again = World()
    again.ledger.apply(CheckpointEntry(ledger.snapshot(), [], 7, ledger.accept_ms, ledger.era, world.books.snapshot()))
    assert [row.snapshot() for row in again.books.minutes.values()] == [
        row.snapshot() for row in world.books.minutes.values()
    ]
    assert again.books.entry_count == world.books.entry_count
    assert [minute.key.minute for minute in again.books.settled] == [0]
    for each in (world, again):
        each.frame(number, 2, MINUTE + 5)
        each.ack(number, 10)
        each.ack(other, 4)
        each.books.advance_to(2 * MINUTE, 0)
    assert again.ranges() == world.ranges()
    assert {minute.key.minute for minute in again.books.settled} == {0, 1}


def test_a_minute_that_cannot_be_read_is_dropped_and_the_others_stand() -> None:
    world = World()
    world.frame(world.partition(), 4, 0)
    packed = world.books.snapshot()
    again = World()
    again.ledger.apply(CheckpointEntry(world.ledger.snapshot(), [], 7, 0, 0, [b"\x93\x01", *packed]))
    assert (len(again.books.minutes), again.books.dropped_minutes) == (1, 1)


def test_a_minute_of_refusals_behind_the_last_frame_is_not_over() -> None:
    world = World()
    number = world.partition()
    world.frame(number, 1, 0)
    world.ledger.apply(RefusedEntry("clicks", 5, 0, [("busy", 2)]))
    assert [minute.key.minute for minute in world.books.current()] == [5]
    assert world.books.clock == (0, 5 * MINUTE)
    world.frame(number, 1, 5 * MINUTE + 1)
    assert not world.books.settled
