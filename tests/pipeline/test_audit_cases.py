"""What an audit says of one trouble each: all troubles live in one world (`tests/harness/audit_story.py`), and one run judges them."""

import json

import pytest
from penstock.pipeline.audit.schemas import DUPLICATES, DUPLICATES_TABLE, MISSING, MISSING_TABLE, REPORT, REPORT_TABLE
from penstock.pipeline.audit.scope import scope
from penstock.pipeline.audit.totals import RANGE_MAX, AuditVersionError, fold
from penstock.pipeline.hours import HourRange, hour_of_ms
from penstock.pipeline.report.data import LeftOut, MissingClass, Status
from penstock.wire import audit_records
from penstock.wire.errors import FrameError
from pyspark.sql import SparkSession

from tests.harness.audit_bench import WorldSource
from tests.harness.audit_hosts import NOW_MS, Host, Kafka
from tests.harness.audit_model import MINUTE_MS, World
from tests.harness.audit_story import CASES, FIRST_MINUTE, HOUR, HOUR_END, MINUTE, OTHER, TOPIC, Story


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
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


def test_an_hour_of_which_a_part_has_no_ids_is_judged_by_the_others(story: Story) -> None:
    row = story.row("partly_numbered")
    assert (row.status, row.accepted, row.lost) == (Status.LOST, 35, 1)


def test_duplicates_are_named_with_all_their_places(story: Story) -> None:
    row = story.row("twice")
    found = [each for each in story.result.data.duplicates if each.incarnation == row.incarnation]
    assert (row.status, row.duplicated, row.landed, row.distinct) == (Status.DUPLICATED, 3, 33, 30)
    origin = found[0].origin
    assert [(each.ordinal, each.places) for each in found] == [
        (4, ((origin, 4), (origin, 30), (origin, 31))),
        (29, ((origin, 29), (origin, 32))),
    ]
    assert [(row.hour, row.duplicated) for row in story.rows("twice_later")] == [(HOUR, 0), (hour_of_ms(HOUR_END), 1)]


def test_a_lost_audit_record_makes_its_hour_unknown_and_says_which_ordinals_it_knew(story: Story) -> None:
    row = story.row("gap")
    assert row.status is Status.UNKNOWN
    assert f"origin {CASES.index('gap')}: ordinals 10 to 19 are in no range of the books" in row.doubts
    (row,) = story.rows("narrow")
    assert f"origin {CASES.index('narrow')}: ordinals 30 to 30 are in no range of the books" in row.doubts
    assert "1 landed rows have ids that no book knows" in row.doubts


def test_hours_between_the_ends_of_a_gap_are_unknown(story: Story) -> None:
    # Nobody speaks of the fourth hour.
    hours = [hour_of_ms((FIRST_MINUTE + 60 * later) * MINUTE_MS) for later in (0, 1, 2, 4)]
    assert [(row.hour, row.status) for row in story.rows("wide")] == [(hour, Status.UNKNOWN) for hour in hours]


@pytest.mark.parametrize(
    ("name", "doubts"),
    [
        (
            "miscounted",
            ["11 records accepted, 10 delivered, 0 never sent", "11 records accepted, 10 ordinals given out"],
        ),
        (
            "unaccepted",
            ["10 landed rows have ids that no book knows", "10 records delivered, and no record of what was accepted"],
        ),
        ("undelivered", ["10 records accepted, 0 delivered, 0 never sent"]),
        ("overdelivered", ["10 records accepted, 11 delivered, 0 never sent"]),
        ("ended_undelivered", ["10 records accepted, 0 delivered, 0 never sent"]),
        ("open_books", ["5 ordinals are open, though it is settled"]),
        ("nested", [f"origin {CASES.index('nested')}: ordinals 12 to 14 are in two ranges of the books"]),
    ],
)
def test_books_that_cannot_be_true_make_an_hour_unknown_and_are_told(
    story: Story, name: str, doubts: list[str]
) -> None:
    (row,) = story.rows(name)
    assert row.status is Status.UNKNOWN
    assert [said.split(": ", 1)[-1] if said.startswith("minute") else said for said in row.doubts] == doubts


