"""What a frame is answered after a restart, when some of its records lie in the dead letters."""

from array import array

from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.leases.backlog import Backlog, BatchAck, DeadLetterRange
from penstock.daemon.ledger.counters import RouterCounters
from penstock.daemon.ledger.entries import Lsn
from penstock.daemon.ledger.slices import PendingFrame, PendingSlice
from penstock.daemon.sessions.acks import SessionResponses
from penstock.daemon.sessions.flow_control import SessionCredit
from penstock.daemon.sessions.session import PeerCredentials, RouterSession
from penstock.wire.frames import Ack, Code, Level, RefusedRecords, Run

LETTER = "INVALID_RECORD: bad"
BEFORE = "the dead letters have its words"


def a_frame(count: int, partitions: list[int] | None = None, slices: int = 1) -> PendingFrame:
    kept = None if partitions is None else array("i", partitions).tobytes()
    return PendingFrame("app", 0, 0, Level.DELIVERED, count, 100, Lsn(1), 0, kept, slices)


def a_slice(frame: PendingFrame, count: int, partition: int = 0) -> PendingSlice:
    return PendingSlice(partition, 0, count, 1, 0, 100, 0, 0, Lsn(1), frame)


def answer(frame: PendingFrame, *backlogs: Backlog, proofs: list[BatchAck]) -> Ack:
    """The frame is sent again, and the rest of each of its slices is acknowledged."""
    answers, session = (
        SessionResponses(RouterCounters()),
        RouterSession(1, PeerCredentials(1, 0, 0), SessionCredit(1 << 20, 1_000)),
    )
    answers.track(session, frame, now_ms=0)
    for backlog, proof in zip(backlogs, proofs, strict=True):
        for ended in backlog.advance(proof.first + proof.count, proof):
            _ = answers.slice_ended(ended, backlog.index, weak=False, now_ms=0)
    (ack,) = session.acks
    return ack


def told(ack: Ack, count: int) -> list[int]:
    """Each record's offset as a client walks the answer; -1: not known, -2: refused."""
    refused = {place for entry in ack.refused or () for place in range(entry.first, entry.first + entry.count)}
    assert sum(entry.count for entry in ack.refused or ()) == len(refused), "a record is refused twice"
    offsets = [run.offset + i if run.offset >= 0 else -1 for run in ack.runs or () for i in range(run.count)]
    assert len(offsets) == count - len(refused)
    rest = iter(offsets)
    return [-2 if place in refused else next(rest) for place in range(count)]


def test_offsets_after_parked_records_below_the_mark_of_a_restart_are_right_or_not_told() -> None:
    frame, backlog = a_frame(100), Backlog(0, 10)
    frame.refused = [RefusedRecords(0, 10, Code.PARKED, LETTER)]
    backlog.push(a_slice(frame, 100))

    ack = answer(frame, backlog, proofs=[BatchAck(10, 90, 1_000, -1)])

    assert told(ack, 100) == [-2] * 10 + [-1] * 90
    assert ack.level == Level.DELIVERED


def test_offsets_of_another_partition_of_the_frame_are_told_all_the_same() -> None:
    frame = a_frame(6, [0, 1, 0, 1, 0, 1], slices=2)
    frame.refused = [RefusedRecords(0, 1, Code.PARKED, LETTER)]
    broken, whole = Backlog(0, 1), Backlog(1, 0)
    broken.push(a_slice(frame, 3))
    whole.push(a_slice(frame, 3, partition=1))

    ack = answer(frame, broken, whole, proofs=[BatchAck(1, 2, 500, -1), BatchAck(0, 3, 70, -1)])

    assert ack.runs == [Run(0, -1, 2, -1), Run(1, 70, 3, -1)]


def test_a_frame_of_which_half_was_parked_before_a_restart_reached_its_level() -> None:
    frame, backlog = a_frame(10), Backlog(0, 0)
    frame.refused = [RefusedRecords(2, 2, Code.PARKED, LETTER), RefusedRecords(4, 3, Code.PARKED, "too old")]
    backlog.push(a_slice(frame, 10))
    backlog.add_dead_lettered([DeadLetterRange(2, 5, BEFORE)])

    ack = answer(frame, backlog, proofs=[BatchAck(7, 3, 102, -1)])

    assert ack.level == Level.DELIVERED
    assert ack.refused == [(2, 2, Code.PARKED, LETTER), (4, 3, Code.PARKED, "too old")]
    assert told(ack, 10) == [-1, -1, -2, -2, -2, -2, -2, 102, 103, 104]


def test_words_that_no_letter_has_any_more_are_told_beside_those_of_a_letter() -> None:
    frame, backlog = a_frame(4), Backlog(0, 0)
    frame.refused = [RefusedRecords(1, 1, Code.PARKED, LETTER)]
    backlog.push(a_slice(frame, 4))
    backlog.add_dead_lettered([DeadLetterRange(0, 4, BEFORE)])

    ack = answer(frame, backlog, proofs=[BatchAck(4, 0, -1, -1)])

    assert ack.refused == [(0, 1, Code.PARKED, BEFORE), (1, 1, Code.PARKED, LETTER), (2, 2, Code.PARKED, BEFORE)]
    assert (ack.level, ack.runs) == (None, [])


def test_a_letter_about_a_record_that_arrived_after_all_does_not_deny_it() -> None:
    frame, backlog = a_frame(2), Backlog(0, 0)
    frame.refused = [RefusedRecords(0, 2, Code.PARKED, LETTER)]
    backlog.push(a_slice(frame, 2))

    assert answer(frame, backlog, proofs=[BatchAck(0, 2, 9, -1)]).level == Level.DELIVERED


@given(st.data())
def test_after_a_restart_every_told_offset_is_the_records_own(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    parked = data.draw(st.sets(st.integers(0, count - 1)))
    mark = data.draw(st.integers(0, count - 1))
    lost_letters = data.draw(st.booleans())
    frame, backlog = a_frame(count), Backlog(0, mark)
    if not lost_letters:
        frame.refused = [RefusedRecords(place, 1, Code.PARKED, LETTER) for place in sorted(parked)]
    backlog.add_dead_lettered([DeadLetterRange(place, 1, BEFORE) for place in parked if place >= mark])
    backlog.push(a_slice(frame, count))
    last = max((place for place in range(count) if place not in parked), default=None)
    proof = BatchAck(last, 1, 1_000 + last, -1) if last is not None and last >= mark else BatchAck(count, 0, -1, -1)
    rest = [BatchAck(count, 0, -1, -1)] if proof.first + proof.count < count else []

    ack = answer(frame, *[backlog] * (1 + len(rest)), proofs=[proof, *rest])

    offsets = told(ack, count)
    assert all(offset in {-1, -2, 1_000 + place} for place, offset in enumerate(offsets))
    assert all(offset != -2 for place, offset in enumerate(offsets) if place not in parked)
    if len(parked) < count:
        assert ack.level == Level.DELIVERED
