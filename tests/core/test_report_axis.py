"""Minutes laid into columns: nothing is lost on the way, and there are never more columns than there is room."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.pipeline.report.charts import level, ticks
from penstock.pipeline.report.data import MinutePoint, Status
from penstock.pipeline.report.time_axis import make_axis, sum_by_column, total

FAR = 10**9
"""Minutes; some 1,900 years."""

points = st.lists(
    st.builds(
        MinutePoint,
        minute=st.one_of(st.integers(29_000_000, 29_010_000), st.integers(0, FAR)),
        expected=st.integers(1, 1_000),
        distinct=st.integers(0, 1_000),
        lost=st.integers(0, 3),
    ),
    max_size=60,
)


@given(points, st.integers(8, 300))
def test_every_minute_is_in_one_column_and_counted_once(given_points: list[MinutePoint], columns_max: int) -> None:
    axis = make_axis([point.minute for point in given_points], columns_max=columns_max)
    assert len(axis.starts) <= columns_max + 2
    assert list(axis.starts) == sorted(set(axis.starts))
    laid = sum_by_column(given_points, axis)
    assert not set(laid) & axis.breaks
    whole = total(laid)
    assert whole.expected == sum(point.expected for point in given_points)
    assert whole.lost == sum(point.lost for point in given_points)


def test_an_hour_is_shown_minute_by_minute() -> None:
    axis = make_axis([30_000_000 + minute for minute in (7, 8, 50)], columns_max=240)
    assert axis.step == 1
    assert len(axis.starts) == 60
    assert axis.breaks == frozenset()


def test_a_date_far_off_becomes_a_column_behind_a_break() -> None:
    near = [29_737_620 + minute for minute in range(120)]
    axis = make_axis([*near, 0], columns_max=240)
    assert axis.step == 1
    assert len(axis.breaks) == 1
    assert axis.column(0) == 0
    assert axis.column(near[0]) == 61
    assert axis.column(10_000) is None


def test_no_minutes_make_an_empty_axis() -> None:
    axis = make_axis([], columns_max=240)
    assert axis.starts == ()
    assert ticks(axis) == ()


def test_points_of_several_minutes_have_room_for_all_of_them() -> None:
    axis = make_axis([29_737_620], columns_max=240, step_minutes=15)
    assert axis.step == 15
    assert len(axis.starts) == 4


@given(st.lists(st.integers(0, 2_000), min_size=1, max_size=30))
def test_labels_stand_apart_and_in_order(hours: list[int]) -> None:
    axis = make_axis([29_737_620 + hour * 60 for hour in hours], columns_max=240)
    places = [tick.place for tick in ticks(axis)]
    assert places == sorted(set(places))
    assert len(places) >= 1


def test_the_worst_of_a_column_is_its_status() -> None:
    axis = make_axis([60], columns_max=10)
    assert axis.step >= 6
    laid = sum_by_column(
        [MinutePoint(60, 9, 9), MinutePoint(61, 9, 8, late=1), MinutePoint(62, 9, 9, duplicated=2)], axis
    )
    assert laid[0].status is Status.DUPLICATED
    assert laid[0].expected == 27


def test_a_host_with_a_hundredth_of_the_load_is_seen_and_told_from_the_greatest() -> None:
    assert level(1_000_000, 1_000_000) == 4
    assert 1 < level(10_000, 1_000_000) < 4
    assert level(0, 1_000_000) == 1
