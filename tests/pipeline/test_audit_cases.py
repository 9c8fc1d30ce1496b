"""What an audit says of one trouble each: all troubles live in one world, each in a daemon of its own, and one run judges them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.pipeline.audit import AuditResult
from penstock.pipeline.audit_fold import AuditVersionError, fold
from penstock.pipeline.audit_schemas import DUPLICATES, DUPLICATES_TABLE, MISSING, MISSING_TABLE, REPORT, REPORT_TABLE
from penstock.pipeline.core.report_data import HourRow, MissingClass, Status
from pyspark.sql import SparkSession

from tests.harness.audit_bench import AuditBench, WorldSource
from tests.harness.audit_hosts import NOW_MINUTE, NOW_MS, Host, Kafka
from tests.harness.audit_model import Id, Row, World

TOPIC = "clicks"
MINUTE = NOW_MINUTE - 85
"""In the hour before the last that has ended: five minutes before its end."""
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
                self.ids[name] += host.take(TOPIC, number, 10, minute, ids=name != "uncounted")
            getattr(self, name)(host, self.ids[name])
        # Twice everything, in the opposite order.
        self.world.records = [*reversed(self.world.records), *self.world.records]
        self.bench = AuditBench(spark, folder)
        self.bench.land(self.world.rows)
        self.result: AuditResult = self.bench.audit(self.world)

    def _whole(self, host: Host, ids: list[Id], *, landed: list[Id] | None = None, beat: bool = True) -> None:
        host.deliver([each for each in ids if each not in host.holes])
        host.land(landed if landed is not None else ids)
        self.world.records += host.tell()
        if beat:
            self.world.records.append(host.beat(closed_before=NOW_MS - 60_000))

    def good(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids)

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
        self._whole(host, ids)

    def odd(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids, landed=ids[:-1])
        last = ids[-1]
        row = Row(
            TOPIC, last.origin, host.offsets[last], *last[1:], host.accepted_at(last), NOW_MS, odd_hour="2026-09-20-01"
        )
        self.world.rows.append(row)

    def recovered(self, host: Host, ids: list[Id]) -> None:
        host.drop(ids[5:8])
        self._whole(host, ids, landed=[each for each in ids if each not in host.holes])
        host.land([ids[6]], again=True)

    def restored(self, host: Host, ids: list[Id]) -> None:
        """A copy of the spool sends five records again, with the ids that they have; what it takes has a new incarnation."""
        self._whole(host, ids)
        host.land(ids[10:15], again=True)
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

    def ahead(self, host: Host, ids: list[Id]) -> None:
        self._whole(host, ids)
        accept = NOW_MS - 15_000
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

    def row(self, name: str) -> HourRow:
        """The row of a daemon's hour."""
        incarnation = self.hosts[name].incarnation
        found = [row for row in self.result.data.rows if row.incarnation == incarnation]
        return min(found, key=lambda row: -row.accepted)

    def missing(self, name: str) -> dict[int, MissingClass]:
        """Ordinals and classes."""
        found = [part for part in self.result.data.missing if part.incarnation == self.hosts[name].incarnation]
        return {ordinal: part.missing_class for part in found for ordinal in range(part.first, part.end)}


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    return Story(spark, tmp_path_factory.mktemp("audit"))


def test_what_arrived_is_complete_though_audit_records_came_twice_and_out_of_order(story: Story) -> None:
    row = story.row("good")
    assert (row.status, row.accepted, row.expected, row.distinct, row.landed) == (Status.COMPLETE, 30, 30, 30, 30)
    assert row.latency_p50_s == pytest.approx(2.0, rel=0.011)


def test_lost_ids_are_named_as_ranges_with_how_that_is_known(story: Story) -> None:
    row = story.row("lost")
    assert (row.status, row.lost, row.distinct) == (Status.LOST, 6, 24)
    parts = [part for part in story.result.data.missing if part.incarnation == row.incarnation]
    assert [(part.first, part.end) for part in parts] == [(3, 8), (12, 13)]
    assert parts[0].evidence == f"partition {parts[0].origin} was read to 30, the range ends at 10"


def test_duplicates_are_named_with_all_their_places(story: Story) -> None:
    row = story.row("twice")
    found = [each for each in story.result.data.duplicates if each.incarnation == row.incarnation]
    assert (row.status, row.duplicated, row.landed, row.distinct) == (Status.DUPLICATED, 3, 33, 30)
    origin = found[0].origin
    assert [(each.ordinal, each.places) for each in found] == [
        (4, ((origin, 4), (origin, 30), (origin, 31))),
        (29, ((origin, 29), (origin, 32))),
    ]


def test_a_lost_audit_record_makes_its_hour_unknown_and_says_which_ordinals_it_knew(story: Story) -> None:
    row = story.row("gap")
    assert row.status is Status.UNKNOWN
    assert f"origin {CASES.index('gap')}: ordinals 10 to 19 are in no range of the books" in row.doubts


