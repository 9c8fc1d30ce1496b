"""The judge of tables finds what was planted: rows missing, doubled, moved, changed, filed under another hour."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from penstock.wire.record_ids import RecordId

from tests.harness import bronze
from tests.harness.bronze import OFFSET_BITS, Judgement, Place

TOPIC = "a.Topic-1"
INCARNATION = "00c0ffee0123"
START = datetime(2026, 3, 1, 10, 58, tzinfo=UTC)
RECORDS = 60
STAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("incarnation", pa.string()),
        ("origin", pa.int32()),
        ("ordinal", pa.int64()),
        ("accept_ts", STAMP),
        ("kafka_ts", STAMP),
        ("hour", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def row(number: int) -> dict[str, Any]:
    """The `number`-th record, dealt to three partitions; every tenth is foreign. The hour ends within them."""
    partition, offset = number % 3, number // 3
    at = START + timedelta(seconds=10 * number)
    own = number % 10 != 0
    return {
        "topic": TOPIC,
        "partition": partition,
        "offset": offset,
        "incarnation": INCARNATION if own else None,
        "origin": partition if own else None,
        "ordinal": offset if own else None,
        "accept_ts": at if own else None,
        "kafka_ts": at,
        "hour": f"{at:%Y-%m-%d-%H}",
        "key": b"key" if number % 2 else None,
        "value": b"value-%d" % number,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}] if number % 4 == 0 else [],
    }


def seen() -> pa.Table:
    rows = [row(number) for number in range(RECORDS)]
    places = [each["partition"] << OFFSET_BITS | each["offset"] for each in rows]
    ids = [f"{INCARNATION}-{each['origin']}-{each['ordinal']}" if each["incarnation"] else None for each in rows]
    return pa.table({"place": pa.array(places, pa.int64()), "id": pa.array(ids, pa.string())})


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Twelve rows in quarantine, the others in bronze, in several files."""
    for first in range(0, RECORDS, 12):
        name = bronze.QUARANTINE if first == 24 else bronze.name_of(TOPIC)
        append(tmp_path, name, [row(number) for number in range(first, first + 12)])
    return tmp_path


def append(tables: Path, name: str, rows: list[dict[str, Any]]) -> None:
    write_deltalake(str(tables / name), pa.Table.from_pylist(rows, SCHEMA), mode="append", partition_by=["hour"])


def judged(tables: Path) -> Judgement:
    return bronze.compare(seen(), bronze.landed(tables, TOPIC))


def place(number: int) -> Place:
    return Place(number % 3, number // 3)


def test_each_record_in_exactly_one_row_of_either_table_is_right(tables: Path) -> None:
    found = judged(tables)
    found.assert_exact()
    assert (found.records, found.rows, found.quarantined) == (RECORDS, RECORDS, 12)


def test_rows_of_other_topics_do_not_count(tables: Path) -> None:
    append(tables, bronze.QUARANTINE, [row(3) | {"topic": "another"}])
    judged(tables).assert_exact()


def test_a_row_behind_the_tables_back_gone_is_missing(tables: Path) -> None:
    deleted = DeltaTable(str(tables / bronze.name_of(TOPIC))).delete('partition = 1 and "offset" = 2')
    assert deleted["num_deleted_rows"] == 1
    found = judged(tables)
    assert found == Judgement(RECORDS, RECORDS - 1, 12, missing=[Place(1, 2)])
    with pytest.raises(AssertionError, match="missing: 1"):
        found.assert_exact()


def replace(tables: Path, number: int, **changes: object) -> None:
    """Take a row away and write it again, changed."""
    predicate = f'partition = {number % 3} and "offset" = {number // 3}'
    _ = DeltaTable(str(tables / bronze.name_of(TOPIC))).delete(predicate)
    append(tables, bronze.name_of(TOPIC), [row(number) | changes])


@pytest.mark.parametrize(
    ("plant", "wrong"),
    [
        (lambda tables: append(tables, bronze.name_of(TOPIC), [row(5)]), {"doubled": [place(5)]}),
        (lambda tables: append(tables, bronze.QUARANTINE, [row(7), row(8)]), {"doubled": [place(7), place(8)]}),
        (lambda tables: replace(tables, 9, offset=999), {"missing": [place(9)], "strange": [Place(0, 999)]}),
        (lambda tables: replace(tables, 11, ordinal=999), {"changed": [place(11)]}),
        (
            lambda tables: replace(tables, 12, incarnation=None, origin=None, ordinal=None, accept_ts=None),
            {"changed": [place(12)]},
        ),
        (lambda tables: replace(tables, 20, incarnation=INCARNATION, origin=1, ordinal=1), {"changed": [place(20)]}),
        (lambda tables: replace(tables, 13, hour="2026-03-01-09"), {"misfiled": [place(13)]}),
    ],
    ids=["doubled in one table", "in both tables", "moved", "renumbered", "unnamed", "named", "misfiled"],
)
def test_what_was_planted_is_found(tables: Path, plant: Callable[[Path], None], wrong: dict[str, list[Place]]) -> None:
    plant(tables)
    found = judged(tables)
    names = ("missing", "doubled", "strange", "changed", "misfiled")
    assert {name: places for name in names if (places := getattr(found, name))} == wrong
    with pytest.raises(AssertionError):
        found.assert_exact()


def test_an_empty_table_misses_all(tmp_path: Path) -> None:
    assert len(judged(tmp_path).missing) == RECORDS


def test_rows_come_back_as_the_records_they_were(tables: Path) -> None:
    found = list(bronze.found_in(tables, TOPIC))
    assert len(found) == RECORDS - 12
    assert [(each.partition, each.offset) for each in found] == sorted((each.partition, each.offset) for each in found)
    for each in found:
        expected = row(each.offset * 3 + each.partition)
        assert (each.key, each.value) == (expected["key"], expected["value"])
        assert each.headers == tuple((header["key"], header["value"]) for header in expected["headers"])
        assert each.timestamp_ms == round(expected["kafka_ts"].timestamp() * 1000)


def test_a_header_is_read_as_it_was_written() -> None:
    name = RecordId(0x0123456789AB, 70_000, 1 << 50, 1_772_000_000_123)
    assert bronze.id_text(name.pack()) == name.text == "0123456789ab-70000-1125899906842624"


def test_ids_that_come_twice_and_numbers_that_nobody_has_are_told() -> None:
    ids = ["a-0-0", "a-0-1", None, "a-0-3", "a-0-1", "b-0-0", "a-1-0", "a-0-1", None, "a-0-5"]
    assert bronze.twice(ids) == {"a-0-1": 3}
    assert bronze.unnumbered(ids) == {"a-0": [2, 4]}
