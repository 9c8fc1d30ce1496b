"""Small daemons on paper: they take records, deliver or drop them, keep books, and `land` puts what they delivered into rows."""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.wire import audit_records
from penstock.wire.audit_records import AuditHeartbeat, AuditHole, AuditIntake, AuditOutcome, AuditRange

from .audit_model import HOUR_MS, MINUTE_MS, Id, Row, World

NOW_MS = 1_790_000_000_000 // HOUR_MS * HOUR_MS + 30 * MINUTE_MS
"""Half past some hour."""
NOW_MINUTE = NOW_MS // MINUTE_MS


class Kafka:
    """Where records lie, and how much `land` has of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: dict[tuple[str, int], int] = defaultdict(int)

    def append(self, topic: str, partition: int) -> int:
        """The offset of one record more."""
        offset = self._ends[topic, partition]
        self._ends[topic, partition] += 1
        self._world.log_ends.setdefault(topic, {})[partition] = offset + 1
        self._world.log_starts.setdefault(topic, {}).setdefault(partition, 0)
        self._world.read_to.setdefault(topic, {})[partition] = offset + 1
        return offset


@dataclass
class _Minute:
    ids: list[Id] = field(default_factory=list)
    has_ids: bool = True
    bytes: int = 0


class Host:
    """One incarnation of one daemon."""

    def __init__(
        self, world: World, kafka: Kafka, incarnation: str, name: str = "a.example", *, first: int = 0
    ) -> None:
        self._world = world
        self._kafka = kafka
        self.incarnation = incarnation
        self.name = name
        self._first = first
        self._next: dict[tuple[str, int], int] = {}
        self._minutes: dict[tuple[str, int, int], _Minute] = defaultdict(_Minute)
        self._version = 1 << 32
        self.offsets: dict[Id, int] = {}
        self.holes: dict[Id, str] = {}
        self.shards: dict[Id, int] = {}

    def take(self, topic: str, origin: int, count: int, minute: int, *, era: int = 0, ids: bool = True) -> list[Id]:
        """Give out ordinals."""
        first = self._next.get((topic, origin), self._first)
        self._next[topic, origin] = first + count
        found = [Id(topic, self.incarnation, origin, ordinal) for ordinal in range(first, first + count)]
        book = self._minutes[topic, minute, era]
        book.ids += found
        book.has_ids = ids
        return found

    def deliver(self, ids: Iterable[Id], *, shard: int = 0) -> None:
        """Kafka has them."""
        for each in ids:
            self.offsets[each] = self._kafka.append(each.topic, each.origin)
            self.shards[each] = shard

    def drop(self, ids: Iterable[Id], reason: str = audit_records.EXPIRED) -> None:
        """They will never be sent."""
        for each in ids:
            self.holes[each] = reason

    def land(
        self, ids: Iterable[Id], *, again: bool = False, quarantined: bool = False, waited_ms: int = 2_000
    ) -> None:
        """Rows for them; `again`: from another place in Kafka than the daemon's."""
        for each in ids:
            offset = self._kafka.append(each.topic, each.origin) if again else self.offsets[each]
            accept = self.accepted_at(each)
            self._world.rows.append(
                Row(each.topic, each.origin, offset, *each[1:], accept, accept + waited_ms, quarantined)
            )

    def accepted_at(self, wanted: Id) -> int:
        """Its accept time, a little into its minute."""
        for (topic, minute, _), book in self._minutes.items():
            if topic == wanted.topic and book.ids and wanted in book.ids:
                return minute * MINUTE_MS + 1_000
        raise KeyError(wanted)

    def tell(self, *, sent_at: int = NOW_MS - 20_000, known: bool = True) -> list[tuple[bytes, bytes]]:
        """All totals as they are now. `known`: whether ends of ranges in Kafka are."""
        told: list[tuple[bytes, bytes]] = []
        for (topic, minute, era), book in self._minutes.items():
            self._version += 1
            common = {"incarnation": self.incarnation, "host": self.name, "version": self._version, "sent_at": sent_at}
            place = {"topic": topic, "minute": minute, "era": era}
            intake = AuditIntake(
                **common,
                **place,
                ids=book.has_ids,
                accepted=len(book.ids),
                bytes=10 * len(book.ids),
                refused={},
                ranges=tuple(self._ranges(book, known=known)),
                holes=tuple(self._holes(book)),
            )
            told.append((intake.key(), intake.encode()))
            by_shard: dict[int, int] = defaultdict(int)
            for each in book.ids:
                if each in self.offsets:
                    by_shard[self.shards[each]] += 1
            for shard, count in by_shard.items():
                self._version += 1
                outcome = AuditOutcome(
                    **{**common, "version": self._version},
                    **place,
                    shard=shard,
                    delivered=count,
                    bytes=10 * count,
                    batches=1,
                    resent=0,
                )
                told.append((outcome.key(), outcome.encode()))
        return told

    def beat(
        self,
        *,
        closed_before: int,
        settled_before: int | None = None,
        sent_at: int = NOW_MS - 10_000,
        state: str = "running",
        interval_s: float = 10,
        era: int = 0,
    ) -> tuple[bytes, bytes]:
        """A heartbeat. Times in ms."""
        self._version += 1
        beat = AuditHeartbeat(
            self.incarnation,
            self.name,
            self._version,
            sent_at,
            era,
            closed_before,
            closed_before if settled_before is None else settled_before,
            state,
            interval_s,
        )
        return beat.key(), beat.encode()

    def _ranges(self, book: _Minute, *, known: bool) -> Iterable[AuditRange]:
        for run in _runs(book.ids):
            open_yet = [each.ordinal for each in run if each not in self.offsets and each not in self.holes]
            settled_end = open_yet[0] if open_yet else run[-1].ordinal + 1
            offsets = [self.offsets[each] for each in run if each in self.offsets and each not in self.holes]
            end = max(offsets) + 1 if offsets and known else -1
            yield AuditRange(run[0].origin, run[0].ordinal, run[-1].ordinal + 1, settled_end, end)

    def _holes(self, book: _Minute) -> Iterable[AuditHole]:
        for run in _runs([each for each in book.ids if each in self.holes]):
            yield AuditHole(run[0].origin, run[0].ordinal, run[-1].ordinal + 1, self.holes[run[0]])


