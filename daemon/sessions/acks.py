"""Decides when a frame is acked, and with which content. An ack at a level requires the value that proves it.

`accepted` requires a write that included the frame's entry, `spooled` a sync that covers it, `delivered` the brokers'
responses for all its slices. Responses are gathered per session and round; the listener sends `sessions_to_write`.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple, assert_never

from ...wire.frames import FLAG_SINGLE_REPLICA, Ack, Code, Detail, Level, RefusedRecords, Run, done, refused
from ...wire.ids import NO_OFFSET, NO_TIME
from ..ledger.counters import RouterCounters
from ..ledger.entries import Lsn
from ..ledger.slices import PendingFrame, SliceEnded
from .session import FLUSHES_MAX, OpenFlush, RouterSession, RouterSessionState

TEXT_CHARS_MAX: Final = 500


class WriteProof(NamedTuple):
    """`write` returned: everything staged before `through` is in the page cache."""

    through: Lsn


class SyncProof(NamedTuple):
    """A sync succeeded: everything before `through` is on disk."""

    through: Lsn


class BrokerProof(NamedTuple):
    """Every ordinal of the frame is resolved, by brokers under acks=all or by a permanent refusal."""

    frame: PendingFrame


Proof = WriteProof | SyncProof | BrokerProof


def acknowledge(frame: PendingFrame, proof: Proof, detail: Detail) -> Ack:
    """The ack that `proof` allows for `frame`."""
    match proof:
        case WriteProof(through):
            assert frame.lsn < through, "the frame is not written"
            return Ack(frame.seq, Level.ACCEPTED)
        case SyncProof(through):
            assert frame.lsn < through, "the frame is not synced"
            return Ack(frame.seq, Level.SPOOLED)
        case BrokerProof(proved):
            assert proved is frame, "the proof is another frame's"
            assert frame.slices_left == 0, "slices are open"
            return _delivered(frame, detail)
        case _:
            assert_never(proof)


class SessionResponses:
    """The pending responses of all sessions. `sessions_to_write`: sessions with something to send;
    `sessions_to_resume`: sessions whose credit is available again."""

    def __init__(self, counts: RouterCounters) -> None:
        self._counts = counts
        self._unwritten: list[PendingFrame] = []
        self._unsynced: deque[PendingFrame] = deque()
        self._written = WriteProof(Lsn(0))
        self._synced = SyncProof(Lsn(0))
        self.sessions_to_write: dict[RouterSession, None] = {}
        self.sessions_to_resume: list[RouterSession] = []

    @property
    def wants_sync(self) -> bool:
        """Whether a frame at level `spooled` waits for a sync."""
        return bool(self._unsynced)

    def track(self, session: RouterSession, frame: PendingFrame, *, now_ms: int) -> None:
        """Track a frame that was accepted now, or attach a pending frame to the connection that resent it."""
        frame.session = session
        session.add_unanswered(frame.seq)
        session.credit.take(frame.nbytes, frame.count)
        match frame.level:
            case Level.ACCEPTED:
                if frame.lsn < self._written.through:
                    self._ack(frame, self._written, now_ms)
                else:
                    self._unwritten.append(frame)
            case Level.SPOOLED:
                if frame.lsn < self._synced.through:
                    self._ack(frame, self._synced, now_ms)
                elif not frame.answered:
                    self._unsynced.append(frame)
            case _:
                pass  # `slice_ended` answers

    def written(self, proof: WriteProof, *, now_ms: int) -> None:
        """The round's write is done."""
        self._written = proof
        if self._unwritten:
            frames, self._unwritten = self._unwritten, []
            for frame in frames:
                self._ack(frame, proof, now_ms)

    def synced(self, proof: SyncProof, *, now_ms: int) -> None:
        """A sync succeeded."""
        self._synced = proof
        unsynced = self._unsynced
        while unsynced and unsynced[0].lsn < proof.through:
            self._ack(unsynced.popleft(), proof, now_ms)

    def slice_ended(self, ended: SliceEnded, index: int, *, weak: bool, now_ms: int) -> bool:
        """One slice ended; `index` is its partition in the topic. Returns True when its frame ended with it."""
        frame = ended.slice.frame
        assert frame.slices_left > 0, "a slice ended twice"
        frame.slices_left -= 1
        parked = 0
        if frame.level == Level.DELIVERED:
            frame.single_replica = frame.single_replica or weak
            frame.runs.extend(ended.runs)
        if ended.parked:
            parked = sum(count for _, count, _ in ended.parked)
            if frame.level == Level.DELIVERED:
                frame.refused.extend(_refused_records(frame, index, ended.parked))
        if frame.is_own:
            self._counts.own_parked += parked
            self._counts.own_delivered += ended.slice.count - parked
        else:
            self._counts.parked += parked
            self._counts.delivered += ended.slice.count - parked
        if frame.slices_left:
            return False
        if frame.level == Level.DELIVERED and not frame.answered:
            self._ack(frame, BrokerProof(frame), now_ms)
        return True

    def ack_completed(self, session: RouterSession, ack: Ack) -> None:
        """Ack a resent frame that has already ended."""
        session.acks.append(ack)
        self.sessions_to_write[session] = None

    def refuse(self, session: RouterSession, seq: int, code: str, text: str, *, records: int = 0) -> None:
        """Refuse a frame: none of it was accepted or will be. `records`: how many it contained, 0 if unknown."""
        self._counts.refused[code] += records
        self._counts.refused_frames[code] += 1
        self.queue_message(session, refused(seq, Code(code), text[:TEXT_CHARS_MAX], _retry_ms(code)))

    def flush(self, session: RouterSession, seq: int) -> bool:
        """Answer `seq` once all frames open now are answered. False: too many FLUSH messages are already pending."""
        if not session.unanswered:
            self.queue_message(session, done(seq))
            return True
        if len(session.flushes) >= FLUSHES_MAX:
            return False
        session.flushes.append(OpenFlush(seq, session.last_position + 1, len(session.unanswered)))
        return True

    def queue_message(self, session: RouterSession, message: bytes) -> None:
        """Queue any other message."""
        session.messages.append(message)
        session.messages_bytes += len(message)
        self.sessions_to_write[session] = None

    def queue_welcome(self, session: RouterSession, message: bytes) -> None:
        """Queue the first message of a session."""
        session.welcome = message
        self.sessions_to_write[session] = None

    def connection_closed(self, session: RouterSession) -> None:
        """The connection ended: drop its pending responses."""
        session.unanswered.clear()
        session.flushes.clear()
        session.acks.clear()
        self.sessions_to_write.pop(session, None)

    def _ack(self, frame: PendingFrame, proof: Proof, now_ms: int) -> None:
        session = frame.session
        frame.answered = True
        if not isinstance(session, RouterSession) or session.state is RouterSessionState.CLOSED:
            frame.session = None
            return
        frame.session = None
        place = session.unanswered.pop(frame.seq, None)
        if place is None:
            return
        ack = acknowledge(frame, proof, session.detail)
        session.acks.append(ack)
        self.sessions_to_write[session] = None
        if session.credit.give(frame.nbytes, frame.count):
            self.sessions_to_resume.append(session)
        counts = self._counts
        counts.acks[frame.level] += 1
        counts.single_replica_acks += ack.flags & FLAG_SINGLE_REPLICA
        counts.ack_latency[frame.level].add(now_ms - frame.created_ms)
        if session.flushes:
            _count_down(session, place)


