"""Recovery's fold: what it makes of logs to which something happened."""

from penstock.daemon.ledger.client_sequences import ClientStates
from penstock.daemon.ledger.entries import (
    AckedEntry,
    BatchBoundsEntry,
    CheckpointEntry,
    FrameEntry,
    GrantedEntry,
    Lsn,
    ParkedEntry,
    PartitionEntry,
    PartitionSnapshot,
    SessionEntry,
    SliceEntry,
    StampRowEntry,
    lsn,
)
from penstock.daemon.ledger.entry_codec import SpoolEntry
from penstock.daemon.ledger.partition_state import LedgerHole
from penstock.daemon.ledger.replay import LostRange, Replay, Replayed
from penstock.wire.frames import Run
from penstock.wire.messages import Anchor, BatchBounds, StampRow

ANCHOR = Anchor(1, 2, 3, 4)
NUMBERED = [PartitionEntry(0, "topic", b"", 5), StampRowEntry(0, StampRow(9, 0, 0, 0), "new")]


def frame(first: int, count: int, *, client_id: str | None = None, seq: int = 0, previous: int = -1) -> FrameEntry:
    return FrameEntry(client_id, 7, seq, previous, 2, 900, count, None, [SliceEntry(0, first, count, 1, 0, 10)])


class Log:
    """Feeds entries to a fold, one place after the other."""

    def __init__(self) -> None:
        self.replay = Replay(ClientStates(), now_ms=1_000, wall_ms=1_000)
        self._segment = 0
        self._offset = 64

    def segment(self, *, continuous: bool) -> "Log":
        self._segment += 1
        self._offset = 64
        self.replay.begin_segment(continuous=continuous)
        return self

    def add(self, *entries: SpoolEntry) -> Lsn:
        place = Lsn(0)
        for entry in entries:
            place = lsn(self._segment, self._offset)
            self.replay.add(place, entry, self._offset + 20)
            self._offset += 64
        return place

    def finish(self, *, power_cut: bool = False) -> Replayed:
        return self.replay.finish(power_cut=power_cut)


def snapshot(*, next_ordinal: int, mark: int) -> PartitionSnapshot:
    return PartitionSnapshot(
        0, "topic", b"", 5, next_ordinal, mark, [StampRow(9, 0, 0, 0)], [], True, None, None, -1, -1, 0, []
    )


def test_what_is_not_resolved_is_pending_where_it_lies() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 4))
    place = log.add(frame(4, 4))
    log.add(AckedEntry(0, 4, ANCHOR, 0))
    done = log.finish()
    assert [(part.first, part.segment, part.offset, part.lsn) for part in done.slices] == [
        (4, 1, (place & 0xFFFF) + 20, place)
    ]
    assert [frame.slices_left for frame in done.frames] == [1]
    assert done.slices[0].created_ms == 900
    assert (log.replay.repaired, done.lost) == (0, [])


def test_a_frame_that_is_half_resolved_knows_that_its_other_half_is_in_the_log() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, PartitionEntry(1, "topic", b"", 6))
    both = FrameEntry(None, 7, 0, -1, 2, 900, 5, None, [SliceEntry(0, 0, 2, 1, 0, 10), SliceEntry(1, 0, 3, 1, 10, 10)])
    log.add(both, AckedEntry(0, 2, ANCHOR, 0))
    done = log.finish()
    assert [(part.partition, part.frame) for part in done.slices] == [(1, done.frames[0])]
    assert done.frames[0].runs == [Run(5, -1, 2, -1)]


def test_a_frame_written_twice_counts_once_where_its_last_copy_lies() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 4, client_id="a"))
    log.segment(continuous=False)
    log.add(CheckpointEntry([snapshot(next_ordinal=4, mark=0)], [SessionEntry("a", 7, 0, [], 0)]))
    place = log.add(frame(0, 4, client_id="a"))
    done = log.finish()
    assert [part.lsn for part in done.slices] == [place]
    assert log.replay.ledger.by_number[0].next_ordinal == 4
    assert list(log.replay.clients.by_id["a"].pending) == [0]
    assert log.replay.repaired == 0


def test_a_checkpoint_behind_missing_segments_replaces_the_tables() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 4))
    log.segment(continuous=False)
    log.add(CheckpointEntry([snapshot(next_ordinal=50, mark=50)], [SessionEntry("b", 7, 9, [(1, 2)], 0)]))
    done = log.finish()
    assert done.slices == []
    assert log.replay.ledger.by_number[0].mark == 50
    assert log.replay.clients.by_id["b"].gaps == [(1, 2)]


def test_a_checkpoint_that_follows_whole_segments_is_only_compared() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 4))
    log.segment(continuous=True)
    log.add(CheckpointEntry([snapshot(next_ordinal=4, mark=0)], []))
    assert log.replay.checkpoint_mismatches == 0
    log.add(CheckpointEntry([snapshot(next_ordinal=3, mark=0)], []))
    assert log.replay.checkpoint_mismatches == 1
    assert log.replay.ledger.by_number[0].next_ordinal == 4


