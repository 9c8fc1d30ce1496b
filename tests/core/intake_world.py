"""Intake, answers and routing over a fake store, fake topics and a fake delivery; time moves only when a test says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import crc32c
import msgpack
from penstock.daemon.ledger.audit_counts import AuditCounts
from penstock.daemon.ledger.client_sequences import ClientStates
from penstock.daemon.ledger.counters import RouterCounters
from penstock.daemon.ledger.entries import ControlEntry, FrameEntry, Lsn, lsn
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.ledger.slices import FrameLocation, NoSpaceError, PendingSlice, SliceEnded, SpoolFullError
from penstock.daemon.sessions.acks import SessionResponses, SyncProof, WriteProof
from penstock.daemon.sessions.flow_control import SessionCredit
from penstock.daemon.sessions.intake import FrameIntake
from penstock.daemon.sessions.ports import ClockReading, IntakeLimits
from penstock.daemon.sessions.routing import Routing, TopicFacts
from penstock.daemon.sessions.session import PeerCredentials, RouterSession
from penstock.producer.accumulator.partitioners import KeylessPartitioner, LedPartition, StickyPartitioner
from penstock.wire import frames
from penstock.wire.frames import Ack, PartitionInfo, Run

UID = 1000


@dataclass
class FakeStore:
    """A log in memory. `refusal` is raised instead of the next append of a frame."""

    entries: list[ControlEntry | FrameEntry] = field(default_factory=list)
    payloads: list[list[bytes]] = field(default_factory=list)
    refusal: NoSpaceError | SpoolFullError | None = None
    at: int = 4096

    def append(self, entry: ControlEntry) -> Lsn:
        self.entries.append(entry)
        self.at += 64
        return lsn(1, self.at - 64)

    def append_frame(self, entry: FrameEntry, payloads: Sequence[bytearray], *, created_ms: int) -> FrameLocation:
        if self.refusal is not None:
            raise self.refusal
        self.entries.append(entry)
        self.payloads.append([bytes(payload) for payload in payloads])
        place, self.at = self.at, self.at + 64
        offsets: list[int] = []
        for payload in payloads:
            offsets.append(self.at)
            self.at += len(payload)
        return FrameLocation(lsn(1, place), 1, offsets)

    def has_room(self, nbytes: int) -> bool:
        return nbytes > 0 and self.refusal is None

    @property
    def end(self) -> Lsn:
        return lsn(1, self.at)


@dataclass
class FakeTopics:
    """What brokers would say."""

    known: dict[str, TopicFacts] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    invalids: dict[str, str] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)

    def want(self, topic: str) -> None:
        self.wanted.append(topic)

    def facts(self, topic: str) -> TopicFacts | None:
        return self.known.get(topic)

    def error(self, topic: str) -> str | None:
        return self.errors.get(topic)

    def invalid(self, topic: str) -> str | None:
        return self.invalids.get(topic)

    def problem(self, topic: str) -> str | None:
        return None

    def partitions(self, topic: str) -> list[PartitionInfo] | None:
        facts = self.known.get(topic)
        return None if facts is None else [PartitionInfo(i, 0, [0], [0]) for i in range(facts.partition_count)]


@dataclass
class FakeDelivery:
    pushed: list[PendingSlice] = field(default_factory=list)
    flushed: list[list[tuple[int, int]]] = field(default_factory=list)

    def push(self, piece: PendingSlice) -> None:
        self.pushed.append(piece)

    def flush(self, through: list[tuple[int, int]]) -> None:
        self.flushed.append(through)


def facts(topic: str = "t", partitions: int = 3, *, replicas: int = 3, in_sync: int | None = 2) -> TopicFacts:
    leaders = tuple(LedPartition(partition, partition) for partition in range(partitions))
    return TopicFacts(topic, b"", partitions, leaders, replicas, None, in_sync)


class World:
    """Everything together, and what a session was told."""

    def __init__(
        self,
        *,
        reject: bool = False,
        max_block_s: float = 60.0,
        bytes_max: int = 1 << 20,
        keyless: Callable[[], KeylessPartitioner] = lambda: StickyPartitioner(1_000, lambda: 0),
        ignore_keys: bool = False,
        audited: frozenset[str] = frozenset(),
        books: AuditCounts | None = None,
    ) -> None:
        """`audited`: the topics whose records carry an id."""
        self.now = 100.0
        self.store = FakeStore()
        self.topics = FakeTopics()
        self.delivery = FakeDelivery()
        self.counts = RouterCounters()
        self.ledger = Ledger(books)
        self.sessions = ClientStates()
        self.answers = SessionResponses(self.counts)
        self.bytes_max = bytes_max
        self.routing = Routing(
            self.ledger,
            self.store,
            checksum=crc32c.crc32c,
            keyless=keyless,
            record_bytes_max=10_000,
            ids_of=audited.__contains__,
        )
        self.intake = FrameIntake(
            sessions=self.sessions,
            ledger=self.ledger,
            routing=self.routing,
            answers=self.answers,
            store=self.store,
            topics=self.topics,
            delivery=self.delivery,
            limits=IntakeLimits(
                {"frame_bytes_max": 1 << 20}, 10, max_block_s, ignore_keys=ignore_keys, refuse_when_full=reject
            ),
            checksum=crc32c.crc32c,
            counts=self.counts,
        )
        self.pass_time(0.0)
        self.numbers = 0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.intake.clock = ClockReading(1_700_000_000_000 + int(self.now * 1_000), int(self.now * 1_000))

    def connect(
        self, client_id: str | None = None, *, greet: bool = True, uid: int = UID, **options: object
    ) -> RouterSession:
        self.numbers += 1
        session = RouterSession(self.numbers, PeerCredentials(1, uid, uid), SessionCredit(self.bytes_max, 1_000_000))
        if greet:
            assert self.offer(session, [1, 1, client_id, options])
        return session

    def offer(self, session: RouterSession, message: Sequence[object] | bytes) -> bool:
        body = message if isinstance(message, bytes) else msgpack.packb(message)
        padded = bytearray(b"\0\0\0\0" + body)
        return self.intake.message(session, padded, 4, len(padded), self.now)

    def write(self) -> None:
        self.answers.written(WriteProof(self.store.end), now_ms=self.intake.clock.mono_ms)

    def sync(self) -> None:
        self.answers.synced(SyncProof(self.store.end), now_ms=self.intake.clock.mono_ms)

    def deliver(
        self,
        pending: PendingSlice,
        offset: int = 50,
        *,
        parked: tuple[tuple[int, int, str], ...] = (),
        weak: bool = False,
    ) -> bool:
        index = self.ledger.by_number[pending.partition].index
        count = pending.count - sum(entry[1] for entry in parked)
        runs = [Run(index, offset, count, -1)] if count else []
        ended = SliceEnded(pending, runs, list(parked))
        over = self.answers.slice_ended(ended, index, weak=weak, now_ms=self.intake.clock.mono_ms)
        if over:
            self.sessions.complete(pending.frame)
        return over

    def told(self, session: RouterSession) -> list[frames.DaemonMessage | Ack]:
        """What the session was told since the last look, acks first."""
        found: list[frames.DaemonMessage | Ack] = []
        if session.welcome:
            found.append(frames.decode_daemon(session.welcome[4:]))
            session.welcome = b""
        found += session.acks
        found += [frames.decode_daemon(message[4:]) for message in session.messages]
        session.acks.clear()
        session.messages.clear()
        return found


def send(seq: int, level: int = 2, topic: str = "t", n: int = 2, **columns: object) -> list[object]:
    """A SEND of `n` small records."""
    values = columns.get("values", [b"v%d" % i for i in range(n)])
    names = ("partitions", "keys", "headers", "timestamps")
    partitions, keys, headers, timestamps = (columns.get(name) for name in names)
    return [2, seq, level, topic, partitions, keys, values, headers, timestamps]