def _count_down(session: RouterSession, place: int) -> None:
    """A frame was answered: decrement the FLUSH messages that wait for it."""
    flushes = session.flushes
    for flush in flushes:
        flush.remaining -= place < flush.position
    while flushes and flushes[0].remaining == 0:
        session.messages.append(done(flushes.popleft().seq))


def _delivered(frame: PendingFrame, detail: Detail) -> Ack:
    refused = _deduplicated(frame.refused)
    # An offset proves that records arrived, whatever a dead letter claims.
    nothing = sum(entry.count for entry in refused) == frame.count and all(run.offset < 0 for run in frame.runs)
    runs = _merged(frame.runs) if detail is not Detail.NONE else None
    if runs and refused:
        runs = _consistent_runs(frame, runs, refused)
    return Ack(
        frame.seq,
        None if nothing else Level.DELIVERED,
        runs,
        _partitions(frame) if detail is Detail.RECORDS else None,
        refused or None,
        FLAG_SINGLE_REPLICA if frame.single_replica else 0,
    )


def _deduplicated(entries: list[RefusedRecords]) -> list[RefusedRecords]:
    """Each record once, in order. A frame recovered with dead-lettered records has them twice: the texts of the dead
    letters come first and are the more precise ones."""
    ordered = sorted(entries)
    if all(left.first + left.count <= right.first for left, right in pairwise(ordered)):
        return ordered
    words: dict[int, RefusedRecords] = {}
    for entry in entries:
        for place in range(entry.first, entry.first + entry.count):
            _ = words.setdefault(place, entry)
    found: list[RefusedRecords] = []
    for place in sorted(words):
        last, entry = found[-1] if found else None, words[place]
        if last is not None and (last.first + last.count, last.code, last.text) == (place, entry.code, entry.text):
            found[-1] = last._replace(count=last.count + 1)
        else:
            found.append(entry._replace(first=place, count=1))
    return found