def test_ordinals_that_nothing_holds_become_a_hole_and_are_told() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 4), frame(7, 2))
    done = log.finish()
    assert done.lost == [LostRange(0, 4, 3)]
    assert log.replay.ledger.by_number[0].holes == [LedgerHole(4, 3)]
    assert log.replay.ledger.by_number[0].next_ordinal == 9
    assert log.replay.repaired == 1


def test_ordinals_lost_at_the_mark_move_it() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(3, 4))
    done = log.finish()
    assert done.lost == [LostRange(0, 0, 3)]
    assert log.replay.ledger.by_number[0].mark == 3


def test_sequences_of_frames_that_are_lost_were_refused() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 1, client_id="a", seq=0), frame(3, 1, client_id="a", seq=4, previous=2))
    done = log.finish()
    assert done.lost == [LostRange(0, 1, 2)]
    assert log.replay.clients.by_id["a"].gaps == [(1, 2), (3, 3)]


def test_sequences_of_frames_that_were_delivered_before_they_were_damaged_were_not_refused() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 1, client_id="a", seq=0), frame(3, 1, client_id="a", seq=4, previous=2))
    log.add(AckedEntry(0, 3, ANCHOR, 0))
    assert log.finish().lost == []
    assert log.replay.clients.by_id["a"].gaps == [(3, 3)]


def test_an_entry_that_speaks_of_ordinals_never_seen_keeps_them_from_being_used_again() -> None:
    log = Log().segment(continuous=False)
    log.add(
        *NUMBERED,
        AckedEntry(0, 5, ANCHOR, 0),
        BatchBoundsEntry(0, [BatchBounds(5, 3, 0)], facts=True, unknown_through=None),
    )
    log.finish()
    state = log.replay.ledger.by_number[0]
    assert (state.next_ordinal, state.mark) == (8, 8)
    assert log.replay.repaired == 2


def test_facts_of_a_partition_nobody_knows_are_counted_and_change_nothing() -> None:
    log = Log().segment(continuous=False)
    log.add(AckedEntry(3, 5, ANCHOR, 0), GrantedEntry(3, 1, 0, 0, 0), frame(0, 2))
    done = log.finish()
    assert (done.frames, log.replay.repaired) == ([], 3)


def test_a_frame_whose_partition_only_a_later_checkpoint_knows_is_pending() -> None:
    log = Log().segment(continuous=False)
    log.add(frame(0, 2))
    log.segment(continuous=False)
    log.add(CheckpointEntry([snapshot(next_ordinal=2, mark=0)], []))
    assert [part.first for part in log.finish().slices] == [0]


def test_a_frame_behind_which_its_partition_began_anew_is_not_pending() -> None:
    log = Log().segment(continuous=False)
    log.add(frame(2, 4))
    log.segment(continuous=False).add(CheckpointEntry([snapshot(next_ordinal=0, mark=0)], []))
    done = log.finish()
    assert (done.slices, done.frames, done.lost) == ([], [], [])


def test_repeated_facts_change_nothing() -> None:
    facts = [
        AckedEntry(0, 2, ANCHOR, 0),
        ParkedEntry(0, [(2, 1), (5, 2)], 10, "too large", "letter"),
        GrantedEntry(0, 1, 0, 0, 3),
        BatchBoundsEntry(0, [BatchBounds(3, 2, 0)], facts=True, unknown_through=None),
        StampRowEntry(0, StampRow(9, 0, 7, 9), "hole"),
    ]
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 9), *facts)
    once = log.replay.ledger.snapshot()
    log.add(frame(0, 9), *facts)
    assert log.replay.ledger.snapshot() == once
    assert log.replay.repaired == 0


def test_after_a_power_cut_everything_from_the_mark_on_may_have_been_sent() -> None:
    log = Log().segment(continuous=False)
    log.add(*NUMBERED, frame(0, 9), AckedEntry(0, 2, ANCHOR, 0))
    log.finish(power_cut=True)
    state = log.replay.ledger.by_number[0]
    assert (state.batch_bounds_are_facts, state.unknown_through) == (False, 8)


def test_after_a_power_cut_a_partition_without_a_stamp_row_has_sent_nothing() -> None:
    log = Log().segment(continuous=False)
    log.add(NUMBERED[0], frame(0, 9))
    log.finish(power_cut=True)
    state = log.replay.ledger.by_number[0]
    assert (state.batch_bounds_are_facts, state.unknown_through) == (True, None)


def test_books_that_are_not_kept_any_more_end_their_era() -> None:
    """Whoever keeps some again knows less of a minute than was told of it, and must not replace that."""
    kept = CheckpointEntry([snapshot(next_ordinal=9, mark=9)], [], 7, 60_000, 2, [])
    log = Log().segment(continuous=False)
    log.add(kept)
    log.finish()
    assert log.replay.ledger.era == 3
    log = Log().segment(continuous=False)
    log.add(kept._replace(audit_minutes=None, era=3))
    log.finish()
    assert log.replay.ledger.era == 3
