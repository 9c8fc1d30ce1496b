"""Names of tables, and the digest of how records are read."""

from dataclasses import fields, replace

import pytest
from penstock.config.errors import ConfigError
from penstock.pipeline.land.parse_rules import ErrorClass, ParseRules
from penstock.pipeline.names import bronze_table, check_topics

RULES = ParseRules(
    topic="t", format="json", schema="{}", schema_version="1", record_bytes_max=5, newer_ids="stop", dedupe="off"
)


@pytest.mark.parametrize(
    ("topic", "table"),
    [("clicks", "bronze_clicks"), ("a.b-C_9", "bronze_a_b___9"), ("Ünï", "bronze__n_")],
)
def test_whatever_a_table_cannot_be_called_becomes_an_underline(topic: str, table: str) -> None:
    assert bronze_table(topic) == table


def test_topics_that_would_share_a_table_are_refused_all_at_once() -> None:
    check_topics(["a", "b", "a"])
    with pytest.raises(ConfigError) as raised:
        check_topics(["a.b", "a-b", "c", "A", "B"])
    assert [problem.split(" would")[0] for problem in raised.value.problems] == [
        "topics 'a.b' and 'a-b'",
        "topics 'A' and 'B'",
    ]


def test_the_digest_changes_with_every_rule_and_with_nothing_else() -> None:
    other = {"topic": "u", "format": "raw", "schema": "{ }", "schema_version": "2", "record_bytes_max": 6}
    other |= {"newer_ids": "quarantine", "dedupe": "watermark"}
    assert set(other) == {field.name for field in fields(ParseRules)}
    digests = {replace(RULES, **{name: value}).digest() for name, value in other.items()}
    assert len(digests | {RULES.digest()}) == len(other) + 1
    assert replace(RULES).digest() == RULES.digest()
    # As it lies in tables that were written: a change here stops every batch that was half written before it.
    assert RULES.digest() == "2748cd30e79bd920b2500e8b054277683e9664f36a5083de84932aa0c937c756"


def test_the_classes_of_errors_are_those_that_readers_of_quarantine_know() -> None:
    assert {str(each) for each in ErrorClass} == {"decode", "schema", "header", "too_large"}
