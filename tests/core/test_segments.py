"""Which segments may be removed, and when."""

from penstock.daemon.ledger.entries import Lsn, lsn
from penstock.daemon.ledger.segments import Segments, relocate
from penstock.daemon.ledger.slices import PendingFrame, PendingSlice


def three_segments() -> Segments:
    """Two sealed ones and the active one."""
    segments = Segments()
    for number in (1, 2, 3):
        segments.added(number, 100)
    segments.frame_added(1, 2, 50)
    for number in (1, 2):
        segments.sealed(number, 80)
    return segments


def piece(place: Lsn, offset: int) -> PendingSlice:
    frame = PendingFrame(None, 0, 0, 2, 1, 10, place, 0, None, 1)
    return PendingSlice(0, 0, 1, place >> 32, offset, 10, 1, 0, place, frame)


def test_a_segment_with_pending_slices_stays() -> None:
    segments = three_segments()
    segments.slices_resolved(1, lsn(3, 64))
    assert segments.removable(lsn(9, 0)) == [2]
    assert segments.pending == 1


def test_a_segment_goes_only_when_what_resolved_it_is_synced() -> None:
    segments = three_segments()
    segments.slices_resolved(1, lsn(3, 64))
    segments.slices_resolved(1, lsn(3, 128))
    assert segments.removable(lsn(3, 128)) == [2]
    assert segments.removable(Lsn(lsn(3, 128) + 1)) == [1, 2]


def test_a_segment_goes_only_when_the_checkpoint_behind_it_is_synced() -> None:
    segments = three_segments()
    assert segments.removable(lsn(3, 0)) == []
    assert segments.removable(Lsn(lsn(3, 64) + 1)) == [2]


def test_the_active_segment_never_goes() -> None:
    segments = Segments()
    segments.added(1, 100)
    assert segments.removable(lsn(9, 0)) == []


def test_bytes_and_ages_follow_what_is_there() -> None:
    segments = three_segments()
    segments.frame_added(3, 1, 70)
    assert (segments.nbytes, segments.sealed_count) == (260, 2)
    assert segments.oldest_ms() == 50
    segments.slices_resolved(1, lsn(3, 64))
    segments.slices_resolved(1, lsn(3, 64))
    assert segments.oldest_ms() == 70, "nothing of the first is pending"
    segments.removed(1)
    assert segments.oldest_ms() == 70
    assert segments.nbytes == 180


def test_slices_written_again_elsewhere_are_counted_there() -> None:
    segments = Segments()
    segments.added(1, 100)
    segments.frame_added(1, 2, 50)
    segments.added(2, 100)
    segments.sealed(1, 64)
    old, new, other = lsn(1, 64), lsn(2, 200), lsn(1, 16)
    moved, stayed = piece(old, 90), piece(other, 30)
    relocate({old: new}, [moved, stayed], segments)
    assert (moved.segment, moved.offset, moved.lsn, moved.frame.lsn) == (2, 226, new, new)
    assert (stayed.segment, stayed.offset, stayed.lsn) == (1, 30, other)
    assert (segments.by_number[1].pending, segments.by_number[2].pending) == (1, 1)
    assert segments.oldest_ms() == 50
