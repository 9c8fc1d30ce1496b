"""Windows of a metric: what a mean, a maximum and a rate look back on. Expected figures are those of Kafka's own rules."""

import math

import pytest
from penstock.producer.telemetry.windows import SampledSensor, SampleWindows

TWO = SampleWindows(30.0, 2)


def test_before_the_first_value_there_is_no_mean_and_no_maximum_and_rates_are_0() -> None:
    sampled = SampledSensor(TWO)
    assert math.isnan(sampled.average(100.0))
    assert math.isnan(sampled.largest(100.0))
    assert (sampled.rate(100.0), sampled.frequency(100.0), sampled.total, sampled.count) == (0.0, 0.0, 0.0, 0)


def test_mean_and_maximum_are_those_of_the_values() -> None:
    sampled = SampledSensor(TWO)
    for value in (400, 100, 200, 300):
        sampled.add(value, 100.0)
    assert (sampled.average(100.0), sampled.largest(100.0)) == (250.0, 400.0)


def test_the_first_values_count_as_if_the_windows_before_had_been_empty() -> None:
    sampled = SampledSensor(TWO)
    sampled.add(60, 100.0)
    assert sampled.rate(100.0) == 60 / 30
    assert sampled.rate(110.0) == 60 / 40
    assert sampled.frequency(110.0) == 1 / 40


def test_a_rate_is_over_the_time_since_the_oldest_sample_began() -> None:
    sampled = SampledSensor(TWO)
    for second in range(0, 60, 10):
        sampled.add(10, 100.0 + second)
    assert sampled.rate(160.0) == 60 / 60
    assert sampled.average(160.0) == 10


def test_a_sample_stays_as_long_as_its_last_value_lies_in_the_windows() -> None:
    sampled = SampledSensor(TWO)
    sampled.add(5, 100.0)
    sampled.add(7, 129.0)
    sampled.add(1, 131.0)
    assert sampled.largest(188.9) == 7
    assert sampled.rate(188.9) == pytest.approx(13 / 88.9)
    assert sampled.largest(189.0) == 1
    assert sampled.rate(189.0) == pytest.approx(1 / 58.0)
    assert math.isnan(sampled.largest(191.0))
    assert sampled.rate(191.0) == 0.0
    assert (sampled.total, sampled.count) == (13, 3)


def test_after_silence_a_value_is_no_burst() -> None:
    sampled = SampledSensor(TWO)
    sampled.add(1, 100.0)
    sampled.add(3, 1000.0)
    assert sampled.rate(1001.0) == 3 / 31


def test_one_window_alone_has_a_rate_at_once() -> None:
    sampled = SampledSensor(SampleWindows(1.0, 1))
    sampled.add(4, 100.0)
    assert sampled.rate(100.5) == 8.0
    assert sampled.rate(100.0) == 4 / 0.001


def test_samples_beyond_the_windows_are_forgotten() -> None:
    sampled = SampledSensor(SampleWindows(1.0, 3))
    for second in range(100):
        sampled.add(second, 100.0 + second)
    assert sampled.average(199.5) == pytest.approx((97 + 98 + 99) / 3)
    assert sampled.total == sum(range(100))


def test_one_sample_more_than_there_are_windows_is_kept_as_part_of_it_may_lie_in_them() -> None:
    sampled = SampledSensor(TWO)
    for value, at in ((3, 100.0), (7, 129.0), (1, 131.0), (2, 162.0)):
        sampled.add(value, at)
    assert sampled.largest(165.0) == 7
    assert sampled.average(165.0) == (3 + 7 + 1 + 2) / 4


def test_a_window_begins_with_its_first_value_after_silence_too() -> None:
    sampled = SampledSensor(TWO)
    for value, at in ((5, 100.0), (9, 1000.0), (1, 1029.0)):
        sampled.add(value, at)
    assert sampled.largest(1070.0) == 9
