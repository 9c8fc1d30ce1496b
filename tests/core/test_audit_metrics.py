"""The file of metrics: what the run found, under declared names."""

import dataclasses

from penstock.pipeline.audit import metrics
from penstock.pipeline.report.data import Status
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.harness import report_samples as samples

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def values(text: str) -> Values:
    """Every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parsed(text)
        for sample in family.samples
    }


def test_the_file_says_what_was_found_by_topic() -> None:
    found = values(metrics.text(samples.troubled()))
    clicks = (("topic", "clicks"),)
    assert found["penstock_audit_records_lost", clicks] == 7
    assert found["penstock_audit_records_duplicated", clicks] == 11
    assert found["penstock_audit_records_late", (("topic", "orders"),)] == 3_120
    assert 0.999 < found["penstock_audit_completeness_ratio", clicks] < 1
    assert found["penstock_audit_topic_hours", (("status", "lost"),)] == 1
    assert found["penstock_audit_incarnations", (("state", "silent"),)] == 1
    assert found["penstock_audit_exit_code", ()] == 13
    assert found["penstock_audit_last_run_timestamp_seconds", ()] == samples.NOW_MS / 1000
    assert found["penstock_audit_latency_seconds", (("quantile", "0.99"), ("topic", "clicks"))] == 54.0


def test_the_oldest_incomplete_hour_is_there_only_while_there_is_one() -> None:
    name = "penstock_audit_oldest_incomplete_timestamp_seconds"
    troubled = values(metrics.text(samples.troubled()))
    assert troubled[name, (("topic", "clicks"),)] == (samples.HOUR_0 + 60) * 60
    assert not any(key[0] == name for key in values(metrics.text(samples.good())))


def test_a_run_without_rows_says_that_it_ran() -> None:
    found = values(metrics.text(samples.empty()))
    assert found["penstock_audit_exit_code", ()] == 0
    assert found["penstock_audit_topic_hours", (("status", Status.COMPLETE.value),)] == 0


def test_thousands_of_topics_share_what_is_beyond_the_limit() -> None:
    rows = tuple(samples.row(f"t{n:04}", accepted=10, lost=1 if n == 1_500 else 0) for n in range(1_600))
    data = dataclasses.replace(samples.empty(), rows=rows)
    found = values(metrics.text(data))
    accepted = {key[1][0][1]: value for key, value in found.items() if key[0] == "penstock_audit_records_accepted"}
    assert len(accepted) == metrics.TOPICS_MAX
    assert sum(accepted.values()) == 16_000
    assert accepted["t1500"] == 10
    assert accepted[metrics.OTHERS] == 6_010


def test_a_topic_can_not_break_out_of_its_label() -> None:
    rows = (samples.row(samples.HOSTILE + '\n"} 1'),)
    found = values(metrics.text(dataclasses.replace(samples.empty(), rows=rows)))
    assert found["penstock_audit_records_lost", (("topic", samples.HOSTILE + '\n"} 1'),)] == 0


def test_every_declared_metric_is_in_the_file_and_no_other() -> None:
    names = {family.name for family in parsed(metrics.text(samples.troubled()))}
    assert names == {metric.name for metric in metrics.METRICS}