def _consistent_runs(frame: PendingFrame, runs: list[Run], refused: list[RefusedRecords]) -> list[Run]:
    """Check the runs, which count a partition's records without refused ones. After a restart, ordinals below an ack
    mark may be of either kind. Where counts differ, the offsets would go to wrong records and are left out."""
    if frame.partitions is None:
        records = Counter({runs[0].partition: frame.count - sum(entry.count for entry in refused)})
    else:
        places = partition_indexes(frame.partitions)
        records = Counter(places)
        for entry in refused:
            records.subtract(places[entry.first : entry.first + entry.count])
    told: Counter[int] = Counter()
    for run in runs:
        told[run.partition] += run.count
    wrong = [partition for partition in told if told[partition] != records[partition]]
    unknown = [Run(partition, NO_OFFSET, records[partition], NO_TIME) for partition in wrong if records[partition] > 0]
    return sorted([*(run for run in runs if run.partition not in wrong), *unknown], key=_partition_of)


def _merged(runs: list[Run]) -> list[Run]:
    """Runs by partition, each in record order, with adjacent runs merged."""
    if len(runs) < 2:
        return runs
    merged: list[Run] = []
    for run in sorted(runs, key=_partition_of):
        last = merged[-1] if merged else None
        if last is not None and _adjacent(last, run):
            merged[-1] = last._replace(count=last.count + run.count)
        else:
            merged.append(run)
    return merged


def _partition_of(run: Run) -> int:
    return run.partition


def _adjacent(left: Run, right: Run) -> bool:
    if left.partition != right.partition or left.timestamp_ms != right.timestamp_ms:
        return False
    return right.offset == (left.offset + left.count if left.offset >= 0 else left.offset)


def _partitions(frame: PendingFrame) -> list[int]:
    """The partition of each record. A frame with one slice does not store them."""
    if frame.partitions is not None:
        return partition_indexes(frame.partitions)
    return [frame.runs[0].partition] * frame.count if frame.runs else []


def partition_indexes(partitions: bytes) -> list[int]:
    """The stored partition of each record of a frame entry, as numbers."""
    numbers = array("i", partitions)
    assert numbers.itemsize == 4, "a C int is not 32 bits here"
    return numbers.tolist()


def _refused_records(frame: PendingFrame, index: int, parked: Iterable[tuple[int, int, str]]) -> list[RefusedRecords]:
    """Convert ranges in the slice to ranges in the frame."""
    if frame.partitions is None:
        return [RefusedRecords(first, count, Code.PARKED, text) for first, count, text in parked]
    places = [place for place, partition in enumerate(partition_indexes(frame.partitions)) if partition == index]
    found: list[RefusedRecords] = []
    for first, count, text in parked:
        for place in places[first : first + count]:
            last = found[-1] if found else None
            if last is not None and last.first + last.count == place and last.text == text:
                found[-1] = last._replace(count=last.count + 1)
            else:
                found.append(RefusedRecords(place, 1, Code.PARKED, text))
    return found


def _retry_ms(code: str) -> int | None:
    """After how many ms a retry may succeed; None for refusals that are not temporary."""
    return {Code.BUSY: 1_000, Code.NO_SPACE: 5_000, Code.DRAINING: 1_000}.get(Code(code))
