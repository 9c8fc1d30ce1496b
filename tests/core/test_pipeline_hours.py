"""Hours as operators and partitions name them."""

import pytest
from penstock.pipeline.hours import HourRange, hour_of_ms, start_ms


def test_an_hour_is_named_by_its_utc_start() -> None:
    assert hour_of_ms(0) == "1970-01-01-00"
    assert hour_of_ms(3_599_999) == "1970-01-01-00"
    assert start_ms("1970-01-01-01") == 3_600_000


@pytest.mark.parametrize("text", ["1970-01-01", "1970-1-1-1", "1970-01-01-24", "yesterday", "1970-01-01-00 "])
def test_what_is_no_hour_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not an hour of the form YYYY-MM-DD-HH"):
        HourRange.parse(text, None)


def test_both_ends_of_a_range_belong_to_it_and_either_may_be_open() -> None:
    hours = ["2026-01-01-01", "2026-01-01-02", "2026-01-01-03"]
    assert HourRange.parse(None, None) is None
    assert HourRange("2026-01-01-02", "2026-01-01-02").select(hours) == ["2026-01-01-02"]
    assert HourRange("2026-01-01-02").select(reversed(hours)) == hours[1:]
    assert HourRange(None, "2026-01-01-02").select(hours) == hours[:2]


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="are none"):
        HourRange.parse("2026-01-01-02", "2026-01-01-01")