def test_what_is_open_in_a_minute_that_is_not_called_settled_is_no_doubt(story: Story) -> None:
    (row,) = story.rows("open_books_yet")
    assert (row.status, row.pending, row.doubts) == (Status.LATE, 5, ())


def test_a_daemon_without_heartbeat_is_unknown(story: Story) -> None:
    assert (story.row("silent").status, story.row("silent").doubts) == (
        Status.UNKNOWN,
        ("no heartbeat of this incarnation is known",),
    )


def test_what_a_vanished_host_has_not_sent_is_pending_until_it_is_retired_and_then_lost(story: Story) -> None:
    assert story.row("gone").status is Status.UNKNOWN
    assert [row.status for name in ("quiet", "too_quiet", "slow") for row in story.rows(name)] == [
        Status.LATE,
        Status.UNKNOWN,
        Status.LATE,
    ]
    assert story.missing("gone") == dict.fromkeys(range(20, 30), MissingClass.PENDING)
    assert story.missing("open_and_silent") == dict.fromkeys(range(20, 30), MissingClass.PENDING)
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
    # One record more or less.
    assert story.missing("behind_by_one") == {29: MissingClass.LATE}
    assert story.missing("truncated_by_one") == {29: MissingClass.LOST}
    assert story.missing("deleted_but_one") == dict.fromkeys((28, 29), MissingClass.LATE)


def test_what_settled_nobody_knows_where_is_late_for_a_while_and_then_lost(story: Story) -> None:
    assert story.missing("unplaced_yet") == dict.fromkeys((28, 29), MissingClass.LATE)
    assert story.missing("unplaced") == dict.fromkeys((28, 29), MissingClass.LOST)


def test_an_hour_is_over_when_the_heartbeat_has_come_to_its_end(story: Story) -> None:
    assert [row.status for name in ("hour_end", "hour_end_yet") for row in story.rows(name)] == [
        Status.COMPLETE,
        Status.LATE,
    ]


def test_books_balance_by_ordinal_whatever_the_clock_did(story: Story) -> None:
    assert [(row.status, row.accepted) for row in story.rows("stepped")] == [
        (Status.COMPLETE, 5),
        (Status.COMPLETE, 42),
    ]
    (row,) = story.rows("set_back")
    assert (row.status, row.distinct) == (Status.COMPLETE, 30)
    (row,) = story.rows("instant")
    assert (row.status, row.latency_p99_s) == (Status.COMPLETE, 0.0)


def test_a_row_in_another_hour_than_its_minute_is_found(story: Story) -> None:
    row = story.row("odd")
    assert (row.lost, row.distinct, story.missing("odd")) == (0, 30, {})
    assert story.missing("odd_too_far") == {29: MissingClass.LOST}


def test_of_sealed_hours_nothing_is_said(story: Story) -> None:
    assert story.result.data.hours_sealed == 3
    assert {row.hour for row in story.result.data.rows if row.topic == OTHER} == {hour_of_ms(NOW_MS)}
    assert HOUR in {row.hour for row in story.result.data.rows if row.topic == TOPIC}
    # Its books are known, and some of its records are not in the table.
    assert [(row.hour, row.status) for row in story.rows("sealed_before")] == [(HOUR, Status.COMPLETE)]
    assert story.missing("sealed_before") == {}


def test_of_too_many_hours_the_newest_are_audited_and_of_those_asked_for_all() -> None:
    there, sealed = {TOPIC: [f"2026-09-20-{hour:02}" for hour in range(9)]}, {TOPIC: {"2026-09-20-07"}}
    newest = scope(there, sealed, None, 3)
    assert newest.hours == {TOPIC: ["2026-09-20-05", "2026-09-20-06", "2026-09-20-08"]}
    assert (newest.sealed, newest.left_out) == (1, (LeftOut(f"unsealed hours of topic {TOPIC}", 3, 8),))
    asked = scope(there, sealed, HourRange("2026-09-20-02", "2026-09-20-07"), 3)
    assert asked.hours == {TOPIC: there[TOPIC][2:8]}
    assert (asked.sealed, asked.left_out) == (0, ())


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
    (foreign,) = [each for each in story.result.data.rows if each.foreign and each.topic == TOPIC]
    (open_yet,) = [each for each in story.rows("uncounted_open") if each.hour == HOUR]
    assert (open_yet.status, open_yet.expected, open_yet.pending) == (Status.COUNTED, 35, 3)
    assert (foreign.incarnation, foreign.foreign, foreign.landed, foreign.status) == ("", 29, 0, Status.COUNTED)