def _runs(ids: Iterable[Id]) -> list[list[Id]]:
    found: list[list[Id]] = []
    for each in sorted(ids):
        if found and found[-1][-1].origin == each.origin and found[-1][-1].ordinal + 1 == each.ordinal:
            found[-1].append(each)
        else:
            found.append([each])
    return found


# --- worlds by chance ------------------------------------------------------------------------------------------------


TOPICS = ("clicks", "orders", "Views.web")
TROUBLES = (
    *(
        "none",
        "none",
        "losses",
        "duplicates",
        "holes",
        "recovered",
        "open",
        "behind",
        "gone",
        "ended",
        "clock",
        "restored",
    ),
    *("dropped", "silent", "no_ids", "strays", "unknown_offsets", "truncated", "deleted", "half"),
)


def random_world(seed: int, incarnations: int = 24) -> World:
    """Some incarnations with a trouble each, records of the audit topic doubled and out of order, some rows of others."""
    chance = random.Random(seed)
    world = World(NOW_MS)
    kafka = Kafka(world)
    for number in range(incarnations):
        trouble = TROUBLES[number % len(TROUBLES)] if number < len(TROUBLES) else chance.choice(TROUBLES)
        _live(chance, world, kafka, number, trouble)
    for _ in range(chance.randrange(20)):
        topic = chance.choice(TOPICS)
        offset = kafka.append(topic, 0)
        world.rows.append(Row(topic, 0, offset, None, None, None, None, NOW_MS - chance.randrange(3 * HOUR_MS)))
    world.records += [(b"what", b"ever"), (b"", b"{}"), (b"gone", None)]
    world.records += chance.sample(world.records, len(world.records) // 3)
    chance.shuffle(world.records)
    return world


def _live(chance: random.Random, world: World, kafka: Kafka, number: int, trouble: str) -> None:
    """The life of one incarnation."""
    # Each has partitions of its own: what one does to a log is not done to the others.
    first = chance.choice((0, 5, 32_760, (1 << 40) + 7))
    host = Host(world, kafka, f"{number + 1:012x}", f"host-{number % 5}.example", first=first)
    topic, origin = chance.choice(TOPICS), 2 * number
    minute = NOW_MINUTE - chance.randrange(100, 200)
    taken: list[Id] = []
    older: list[tuple[bytes, bytes]] = []
    for _ in range(chance.randrange(2, 6)):
        part = origin + chance.randrange(2)
        taken += host.take(
            topic, part, chance.randrange(1, 60), minute, ids=trouble != "no_ids" or chance.random() < 0.5
        )
        minute += chance.choice((0, 1, 1, 2, 30))
        if trouble == "clock" and chance.random() < 0.5:
            minute -= chance.randrange(5)
        if chance.random() < 0.3:
            host.deliver(_some(chance, [each for each in taken if each not in host.offsets]), shard=chance.randrange(3))
            older += host.tell(sent_at=NOW_MS - 2 * HOUR_MS)
    _outcomes(chance, world, kafka, host, taken, trouble)
    told = host.tell(sent_at=NOW_MS - chance.choice((20_000, HOUR_MS)), known=trouble != "unknown_offsets")
    if trouble == "dropped":
        told = [each for each in told if chance.random() < 0.7]
        older = []
    world.records += older + told
    _heart(chance, world, host, trouble)


def _outcomes(chance: random.Random, world: World, kafka: Kafka, host: Host, taken: list[Id], trouble: str) -> None:
    waiting = [each for each in taken if each not in host.offsets]
    if trouble in {"holes", "recovered"}:
        holes = _some(chance, waiting)
        host.drop(holes, chance.choice(audit_records.HOLE_REASONS))
        waiting = [each for each in waiting if each not in host.holes]
    if trouble in {"open", "ended"}:
        waiting = _some(chance, waiting)
    host.deliver(waiting, shard=chance.randrange(3))
    landed = list(host.offsets)
    if trouble in {"losses", "unknown_offsets", "truncated", "deleted", "restored"}:
        gone = set(_some(chance, landed))
        landed = [each for each in landed if each not in gone]
    if trouble in {"behind", "half"}:
        _fall_behind(chance, world, host, landed)
        landed = [each for each in landed if host.offsets[each] < world.read_to[each.topic][each.origin]]
    host.land(landed, quarantined=chance.random() < 0.2, waited_ms=chance.randrange(-50, 90_000))
    if trouble in {"duplicates", "restored"}:
        for _ in range(chance.randrange(1, 3)):
            host.land(_some(chance, landed), again=True)
    if trouble == "recovered":
        host.land(_some(chance, list(host.holes)), again=True)
    if trouble == "strays":
        end = max(taken)
        accept = NOW_MS - chance.choice((30_000, 2 * HOUR_MS))
        world.rows.append(
            Row(
                end.topic,
                end.origin,
                kafka.append(end.topic, end.origin),
                *end[1:3],
                end.ordinal + 40_000,
                accept,
                NOW_MS,
            )
        )
    for each in taken:
        if (
            trouble in {"truncated", "deleted"}
            and each.topic in world.log_ends
            and each.origin in world.log_ends[each.topic]
        ):
            end = world.log_ends[each.topic][each.origin]
            world.read_to[each.topic][each.origin] = 0
            cut = world.log_ends if trouble == "truncated" else world.log_starts
            cut[each.topic][each.origin] = chance.randrange(end + 1)


def _fall_behind(chance: random.Random, world: World, host: Host, ids: list[Id]) -> None:
    for topic, origin in {(each.topic, each.origin) for each in ids}:
        ends = world.read_to[topic]
        ends[origin] = chance.randrange(ends[origin] + 1)
        if chance.random() < 0.2:
            del ends[origin]
            ends[origin] = 0


def _heart(chance: random.Random, world: World, host: Host, trouble: str) -> None:
    ended = audit_records.CLOSED
    if trouble == "silent":
        return
    if trouble == "gone":
        at = NOW_MS - chance.randrange(HOUR_MS, 4 * HOUR_MS)
        world.records.append(host.beat(closed_before=at - 60_000, sent_at=at))
    elif trouble == "ended":
        world.records.append(host.beat(closed_before=NOW_MS - HOUR_MS, sent_at=NOW_MS - 2 * HOUR_MS))
        at = NOW_MS - chance.choice((60_000, HOUR_MS))
        world.records.append(host.beat(closed_before=at, settled_before=0, sent_at=at, state=ended))
    elif trouble == "open":
        world.records.append(host.beat(closed_before=NOW_MS - 60_000, settled_before=0))
    else:
        world.records.append(host.beat(closed_before=0, sent_at=NOW_MS - 60_000))
        state = ended if chance.random() < 0.3 else "running"
        world.records.append(host.beat(closed_before=NOW_MS - chance.choice((60_000, 2 * HOUR_MS)), state=state))


def _some(chance: random.Random, ids: list[Id]) -> list[Id]:
    """A part of them, in one piece or in many."""
    if not ids:
        return []
    if chance.random() < 0.3:
        first = chance.randrange(len(ids))
        return ids[first : first + chance.randrange(1, len(ids) + 1)]
    share = chance.choice((0.05, 0.5, 0.9))
    return [each for each in ids if chance.random() < share] or ids[:1]
