"""One bucket of the audit against sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from penstock.pipeline.core import bitmaps
from penstock.pipeline.core.bitmaps import BITS, BYTES, Counted, Span

BASE = 5 * BITS
# Small runs near both ends of the bucket, where mistakes by one live, and some that reach beyond it.
PLACES = st.one_of(st.integers(-3, 12), st.integers(BITS - 12, BITS + 3)).map(lambda place: BASE + place)
SPANS = st.lists(
    st.tuples(PLACES, PLACES).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: Span(*pair)), max_size=5
)


def bitmap(ordinals: set[int]) -> bytes:
    """As Spark makes it."""
    found = bytearray(BYTES)
    for ordinal in ordinals:
        place = ordinal - BASE
        found[place // 8] |= 1 << place % 8
    return bytes(found)


def members(spans: list[Span]) -> set[int]:
    return {ordinal for span in spans for ordinal in range(max(span.first, BASE), min(span.end, BASE + BITS))}


@given(st.sets(PLACES.filter(lambda place: BASE <= place < BASE + BITS)), SPANS, SPANS)
def test_counts_and_names_are_those_of_sets(landed: set[int], ranges: list[Span], holes: list[Span]) -> None:
    answer = bitmaps.judge(bitmaps.landed_bits(bitmap(landed), len(landed)), BASE, ranges, holes)
    for span, counted in zip(ranges, answer.ranges, strict=True):
        own = members([span])
        expected = own - members(holes)
        assert counted.expected == len(expected)
        assert counted.distinct == len(expected & landed)
        assert counted.recovered == len(own & members(holes) & landed)
        assert members(list(counted.missing)) == expected - landed
    assert members(list(answer.strays)) == landed - members(ranges)


@given(SPANS, SPANS)
def test_a_full_bucket_needs_no_bitmap(ranges: list[Span], holes: list[Span]) -> None:
    whole = np.ones(BITS, dtype=np.bool_)
    short = bitmaps.judge(bitmaps.landed_bits(None, BITS), BASE, ranges, holes)
    long = bitmaps.judge(whole, BASE, ranges, holes)
    assert short.ranges == long.ranges
    assert members(list(short.strays)) == members(list(long.strays))


def test_an_empty_bucket_needs_no_bitmap_either() -> None:
    answer = bitmaps.judge(bitmaps.landed_bits(None, 0), BASE, [Span(BASE + 3, BASE + 9)], [])
    assert answer.ranges == (Counted(6, 0, 0, (Span(BASE + 3, BASE + 9),)),)


def test_buckets_are_numbered_as_spark_numbers_them() -> None:
    assert [bitmaps.first_ordinal(bucket) for bucket in (1, 2)] == [0, BITS]
