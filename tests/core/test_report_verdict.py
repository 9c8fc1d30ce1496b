"""The verdict in words, the tables and the pictures, from plain rows."""

import dataclasses

import pytest
from penstock.pipeline.exits import PipelineExit
from penstock.pipeline.report.charts import host_series, latency, latency_hours
from penstock.pipeline.report.data import LeftOut, ReportData, Status, worst
from penstock.pipeline.report.tables import tables
from penstock.pipeline.report.time_axis import make_axis
from penstock.pipeline.report.verdict import judge, report_totals
from penstock.pipeline.report.view import BAR_WIDTH, ReportLimits, segments, view

from tests.harness import report_samples as samples

row = samples.row


def of(*rows: object) -> ReportData:
    """A run with these rows."""
    return dataclasses.replace(samples.empty(), rows=rows)


@pytest.mark.parametrize(
    ("rows", "headline"),
    [
        ((row(lost=7), row(hour=1, duplicated=11)), "7 records are lost and 11 landed twice"),
        ((row(lost=1, doubts=("no heartbeat",)),), "1 record is lost"),
        ((row(duplicated=1), row(hour=1, pending=4)), "1 record has landed twice"),
        ((row(doubts=("no heartbeat",)), row(hour=1, late=3)), "Completeness cannot be proven yet"),
        ((row(), row(hour=1, late=3, pending=1)), "4 records are still on the way"),
        ((row(status=Status.LATE),), "Nothing is missing; the hour is not over yet"),
        ((row(), row(hour=1)), "Complete: every record arrived, each one once"),
        ((), "Nothing came in, nothing is missing"),
    ],
)
def test_the_headline_names_the_worst_first(rows: tuple[object, ...], headline: str) -> None:
    assert judge(of(*rows)).headline == headline


def test_each_status_has_a_finding_with_what_to_do() -> None:
    findings = judge(samples.troubled()).findings
    assert [finding.status for finding in findings] == [
        Status.LOST, Status.DUPLICATED, Status.UNKNOWN, Status.LATE, Status.COMPLETE,
    ]  # fmt: skip
    assert all(finding.steps for finding in findings)
    assert any(f"retire {samples.incarnation(3)}" in step for step in findings[2].steps)


def test_an_hour_is_complete_when_all_its_hosts_are() -> None:
    both = (row(host=0), row(host=1, lost=1), row(hour=1))
    complete = judge(of(*both)).findings[-1]
    assert complete.title == "1 of 2 topic hours complete"
    assert complete.sentences == ("500,000 records accepted, settled and in the tables, each once.",)


def test_the_status_of_a_run_is_its_worst_row_and_has_the_exit_code() -> None:
    assert samples.troubled().status is Status.LOST
    assert worst([]) is Status.COMPLETE
    assert worst([Status.COUNTED, Status.COMPLETE]) is Status.COUNTED
    assert {str(status): status.exit_code for status in Status} == {
        "complete": PipelineExit.OK,
        "counted": PipelineExit.OK,
        "late": PipelineExit.LATE,
        "unknown": PipelineExit.UNKNOWN,
        "duplicated": PipelineExit.DUPLICATED,
        "lost": PipelineExit.LOST,
    }


def test_records_without_ids_are_counted_apart_and_never_called_missing() -> None:
    only = dataclasses.replace(row("plain", accepted=90), status=Status.COUNTED, distinct=0, landed=0, foreign=88)
    verdict = judge(of(row(), only))
    assert verdict.headline == "Complete: every record arrived, each one once"
    assert [finding.title for finding in verdict.findings] == [
        "1 topic hour complete",
        "90 records only counted in plain",
    ]
    sums = report_totals([row(), only])
    assert (sums.expected, sums.distinct, sums.counted, sums.foreign) == (500_000, 500_000, 90, 88)
    assert judge(of(only)).headline == "Counted only: these records carry no ids"
    shown = next(table for table in tables(of(only), 9) if table.id == "hours").rows[0]
    assert [cell.text for cell in shown.cells[5:8]] == ["90", "\N{EN DASH}", "\N{EN DASH}"]


def test_the_books_add_everything_up() -> None:
    sums = report_totals(samples.troubled().rows)
    assert sums.accepted - sums.holes == sums.expected
    assert sums.expected == sums.distinct + sums.lost + sums.late + sums.pending
    assert (sums.lost, sums.duplicated, sums.recovered, sums.foreign) == (7, 11, 2, 240)


def test_one_lost_record_among_millions_is_seen_in_the_bar() -> None:
    parts = segments(report_totals([row(accepted=50_000_000, lost=1)]))
    assert [part.label for part in parts] == ["arrived", "lost"]
    assert parts[1].width > 5
    assert sum(part.width for part in parts) == pytest.approx(BAR_WIDTH, abs=0.1)


def test_tables_are_cut_with_the_worst_first_and_say_so() -> None:
    made = {table.id: table for table in tables(samples.troubled(), 2)}
    assert [kept.status for kept in made["hours"].rows] == [Status.LOST, Status.DUPLICATED]
    assert made["hours"].left_out == (
        "Shown: the first 2 of 16 rows, the worst first; the totals above count all of them.",
    )
    assert [kept.status for kept in made["missing"].rows] == [Status.LOST, Status.LOST]
    assert made["duplicates"].count == 11


def test_what_the_audit_and_the_page_left_out_is_told() -> None:
    data = dataclasses.replace(samples.troubled(), left_out=(LeftOut("holes", 10, 5_000),))
    told = view(data, ReportLimits(topics=1, hosts=2, latencies=1)).left_out
    assert told[0] == "Shown: 10 of 5,000 holes."
    assert any("of 3" in text for text in told)
    assert "Latency: the 1 slowest topics of 3." in told


def test_hosts_beyond_the_limit_share_a_row_and_none_is_lost() -> None:
    hosts = samples.troubled().hosts
    axis = make_axis([point.minute for host in hosts for point in host.points], columns_max=240)
    laid = host_series(hosts, axis, 2)
    assert [host.name for host in laid] == ["edge-01.example", "3 more hosts"]
    assert sum(host.whole.expected for host in laid) == sum(p.expected for host in hosts for p in host.points)


def test_latency_of_hours_together_is_the_mean_of_p50_and_the_worst_p99() -> None:
    rows = [row(accepted=100, p50=2.0, p99=4.0), row(hour=1, accepted=300, p50=6.0, p99=90.0), row(hour=2)]
    together = latency_hours(rows, 2)["clicks"]
    assert [(hour.first, hour.last) for hour in together] == [
        (samples.hour_of(0), samples.hour_of(1)), (samples.hour_of(2), samples.hour_of(2)),
    ]  # fmt: skip
    assert (together[0].p50_s, together[0].p99_s) == (5.0, 90.0)
    picture = latency(together)
    assert picture.worst == "1 min 30 s"


def test_latencies_of_nothing_and_of_weeks_have_a_scale() -> None:
    hours = latency_hours([row(p50=0.0, p99=0.0), row(hour=1, p50=10.0**7, p99=10.0**9)], 9)["clicks"]
    picture = latency(hours)
    assert len(picture.labels) > 2
    assert "nan" not in "".join(path.d for path in picture.paths)
