"""Compares the bits of landed ordinals in one bucket of 32,768 with the audit's ranges and holes.

A bucket's bits come as words of 64: ordinal `base + n` is bit `n % 64` of word `n // 64`; words without bits are left
out. The work is linear in the bits, whatever the number of ranges. A full bucket is not examined bit by bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

BITS: Final = 32_768
WORD: Final = 64
WORDS: Final = BITS // WORD
Bits = npt.NDArray[np.bool_]
_FULL: Final = np.ones(BITS, dtype=np.bool_)
_EMPTY: Final = np.zeros(BITS, dtype=np.bool_)


class BitmapSpan(NamedTuple):
    """Ordinals [first, end)."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """Counts for the part of one range that is in the bucket."""

    expected: int
    """Ordinals of the range that are in no hole."""
    distinct: int
    """Expected ordinals that have landed."""
    recovered: int
    """Landed ordinals that are in a hole."""
    missing: tuple[BitmapSpan, ...]
    """Expected ordinals that have not landed."""


@dataclass(frozen=True, slots=True)
class BucketComparison:
    """Result for one bucket."""

    ranges: tuple[RangeCounts, ...]
    strays: tuple[BitmapSpan, ...]
    """Landed ordinals that are in no range."""


def first_ordinal(bucket: int) -> int:
    """The first ordinal of a bucket, by the numbering of `bitmap_bucket_number(ordinal + 1)`."""
    return (bucket - 1) * BITS


def landed_bits(places: npt.NDArray[np.int64], words: npt.NDArray[np.int64], count: int) -> Bits:
    """Return the bits of a bucket with `count` bits set, from its words at these positions. A full or empty bucket
    needs no words."""
    if not len(words):
        assert count in {0, BITS}, "words are only left out of buckets that are full or empty"
        return _FULL if count else _EMPTY
    whole = np.zeros(WORDS, dtype="<i8")
    whole[places] = words
    return np.unpackbits(whole.view(np.uint8), bitorder="little").view(np.bool_)


def compare_bucket(
    bits: Bits, base: int, ranges: Sequence[BitmapSpan], holes: Sequence[BitmapSpan]
) -> BucketComparison:
    """Compare a bucket with ranges and holes. `base`: the bucket's first ordinal. Only the parts of ranges and holes in
    the bucket count; both may overlap."""
    end = base + BITS
    parts = [_clipped(part, base, end) for part in ranges]
    gaps = [part for part in (_clipped(hole, base, end) for hole in holes) if part.first < part.end]
    if bits is _FULL and not gaps:
        return BucketComparison(tuple(_full_range_counts(part) for part in parts), tuple(_outside(parts, base)))
    known = _covered(parts)
    hole = _covered(gaps) & known
    expected = known & ~hole
    missing = expected & ~bits
    sums = [_sums(each) for each in (expected, expected & bits, hole & bits)]
    counted = tuple(_range_counts(part, sums, missing, base) for part in parts)
    return BucketComparison(counted, tuple(_runs(bits & ~known, base)))


def _clipped(span: BitmapSpan, base: int, end: int) -> BitmapSpan:
    """Return the span relative to the bucket; empty when it is outside."""
    first = min(max(span.first, base), end) - base
    return BitmapSpan(first, max(min(span.end, end) - base, first))


def _full_range_counts(part: BitmapSpan) -> RangeCounts:
    count = part.end - part.first
    return RangeCounts(count, count, 0, ())


def _outside(parts: Sequence[BitmapSpan], base: int) -> Iterator[BitmapSpan]:
    """Yield the spans of the bucket that no part covers."""
    reached = 0
    for first, end in sorted(parts):
        if first > reached:
            yield BitmapSpan(base + reached, base + first)
        reached = max(reached, end)
    if reached < BITS:
        yield BitmapSpan(base + reached, base + BITS)


def _covered(parts: Sequence[BitmapSpan]) -> Bits:
    """Mark the positions that at least one part covers."""
    steps = np.zeros(BITS + 1, dtype=np.int32)
    if parts:
        np.add.at(steps, [part.first for part in parts], 1)
        np.add.at(steps, [part.end for part in parts], -1)
    return np.cumsum(steps[:BITS]) > 0


def _sums(bits: Bits) -> npt.NDArray[np.int64]:
    """Prefix sums. Entry n: number of bits set below position n."""
    sums = np.zeros(BITS + 1, dtype=np.int64)
    _ = np.cumsum(bits, out=sums[1:])
    return sums


def _range_counts(part: BitmapSpan, sums: Sequence[npt.NDArray[np.int64]], missing: Bits, base: int) -> RangeCounts:
    expected, distinct, recovered = (int(each[part.end] - each[part.first]) for each in sums)
    runs = _runs(missing[part.first : part.end], base + part.first) if expected > distinct else ()
    return RangeCounts(expected, distinct, recovered, tuple(runs))


def _runs(bits: Bits, base: int) -> Iterator[BitmapSpan]:
    """Yield the runs of set bits."""
    padded = np.zeros(len(bits) + 2, dtype=np.int8)
    padded[1:-1] = bits
    edges = np.flatnonzero(np.diff(padded))
    for first, end in edges.reshape(-1, 2).tolist():
        yield BitmapSpan(base + first, base + end)
