"""Compares the audit's ranges with landed ids, bucket by bucket: finds the landed ids of a range, the missing ones, and
ids in no range."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from .bitmaps import BitmapSpan, Bits, compare_bucket, first_ordinal, landed_bits
from .columns import ID, by_bucket

RANGE: Final = 0
HOLE: Final = 1
COUNTED: Final = "range"
MISSING: Final = "missing"
STRAY: Final = "stray"
_PIECE: Final = ("piece", "first", "end", "minute", "settled_end", "offset_end", "sent_at", "wanted")
ARROW: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("incarnation", pa.string()),
        ("origin", pa.int32()),
        *((name, pa.int64()) for name in ("bucket", "minute", "first", "end", "expected", "distinct", "recovered")),
        *((name, pa.int64()) for name in ("settled_end", "offset_end", "sent_at")),
    ]
)
JUDGED: Final = from_arrow_schema(ARROW)
"""`range`: the part of a range in one bucket, with its counts. `missing`: expected ids that have not landed. `stray`:
landed ids in no range. `first` and `end` are those of the row; the last three columns are the range's."""


def pieces(ranges: DataFrame, holes: DataFrame) -> DataFrame:
    """Split ranges and holes by bucket. `ranges` has the column `wanted`: only these ranges are judged; the others just
    make their ids known."""
    kept = [*ID, "bucket", *_PIECE]
    whole = by_bucket(ranges).withColumn("piece", F.lit(RANGE))
    lacking = {name: F.lit(None).cast("bigint") for name in ("settled_end", "offset_end")}
    gaps = by_bucket(holes).withColumns({"piece": F.lit(HOLE), "wanted": F.lit(False), **lacking})
    return whole.select(*kept).unionByName(gaps.select(*kept))


def buckets_to_compare(cut: DataFrame, landed: DataFrame) -> DataFrame:
    """Join `pieces` with buckets of landed ids, and keep what must be judged."""
    books = cut.groupBy(*ID, "bucket").agg(
        F.collect_list(F.struct(*_PIECE)).alias("pieces"), F.max("wanted").alias("wanted")
    )
    both = books.join(landed, [*ID, "bucket"], "full_outer").where(F.col("wanted") | F.col("ids").isNotNull())
    return both.select(*ID, "bucket", "ids", "words", "pieces")


def compare_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn batches of buckets into batches of `JUDGED`."""
    for batch in batches:
        found = _ComparisonRows()
        columns = [batch.column(name).to_pylist() for name in (*ID, "bucket", "ids")]
        words, spans = _words_of(batch.column("words")), _pieces_of(batch.column("pieces"))
        for topic, incarnation, origin, bucket, ids in zip(*columns, strict=True):
            bits = landed_bits(*next(words), ids or 0)
            found.add_bucket((topic, incarnation, origin, bucket), bits, next(spans))
        yield found.batch()


class _Piece(NamedTuple):
    """A range or a hole, with the fields of `_PIECE`."""

    piece: int
    first: int
    end: int
    minute: int
    settled_end: int
    offset_end: int
    sent_at: int
    wanted: bool


_Words = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _words_of(column: "pa.ListArray[Any]") -> Iterator[_Words]:
    """Yield the words of each row: their positions, and their bits."""
    flat = column.flatten()
    places, bits = (flat.field(place).to_numpy(zero_copy_only=False) for place in (0, 1))
    for row in _slices_of(column):
        yield places[row], bits[row]


def _pieces_of(column: "pa.ListArray[Any]") -> Iterator[list[_Piece]]:
    """Yield the pieces of each row. Converting by field is four times cheaper than converting structs one by one."""
    flat = column.flatten()
    fields = [flat.field(place).to_pylist() for place in range(len(_PIECE))]
    for row in _slices_of(column):
        yield [_Piece(*each) for each in zip(*(field[row] for field in fields), strict=True)]


def _slices_of(column: "pa.ListArray[Any]") -> Iterator[slice]:
    """Yield the place of each row's items in the flattened column."""
    start = 0
    for count in column.value_lengths().to_pylist():
        yield slice(start, start + (count or 0))
        start += count or 0


class _ComparisonRows:
    """Collects the result rows of a batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add_bucket(self, place: tuple[str, str, int, int], bits: Bits, found: list[_Piece]) -> None:
        ranges = [piece for piece in found if piece.piece == RANGE]
        answer = compare_bucket(
            bits,
            first_ordinal(place[-1]),
            [BitmapSpan(piece.first, piece.end) for piece in ranges],
            [BitmapSpan(piece.first, piece.end) for piece in found if piece.piece == HOLE],
        )
        for piece, counted in zip(ranges, answer.ranges, strict=True):
            if not piece.wanted:
                continue
            facts = (piece.settled_end, piece.offset_end, piece.sent_at)
            counts = (counted.expected, counted.distinct, counted.recovered)
            self._rows.append((COUNTED, *place, piece.minute, piece.first, piece.end, *counts, *facts))
            for first, end in counted.missing:
                self._rows.append((MISSING, *place, piece.minute, first, end, end - first, 0, 0, *facts))
        for first, end in answer.strays:
            self._rows.append((STRAY, *place, None, first, end, None, None, None, None, None, None))

    def batch(self) -> pa.RecordBatch:
        columns = list(zip(*self._rows, strict=True)) or [()] * len(ARROW)
        return pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for values, kind in zip(columns, ARROW.types, strict=True)], schema=ARROW
        )