def test_ids_that_no_book_knows_are_late_in_an_open_minute_and_unknown_in_a_closed_one(story: Story) -> None:
    assert [row.status for row in story.rows("ahead")] == [Status.COMPLETE, Status.LATE]
    assert [row.status for row in story.rows("outside_ended")] == [Status.COMPLETE, Status.UNKNOWN]
    assert story.row("outside").status is Status.UNKNOWN


def test_the_worst_that_is_true_of_an_hour_is_said(story: Story) -> None:
    names = ("untold", "untold_ended", "lost_and_twice", "twice_and_silent")
    assert [row.status for name in names for row in story.rows(name)] == [
        # All has landed; of a daemon that is gone no more will be told.
        Status.LATE,
        Status.COMPLETE,
        Status.LOST,
        Status.DUPLICATED,
    ]


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


def test_records_that_the_codec_refuses_are_counted_and_else_as_if_they_were_lost(spark: SparkSession) -> None:
    world = World(NOW_MS)
    host = Host(world, Kafka(world), "0000000000aa")
    ids = host.take(TOPIC, 0, 10, MINUTE)
    host.drop(ids[8:])
    host.deliver(ids[:8])
    (intake, outcome), beat = host.tell(), host.beat(closed_before=NOW_MS)
    damages: list[tuple[tuple[bytes, bytes], dict[str, object]]] = [
        *((intake, {"ranges": [span]}) for span in _BAD_RANGES),
        *(
            (intake, {"holes": [span]})
            for span in ([0, 9, 9, "parked"], [0, "x", 9, "parked"], [0, 8, 9], [-1, 8, 9, ""])
        ),
        *((intake, {name: -1}) for name in ("accepted", "bytes", "minute", "era", "version", "sent_at")),
        *((intake, {"minute": MINUTE + 1}), (intake, {"era": 1}), (intake, {"refused": None}), (intake, {"ids": None})),
        *(
            (intake, {"shard": 3}),
            (intake, {"incarnation": "0000000000AA"}),
            (intake, {"v": 0}),
            (intake, {"kind": "?"}),
        ),
        *((outcome, {"shard": -1}), (outcome, {"delivered": -1}), (outcome, {"minute": MINUTE + 1})),
        *((beat, {"state": "asleep"}), (beat, {"interval_s": -1}), (beat, {"closed_before": -1}), (beat, {"shard": 0})),
    ]
    for (key, value), fields in damages:
        damaged = json.dumps(json.loads(value) | fields).encode()
        with pytest.raises(FrameError):
            _ = audit_records.decode(key, damaged)
        world.records.append((key, damaged))
    # More than the codec does: nothing that would be taken apart for ever.
    endless = [[0, 0, RANGE_MAX + 1, 8, -1]]
    world.records.append((intake[0], json.dumps(json.loads(intake[1]) | {"ranges": endless}).encode()))
    bad = len(world.records)
    world.records += [intake, outcome, beat]
    books, unread = fold(WorldSource(spark, world).records(), lambda frame: frame)
    assert unread == bad
    assert [tuple(row) for row in books.ranges.select("first", "end", "settled_end").collect()] == [(0, 10, 10)]


_BAD_RANGES = (
    [0, 5, 5, 5, -1],
    [0, 0, 10, 11, -1],
    [0, 5, 10, 4, -1],
    [0, 0, 10, 8, -2],
    [0, 0, 10, 8],
    [-1, 0, 9, 8, 9],
)