def test_a_daemon_without_heartbeat_is_unknown(story: Story) -> None:
    assert (story.row("silent").status, story.row("silent").doubts) == (
        Status.UNKNOWN,
        ("no heartbeat of this incarnation is known",),
    )


def test_what_a_vanished_host_has_not_sent_is_pending_until_it_is_retired_and_then_lost(story: Story) -> None:
    assert story.row("gone").status is Status.UNKNOWN
    assert story.missing("gone") == dict.fromkeys(range(20, 30), MissingClass.PENDING)
    assert story.row("retired").status is Status.LOST
    assert story.missing("retired") == dict.fromkeys(range(20, 30), MissingClass.LOST)


def test_what_a_daemon_that_ended_had_not_sent_is_late_for_a_while_where_others_may_have(story: Story) -> None:
    assert story.missing("ended") == dict.fromkeys(range(20, 30), MissingClass.LATE)
    assert story.missing("ended_long") == dict.fromkeys(range(20, 30), MissingClass.LOST)


def test_what_a_log_no_longer_has_is_lost_and_what_is_not_read_yet_is_late(story: Story) -> None:
    assert story.missing("truncated") == dict.fromkeys((28, 29), MissingClass.LOST)
    assert story.missing("deleted") == dict.fromkeys((28, 29), MissingClass.LOST)
    assert story.row("behind").status is Status.LATE
    assert story.missing("behind") == dict.fromkeys(range(25, 30), MissingClass.LATE)


def test_books_balance_by_ordinal_whatever_the_clock_did(story: Story) -> None:
    rows = [row for row in story.result.data.rows if row.incarnation == story.hosts["stepped"].incarnation]
    assert {row.status for row in rows} == {Status.COMPLETE}
    assert sorted(row.accepted for row in rows) == [5, 35]


def test_a_row_in_another_hour_than_its_minute_is_found(story: Story) -> None:
    row = story.row("odd")
    assert (row.lost, row.distinct, story.missing("odd")) == (0, 30, {})


def test_a_landed_id_in_a_hole_is_recovered(story: Story) -> None:
    row = story.row("recovered")
    assert (row.status, row.holes, row.expected, row.distinct, row.recovered) == (Status.COMPLETE, 3, 27, 27, 1)


def test_records_that_a_restored_spool_sent_again_are_duplicated_by_name(story: Story) -> None:
    row = story.row("restored")
    assert (row.status, row.duplicated) == (Status.DUPLICATED, 5)
    named = [each.ordinal for each in story.result.data.duplicates if each.incarnation == row.incarnation]
    assert named == [10, 11, 12, 13, 14]
    (new,) = [each for each in story.result.data.rows if each.incarnation == "abcdefabcdef"]
    assert new.status is Status.COMPLETE


def test_records_without_ids_are_counted_and_judged_by_nobody(story: Story) -> None:
    row = story.row("uncounted")
    assert (row.status, row.accepted, row.expected, row.landed) == (Status.COUNTED, 30, 30, 0)
    (foreign,) = [each for each in story.result.data.rows if each.foreign]
    assert (foreign.incarnation, foreign.foreign, foreign.status) == ("", 29, Status.COUNTED)


def test_ids_that_no_book_knows_are_late_in_an_open_minute_and_unknown_in_a_closed_one(story: Story) -> None:
    rows = [row for row in story.result.data.rows if row.incarnation == story.hosts["ahead"].incarnation]
    assert sorted(row.status for row in rows) == [Status.COMPLETE, Status.LATE]
    assert story.row("outside").status is Status.UNKNOWN


def test_the_worst_code_wins_and_tables_and_report_have_what_the_run_said(story: Story) -> None:
    assert story.result.exit_code == 13
    assert "lost.example" in story.result.report.read_text()
    tables, run = story.bench.tables, story.result.run_id
    rows = tables.table(REPORT_TABLE, REPORT).read().where(f"run = '{run}'").collect()
    assert len(rows) == len(story.result.data.rows)
    missing = tables.table(MISSING_TABLE, MISSING).read().where("class = 'lost'").selectExpr("sum(end - first)").first()
    assert missing is not None
    assert missing[0] == sum(row.lost for row in story.result.data.rows)
    doubled = tables.table(DUPLICATES_TABLE, DUPLICATES).read().collect()
    assert {(row.incarnation, row.ordinal) for row in doubled} == {
        (each.incarnation, each.ordinal) for each in story.result.data.duplicates
    }


def test_a_newer_version_of_audit_records_stops_the_audit(spark: SparkSession) -> None:
    world = World(NOW_MS, records=[(b"key", b'{"v":2,"kind":"intake","anything":[]}')])
    with pytest.raises(AuditVersionError, match="records of version 2; this program knows version 1"):
        fold(WorldSource(spark, world).records(), lambda frame: frame)
