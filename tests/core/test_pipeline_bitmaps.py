"""One bucket of the audit against sets."""

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.pipeline.audit import bitmaps
from penstock.pipeline.audit.bitmaps import BITS, BitmapSpan, RangeCounts

BASE = 5 * BITS
# Small runs near both ends of the bucket and of a word, where mistakes by one live, and some that reach beyond.
PLACES = st.one_of(st.integers(-3, 12), st.integers(60, 66), st.integers(BITS - 12, BITS + 3)).map(
    lambda place: BASE + place
)
SPANS = st.lists(
    st.tuples(PLACES, PLACES).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: BitmapSpan(*pair)), max_size=5
)


Words = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
NO_WORDS: Words = (np.array([], dtype=np.int64), np.array([], dtype=np.int64))


def words(ordinals: set[int]) -> Words:
    """As Spark makes them: signed, in any order, none without bits."""
    found: dict[int, int] = {}
    for ordinal in ordinals:
        place, bit = divmod(ordinal - BASE, 64)
        found[place] = found.get(place, 0) | 1 << bit
    signed = [each - (1 << 64 if each >> 63 else 0) for each in found.values()]
    return np.array(list(found), dtype=np.int64), np.array(signed, dtype=np.int64)


def members(spans: list[BitmapSpan]) -> set[int]:
    return {ordinal for span in spans for ordinal in range(max(span.first, BASE), min(span.end, BASE + BITS))}


@settings(deadline=None)
@given(st.sets(PLACES.filter(lambda place: BASE <= place < BASE + BITS)), SPANS, SPANS)
def test_counts_and_names_are_those_of_sets(
    landed: set[int], ranges: list[BitmapSpan], holes: list[BitmapSpan]
) -> None:
    answer = bitmaps.compare_bucket(bitmaps.landed_bits(*words(landed), len(landed)), BASE, ranges, holes)
    for span, counted in zip(ranges, answer.ranges, strict=True):
        own = members([span])
        expected = own - members(holes)
        assert counted.expected == len(expected)
        assert counted.distinct == len(expected & landed)
        assert counted.recovered == len(own & members(holes) & landed)
        assert members(list(counted.missing)) == expected - landed
    assert members(list(answer.strays)) == landed - members(ranges)


@settings(deadline=None)
@given(SPANS, SPANS)
def test_a_full_bucket_needs_no_words(ranges: list[BitmapSpan], holes: list[BitmapSpan]) -> None:
    whole = np.ones(BITS, dtype=np.bool_)
    short = bitmaps.compare_bucket(bitmaps.landed_bits(*NO_WORDS, BITS), BASE, ranges, holes)
    long = bitmaps.compare_bucket(whole, BASE, ranges, holes)
    assert short.ranges == long.ranges
    assert members(list(short.strays)) == members(list(long.strays))


def test_an_empty_bucket_needs_no_words_either() -> None:
    answer = bitmaps.compare_bucket(bitmaps.landed_bits(*NO_WORDS, 0), BASE, [BitmapSpan(BASE + 3, BASE + 9)], [])
    assert answer.ranges == (RangeCounts(6, 0, 0, (BitmapSpan(BASE + 3, BASE + 9),)),)


def test_buckets_are_numbered_from_one() -> None:
    assert [bitmaps.first_ordinal(bucket) for bucket in (1, 2)] == [0, BITS]
