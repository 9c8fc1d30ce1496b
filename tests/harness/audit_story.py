"""One world with all the troubles that an audit tells apart, each in a daemon of its own, and what one run says of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from penstock.pipeline.audit.audit_job import AuditResult
from penstock.pipeline.hours import HOUR_MS, hour_of_ms
from penstock.pipeline.report.data import HourRow, MissingClass
from penstock.wire import audit_records
from penstock.wire.audit_records import AuditIntake, AuditOutcome
from pyspark.sql import DataFrame, SparkSession

from .audit_bench import AuditBench, WorldSource
from .audit_hosts import NOW_MINUTE, NOW_MS, Host, Kafka
from .audit_model import MINUTE_MS, Id, Row, World

TOPIC = "clicks"
OTHER = "orders"
MINUTE = NOW_MINUTE - 85
"""Five minutes into the last hour that has ended."""
HOUR = hour_of_ms(MINUTE * MINUTE_MS)
HOUR_END = NOW_MS - 30 * MINUTE_MS
FIRST_MINUTE = MINUTE - 240
"""The earliest of all, in an hour of its own."""
FAR = HOUR_MS * 48
"""So far from the hours asked for rows are looked for."""
CASES = (
    *(
        "good",
        "lost",
        "twice",
        "gap",
        "silent",
        "gone",
        "retired",
        "truncated",
        "behind",
        "stepped",
        "odd",
        "recovered",
    ),
    *("restored", "uncounted", "ahead", "outside", "deleted", "ended", "ended_long"),
    # At the edges of what decides.
    *("behind_by_one", "truncated_by_one", "deleted_but_one", "unplaced", "unplaced_yet", "odd_too_far", "instant"),
    *("hour_end", "hour_end_yet", "quiet", "too_quiet", "slow", "set_back", "twice_later", "uncounted_open"),
    # Books that cannot be true.
    *("narrow", "nested", "wide", "miscounted", "unaccepted", "undelivered", "overdelivered", "ended_undelivered"),
    *("open_books", "open_books_yet", "outside_ended"),
    # More than one thing at once.
    *(
        "untold",
        "untold_ended",
        "lost_and_twice",
        "twice_and_silent",
        "open_and_silent",
        "partly_numbered",
        "sealed_before",
    ),
)


class Story:
    """The world, its daemons by name, and what the run said."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.world = World(NOW_MS)
        self.kafka = Kafka(self.world)
        self.hosts: dict[str, Host] = {}
        self.ids: dict[str, list[Id]] = {}
        for number, name in enumerate(CASES):
            host = Host(self.world, self.kafka, f"{number + 1:012x}", f"{name}.example")
            self.hosts[name] = host
            self.ids[name] = []
            for minute in (MINUTE, MINUTE + 1, MINUTE + 2):
                self.ids[name] += host.take(TOPIC, number, 10, minute, ids="uncounted" not in name)
            getattr(self, name)(host, self.ids[name])
        # Twice everything, in the opposite order.
        self.world.records = [*reversed(self.world.records), *self.world.records]
        self.bench = AuditBench(spark, folder)
        self._seal()
        self.bench.land(self.world.rows[::2])
        source = BusySource(spark, self.world, lambda: self.bench.land(self.world.rows[1::2]))
        self.result: AuditResult = self.bench.audit(self.world, source=source)

    def _seal(self) -> None:
        """What is sealed, and so not asked for: the hours with `odd` rows, and one of another topic that has rows in quarantine."""
        self.world.rows += [
            Row(OTHER, 0, 0, None, None, None, None, MINUTE * MINUTE_MS, quarantined=True),
            Row(OTHER, 0, 1, None, None, None, None, NOW_MS),
        ]
        first = FIRST_MINUTE * MINUTE_MS
        self.bench.seal(
            (TOPIC, hour_of_ms(first - FAR), "sealed", 1),
            (TOPIC, hour_of_ms(first - FAR - HOUR_MS), "sealed", 1),
            (OTHER, HOUR, "sealed-with-gaps", 2),
            (OTHER, HOUR, "reopened", 1),
            (TOPIC, HOUR, "sealed", 1),
            (TOPIC, HOUR, "reopened", 2),
        )

    def _whole(self, host: Host, ids: list[Id], *, landed: list[Id] | None = None, beat: bool = True) -> None:
        host.deliver([each for each in ids if each not in host.holes])
        host.land(landed if landed is not None else ids)
        self.world.records += host.tell()
        if beat:
            self.world.records.append(host.beat(closed_before=NOW_MS - 60_000))

    def _changed(self, host: Host, kind: type[AuditIntake | AuditOutcome], minute: int, **totals: int) -> None:
        """Tell all, with other totals of this minute; without its record, where none are given."""
        for key, value in host.tell():
            record = audit_records.decode(key, value)
            if not (isinstance(record, kind) and record.minute == minute):
                self.world.records.append((key, value))
            elif totals:
                self.world.records.append((key, replace(record, **totals).encode()))

    def good(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[:-4])
        host.land(ids[-4:], quarantined=True)

    def lost(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[:3] + ids[8:12] + ids[13:])

    def twice(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids)
        host.land([ids[4], ids[4], ids[29]], again=True)

    def gap(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids)
        key = next(key for key, _ in host.tell() if key.endswith(f"|{MINUTE + 1}".encode()) and b"|-1|" in key)
        self.world.records = [each for each in self.world.records if each[0] != key]

    def silent(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, beat=False)

    def gone(self, host: Host, ids: list[Id]) -> None:
        host.deliver(ids[:20])
        host.land(ids[:20])
        at = (MINUTE + 3) * 60_000
        self.world.records += [
            *host.tell(sent_at=at),
            host.beat(closed_before=at - 60_000, settled_before=0, sent_at=at),
        ]

    def retired(self, host: Host, ids: list[Id]) -> None:
        self.gone(host, ids)
        at = NOW_MS - 5_000
        self.world.records.append(host.beat(closed_before=at, settled_before=0, sent_at=at, state="closed"))

    def ended(self, host: Host, ids: list[Id], *, ago_ms: int = 899_999) -> None:
        """`land` has not read to the end of the partition."""
        self.gone(host, ids)
        self.world.read_to[TOPIC][ids[0].origin] = 19
        at = NOW_MS - ago_ms
        self.world.records.append(host.beat(closed_before=at, settled_before=0, sent_at=at, state="closed"))

    def ended_long(self, host: Host, ids: list[Id]) -> None:
        self.ended(host, ids, ago_ms=900_000)

    def truncated(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[:-2])
        self.world.read_to[TOPIC][ids[0].origin] = 28
        self.world.log_ends[TOPIC][ids[0].origin] = 28

    def deleted(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[:-2])
        self.world.read_to[TOPIC][ids[0].origin] = 28
        # The last two are gone, and nothing more than these.
        self.world.log_starts[TOPIC][ids[0].origin] = 30

    def behind(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[:25])
        self.world.read_to[TOPIC][ids[0].origin] = 25

    def stepped(self, host: Host, ids: list[Id]) -> None:
        ids += host.take(TOPIC, ids[0].origin, 5, MINUTE)
        ids += host.take(TOPIC, ids[0].origin, 5, MINUTE - 70, era=1)
        # Minutes that come again replace nothing.
        ids += host.take(TOPIC, ids[0].origin, 7, MINUTE, era=1)
        self._whole(host, ids)

    def odd(self, host: Host, ids: list[Id], *, far_ms: int = FAR) -> None:
        self._whole(host, ids, landed=ids[:-1])
        last = ids[-1]
        hour = hour_of_ms(FIRST_MINUTE * MINUTE_MS - far_ms)
        row = Row(TOPIC, last.origin, host.offsets[last], *last[1:], host.accepted_at(last), NOW_MS, odd_hour=hour)
        self.world.rows.append(row)

    def odd_too_far(self, host: Host, ids: list[Id]) -> None:
        self.odd(host, ids, far_ms=FAR + HOUR_MS)

    def sealed_before(self, host: Host, ids: list[Id]) -> None:
        """Some of an hour that was sealed with gaps, as it were."""
        before = host.take(TOPIC, ids[0].origin, 10, FIRST_MINUTE - FAR // MINUTE_MS)
        self._whole(host, [*ids, *before], landed=[*ids, *before[:7]])

    def recovered(self, host: Host, ids: list[Id]) -> None:
        host.drop(ids[5:8])
        self._whole(host, ids, landed=[each for each in ids if each not in host.holes])
        host.land([ids[6]], again=True)

    def restored(self, host: Host, ids: list[Id]) -> None:
        """A copy of the spool sends five records again, with the ids that they have; what it takes has a new incarnation."""
        self._whole(host, ids)
        host.land(ids[10:15], again=True, waited_ms=60_000)
        new = Host(self.world, self.kafka, "abcdefabcdef", host.name, first=30)
        taken = new.take(TOPIC, ids[0].origin, 10, MINUTE + 3)
        self._whole(new, taken)

    def uncounted(self, host: Host, ids: list[Id]) -> None:
        host.deliver(ids)
        for each in ids[:-1]:
            self.world.rows.append(
                Row(TOPIC, each.origin, host.offsets[each], None, None, None, None, (MINUTE + 1) * 60_000)
            )
        self.world.records += [*host.tell(), host.beat(closed_before=NOW_MS - 60_000)]

    def partly_numbered(self, host: Host, ids: list[Id]) -> None:
        """Ids were switched off within the hour; one from before is lost."""
        later = host.take(TOPIC, ids[0].origin, 5, MINUTE + 4, ids=False)
        host.deliver([*ids, *later])
        host.land(ids[1:])
        self.world.records += [*host.tell(), host.beat(closed_before=NOW_MS - 60_000)]

    def ahead(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids)
        # The first moment that the heartbeat leaves open.
        accept = NOW_MS - 60_000
        self.world.rows.append(
            Row(
                TOPIC,
                ids[0].origin,
                self.kafka.append(TOPIC, ids[0].origin),
                host.incarnation,
                ids[0].origin,
                30,
                accept,
                NOW_MS,
            )
        )

    def outside(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids)
        offset = self.kafka.append(TOPIC, ids[0].origin)
        at = host.accepted_at(ids[0])
        self.world.rows.append(Row(TOPIC, ids[0].origin, offset, host.incarnation, ids[0].origin, 77_777, at, NOW_MS))

    def behind_by_one(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[:29])
        self.world.read_to[TOPIC][ids[0].origin] = 29

    def truncated_by_one(self, host: Host, ids: list[Id]) -> None:
        self.behind_by_one(host, ids)
        self.world.log_ends[TOPIC][ids[0].origin] = 29

    def deleted_but_one(self, host: Host, ids: list[Id]) -> None:
        self.deleted(host, ids)
        self.world.log_starts[TOPIC][ids[0].origin] = 29

    def unplaced(self, host: Host, ids: list[Id], *, ago_ms: int = 900_000) -> None:
        """Where in Kafka the records are is not known."""
        host.deliver(ids)
        host.land(ids[:28])
        self.world.records += [
            *host.tell(sent_at=NOW_MS - ago_ms, known=False),
            host.beat(closed_before=NOW_MS - 60_000),
        ]

    def unplaced_yet(self, host: Host, ids: list[Id]) -> None:
        self.unplaced(host, ids, ago_ms=899_999)

    def instant(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=[])
        host.land(ids, waited_ms=0)

    def hour_end(self, host: Host, ids: list[Id], *, before_ms: int = 0) -> None:
        self._whole(host, ids, beat=False)
        self.world.records.append(host.beat(closed_before=HOUR_END - before_ms))

    def hour_end_yet(self, host: Host, ids: list[Id]) -> None:
        self.hour_end(host, ids, before_ms=1)

    def quiet(self, host: Host, ids: list[Id], *, ago_ms: int = 120_000, interval_s: float = 10) -> None:
        self._whole(host, ids, beat=False)
        beat = host.beat(closed_before=HOUR_END - 1, sent_at=NOW_MS - ago_ms, interval_s=interval_s)
        self.world.records.append(beat)

    def too_quiet(self, host: Host, ids: list[Id]) -> None:
        self.quiet(host, ids, ago_ms=120_001)

    def slow(self, host: Host, ids: list[Id]) -> None:
        self.quiet(host, ids, ago_ms=180_000, interval_s=60)

    def set_back(self, host: Host, ids: list[Id]) -> None:
        """The clock: what is told later bears earlier times."""
        host.deliver(ids[:15])
        self.world.records += [*host.tell(), host.beat(closed_before=(MINUTE + 1) * MINUTE_MS)]
        host.deliver(ids[15:])
        host.land(ids)
        at = NOW_MS - 50_000
        self.world.records += [*host.tell(sent_at=at), host.beat(closed_before=NOW_MS - 60_000, sent_at=at, era=1)]

    def twice_later(self, host: Host, ids: list[Id]) -> None:
        """The first ordinal behind a range of the hour before."""
        ids += host.take(TOPIC, ids[0].origin, 10, MINUTE + 60)
        self._whole(host, ids)
        host.land([ids[30]], again=True)

    def uncounted_open(self, host: Host, ids: list[Id]) -> None:
        """A minute that came again, and was not delivered whole."""
        again = host.take(TOPIC, ids[0].origin, 5, MINUTE, era=1, ids=False)
        host.deliver([*ids, *again[:2]])
        self.world.records += [*host.tell(), host.beat(closed_before=NOW_MS - 60_000, settled_before=0)]

    def narrow(self, host: Host, ids: list[Id]) -> None:
        """All that was told of one minute with one record is lost."""
        ids += host.take(TOPIC, ids[0].origin, 1, MINUTE + 4)
        ids += host.take(TOPIC, ids[0].origin, 5, MINUTE + 5)
        self._whole(host, ids)
        lost = f"|{MINUTE + 4}".encode()
        own = host.incarnation.encode()
        self.world.records = [each for each in self.world.records if not each[0].startswith(own) or lost not in each[0]]

    def nested(self, host: Host, ids: list[Id]) -> None:
        """Three ordinals are given out again."""
        self._whole(host, ids, beat=False)
        again = Host(self.world, self.kafka, host.incarnation, host.name, first=12)
        again.offsets, again.shards = host.offsets, host.shards
        _ = again.take(TOPIC, ids[0].origin, 3, MINUTE + 3)
        self.world.records += [*again.tell(), host.beat(closed_before=NOW_MS - 60_000)]

    def wide(self, host: Host, ids: list[Id]) -> None:
        """Of the records between, the clock said that they were hours ago."""
        gone = host.take(TOPIC, ids[0].origin, 5, MINUTE - 180)
        ids += [*gone, *host.take(TOPIC, ids[0].origin, 5, FIRST_MINUTE)]
        host.deliver(ids)
        host.land(ids)
        self.world.records += [each for each in host.tell() if not each[0].endswith(f"|{MINUTE - 180}".encode())]
        self.world.records.append(host.beat(closed_before=NOW_MS - 60_000))

    def _false(
        self, host: Host, ids: list[Id], kind: type[AuditIntake | AuditOutcome], minute: int = MINUTE + 2, **totals: int
    ) -> None:
        host.deliver(ids)
        host.land(ids)
        self._changed(host, kind, minute, **totals)
        self.world.records.append(host.beat(closed_before=NOW_MS - 60_000))

    def miscounted(self, host: Host, ids: list[Id]) -> None:
        self._false(host, ids, AuditIntake, MINUTE, accepted=11)

    def unaccepted(self, host: Host, ids: list[Id]) -> None:
        self._false(host, ids, AuditIntake)

    def undelivered(self, host: Host, ids: list[Id]) -> None:
        self._false(host, ids, AuditOutcome)

    def overdelivered(self, host: Host, ids: list[Id]) -> None:
        self._false(host, ids, AuditOutcome, delivered=11)

    def ended_undelivered(self, host: Host, ids: list[Id]) -> None:
        self._false(host, ids, AuditOutcome)
        self.world.records.append(host.beat(closed_before=NOW_MS - 60_000, settled_before=0, state="closed"))

    def open_books(self, host: Host, ids: list[Id], *, before_ms: int = 0) -> None:
        """The heartbeat says settled to the very end of the last minute."""
        host.deliver(ids[:25])
        host.land(ids[:25])
        settled = (MINUTE + 3) * MINUTE_MS - before_ms
        self.world.records += [*host.tell(), host.beat(closed_before=NOW_MS - 60_000, settled_before=settled)]

    def open_books_yet(self, host: Host, ids: list[Id]) -> None:
        self.open_books(host, ids, before_ms=1)

    def outside_ended(self, host: Host, ids: list[Id]) -> None:
        """As `ahead`, but no books follow any more."""
        self.ahead(host, ids)
        self.world.records.append(host.beat(closed_before=NOW_MS - 60_000, state="closed"))

    def untold(self, host: Host, ids: list[Id], *, state: str = "running") -> None:
        """What was delivered last is not in the books yet."""
        host.deliver(ids[:25])
        self.world.records += host.tell()
        host.deliver(ids[25:])
        host.land(ids)
        self.world.records.append(host.beat(closed_before=NOW_MS - 60_000, settled_before=0, state=state))

    def untold_ended(self, host: Host, ids: list[Id]) -> None:
        self.untold(host, ids, state="closed")

    def lost_and_twice(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[1:])
        host.land(ids[1:2], again=True)

    def twice_and_silent(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, beat=False)
        host.land(ids[:1], again=True)

    def open_and_silent(self, host: Host, ids: list[Id]) -> None:
        host.deliver(ids[:20])
        host.land(ids[:20])
        self.world.records += host.tell()

    def rows(self, name: str) -> list[HourRow]:
        """Those of a daemon, by hour."""
        found = [row for row in self.result.data.rows if row.incarnation == self.hosts[name].incarnation]
        return sorted(found, key=lambda row: row.hour)

    def row(self, name: str) -> HourRow:
        """The row of a daemon's hour."""
        incarnation = self.hosts[name].incarnation
        found = [row for row in self.result.data.rows if row.incarnation == incarnation]
        return min(found, key=lambda row: -row.accepted)

    def missing(self, name: str) -> dict[int, MissingClass]:
        """Ordinals and classes."""
        found = [part for part in self.result.data.missing if part.incarnation == self.hosts[name].incarnation]
        return {ordinal: part.missing_class for part in found for ordinal in range(part.first, part.end)}


class BusySource(WorldSource):
    """Of a pipeline that goes on while it is audited. Whoever asks in another order than the proof needs sees losses."""

    def __init__(self, spark: SparkSession, world: World, land: Callable[[], None]) -> None:
        """`land` puts the last rows into the tables, just before it is told how far they go."""
        super().__init__(spark, world)
        self._land = land
        self._told = False

    def landed_offsets(self) -> dict[str, dict[int, int]]:
        self._land()
        return super().landed_offsets()

    def records(self) -> DataFrame:
        self._told = True
        return super().records()

    def log_ends(self) -> dict[str, dict[int, int]]:
        """What the books speak of came to the logs just before them."""
        ends = super().log_ends()
        return ends if self._told else {topic: dict.fromkeys(parts, 0) for topic, parts in ends.items()}
