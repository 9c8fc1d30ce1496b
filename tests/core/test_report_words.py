"""How the report says numbers: never better than they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.pipeline.report import wording as words


@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_only_what_is_whole_is_called_100_percent(whole: int, part: int) -> None:
    told = words.share(min(part, whole), whole)
    assert (told == "100 %") == (part >= whole)
    assert (told == "0 %") == (part == 0)


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [
        (1_999_981, 1_999_988, "99.9996 %"),
        (999, 1_000, "99.9 %"),
        (1, 2, "50.0 %"),
        (1, 3_000_000, "0.00003 %"),
        (10**14 - 1, 10**14, "99.9999999999 %"),
        (0, 0, "\N{EN DASH}"),
    ],
)
def test_a_share_has_the_decimals_that_show_what_is_missing(part: int, whole: int, told: str) -> None:
    assert words.share(part, whole) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "\N{EN DASH}"), (0.0031, "3 ms"), (1.0, "1 s"), (12.34, "12.3 s"), (59.96, "1 min"), (125, "2 min 5 s"),
        (7_200, "2 h"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_spans_are_told_in_two_units_at_most(value: float | None, told: str) -> None:
    assert words.seconds(value) == told


def test_moments_no_calendar_has_are_told_as_they_are() -> None:
    assert words.moment(1_784_257_200_000) == "2026-07-17 03:00:00 UTC"
    assert words.moment(10**18) == f"{10**18} ms"


def test_hours_have_minutes_and_other_texts_have_none() -> None:
    assert words.hour_text("2026-07-17-03") == "2026-07-17 03:00"
    assert words.hour_minute("2026-07-17-03") == 1_784_257_200 // 60
    assert words.hour_text("no-hour") == "no-hour"
    assert words.hour_minute("2026-07-17-25") is None


def test_one_id_is_written_whole_and_a_range_by_its_ends() -> None:
    assert words.record_ids("3f2a9c000000", 3, 17, 18) == "3f2a9c000000-3-17"
    assert words.record_ids("3f2a9c000000", 3, 17, 21) == "3f2a9c000000-3-17 … 20"


def test_lists_end_with_how_many_more() -> None:
    assert words.join_names(["a"]) == "a"
    assert words.join_names(["a", "b", "c"]) == "a, b and c"
    assert words.join_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert words.distinct(["b", "", "a", "b"]) == ["a", "b"]


@given(st.text())
def test_what_cannot_be_seen_is_written_out_and_what_can_be_stays(text: str) -> None:
    shown = words.visible(text)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert shown == text or not text.isprintable()
