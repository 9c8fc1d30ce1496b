"""What each format makes of values: good ones, bad ones, empty ones and tombstones."""

import datetime as dt
import decimal
import io
import json
from typing import Any

import fastavro
import msgpack
import pytest
from penstock.config.errors import ConfigError
from penstock.pipeline.formats import READABLE
from penstock.pipeline.formats.choice import choose
from pyspark.sql import SparkSession

DDL = "id long, name string, tags array<string>, at timestamp, of struct<a: int, b: double>"
Found = tuple[Any, str | None, str | None]


def parse(
    spark: SparkSession, name: str, schema: str, values: list[bytes | None], *, writer: str = "delta-rs"
) -> list[Found]:
    rows = list(enumerate(values))
    frame = spark.createDataFrame(rows, f"n int, {READABLE} binary").coalesce(1)
    parsed = choose(name, schema, writer=writer).parse(frame).orderBy("n")
    assert parsed.columns[:2] == ["n", READABLE]
    found = [row.asDict(recursive=True) for row in parsed.collect()]
    return [(row["value"], row["error_class"], row["error"]) for row in found]


def classes(found: list[Found]) -> list[str | None]:
    return [error_class for _, error_class, _ in found]


def test_raw_values_stay_as_they_are(spark: SparkSession) -> None:
    assert parse(spark, "raw", "", [b"\x00\xff", b"", None]) == [
        (b"\x00\xff", None, None),
        (b"", None, None),
        (None, None, None),
    ]


def test_json_objects_become_columns_with_null_for_what_is_absent(spark: SparkSession) -> None:
    good = [
        {"id": 1, "name": "ü", "tags": ["a", None], "at": "2026-11-22T12:00:00Z", "of": {"a": 5, "b": 0.5}},
        {"id": None, "more": {"not": "declared"}},
        {},
    ]
    found = parse(spark, "json", DDL, [json.dumps(each).encode() for each in good] + [None, b' {"id": 2}\n'])
    assert classes(found) == [None] * 5
    first = found[0][0]
    assert (first["id"], first["name"], first["tags"], first["of"]) == (1, "ü", ["a", None], {"a": 5, "b": 0.5})
    assert first["at"].timestamp() == dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC).timestamp()
    assert set(found[1][0].values()) == {None} == set(found[2][0].values())
    assert found[3] == (None, None, None)
    assert found[4][0]["id"] == 2


JSON_BAD = [
    (b"", "decode"),
    (b"   ", "decode"),
    (b"nonsense", "decode"),
    (b'{"id": 1', "decode"),
    (b'{"id": 1} and more', "decode"),
    (b'{"id": 1}{"id": 2}', "decode"),
    (b'{"id": 1}, {"id": 2}', "decode"),
    # Ends of something larger: what is put around a value to read it must not be ended by the value.
    (b'{"id": 1}] and more', "decode"),
    (b'{"id": 1}]} and more', "decode"),
    (b'{"id": 1}, {"id": 2}]}', "decode"),
    (b'{"id": 1}], "next": [1', "decode"),
    (b'{"id": tru}', "decode"),
    (b'\x00{"id": 1}', "decode"),
    (b'{"name": "\xff"}', "decode"),
    (b"null", "schema"),
    (b"5", "schema"),
    (b'[{"id": 1}]', "schema"),
    (b'[{"id": 1}, {"id": 2}]', "schema"),
    (b'{"id": "x"}', "schema"),
    (b'{"id": 1.5}', "schema"),
    (b'{"id": 99999999999999999999}', "schema"),
    (b'{"of": {"a": "x"}}', "schema"),
    (b'{"of": 5}', "schema"),
    (b'{"at": "yesterday"}', "schema"),
]


def test_json_that_is_broken_or_does_not_fit_is_named(spark: SparkSession) -> None:
    found = parse(spark, "json", DDL, [value for value, _ in JSON_BAD])
    assert list(zip([value for value, _ in JSON_BAD], classes(found), strict=True)) == JSON_BAD
    assert all(said for _, _, said in found)


def test_fields_declared_not_null_must_be_there(spark: SparkSession) -> None:
    ddl = "id long NOT NULL, of struct<a: int NOT NULL>"
    good = [{"id": 1}, {"id": 1, "of": {"a": 2}}]
    bad = [({}, "id"), ({"id": None}, "id"), ({"id": 1, "of": {}}, "of.a")]
    for name, encode in (("json", lambda each: json.dumps(each).encode()), ("msgpack", msgpack.packb)):
        found = parse(spark, name, ddl, [*map(encode, good), None, *(encode(each) for each, _ in bad)])
        assert classes(found) == [None, None, None, "schema", "schema", "schema"], name
        assert [said for _, _, said in found[3:]] == [f"{field} is missing, and must not be null" for _, field in bad]


def test_msgpack_maps_become_columns(spark: SparkSession) -> None:
    at = dt.datetime(2026, 11, 22, 12, 0, 0, 5, tzinfo=dt.UTC)
    ddl = f"{DDL}, m map<string, long>, d date, n decimal(10, 2), f float, b binary, y boolean"
    full = {
        "id": -(2**63),
        "name": "ü",
        "tags": ["a", None],
        "at": msgpack.Timestamp.from_datetime(at),
        "of": {"a": 5, "b": 1},
    }
    full |= {"m": {"x": 1}, "d": 20_000, "n": 7, "f": 0.5, "b": b"\xff", "y": True, "extra": [1], 5: 6}
    found = parse(spark, "msgpack", ddl, [msgpack.packb(full), msgpack.packb({}), None])
    assert classes(found) == [None] * 3
    first = found[0][0]
    assert first.pop("at").timestamp() == pytest.approx(at.timestamp(), abs=1e-6)
    assert first == {
        "id": -(2**63), "name": "ü", "tags": ["a", None], "of": {"a": 5, "b": 1.0}, "m": {"x": 1},
        "d": dt.date(1970, 1, 1) + dt.timedelta(days=20_000), "n": decimal.Decimal(7), "f": 0.5, "b": b"\xff", "y": True,
    }  # fmt: skip
    assert set(found[1][0].values()) == {None}
    assert found[2] == (None, None, None)


MSGPACK_BAD = [
    (b"", "decode"),
    (b"\xc1", "decode"),
    (msgpack.packb({"id": 1})[:-1], "decode"),
    (msgpack.packb({"id": 1}) + b"\x00", "decode"),
    (b"\x81\xa2id\xa1\xff", "decode"),
    (b"\x91" * 5_000, "decode"),
    (msgpack.packb(None), "schema"),
    (msgpack.packb([("id", 1)]), "schema"),
    (msgpack.packb(5), "schema"),
    (msgpack.packb({"id": 1.5}), "schema"),
    (msgpack.packb({"id": True}), "schema"),
    (msgpack.packb({"id": "1"}), "schema"),
    (msgpack.packb({"id": 2**64 - 1}), "schema"),
    (msgpack.packb({"name": b"bytes"}), "schema"),
    (msgpack.packb({"tags": "abc"}), "schema"),
    (msgpack.packb({"tags": [1]}), "schema"),
    (msgpack.packb({"at": 1.5}), "schema"),
    (msgpack.packb({"of": {"a": 2**40}}), "schema"),
    (msgpack.packb({"of": {"b": True}}), "schema"),
    (msgpack.packb({"id": msgpack.ExtType(5, b"x")}), "schema"),
]


def test_msgpack_that_is_broken_or_does_not_fit_is_named_and_spares_its_neighbours(spark: SparkSession) -> None:
    good = msgpack.packb({"id": 1})
    values = [each for value, _ in MSGPACK_BAD for each in (good, value)]
    found = parse(spark, "msgpack", DDL, values)
    assert [value["id"] for value, _, _ in found[::2]] == [1] * len(MSGPACK_BAD)
    assert [error_class for _, error_class, _ in found[::2]] == [None] * len(MSGPACK_BAD)
    of_bad = list(zip([value for value, _ in MSGPACK_BAD], classes(found[1::2]), strict=True))
    assert of_bad == MSGPACK_BAD
    sentences = [said for _, _, said in found[1::2]]
    assert sentences[9] == "id: int64 is wanted, not float"
    assert sentences[-2] == "of.b: double is wanted, not bool"
    assert all(said and len(said.encode()) <= 1024 for said in sentences)


AVRO = {
    "type": "record",
    "name": "Click",
    "namespace": "x",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "number", "type": ["null", "int", "long"]},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "float"}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "boolean"}]}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
    ],
}
CLICK = {
    "id": 5, "name": None, "kind": "A", "again": "B", "at": dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC), "day": dt.date(2026, 11, 22),
    "price": decimal.Decimal("1.25"), "number": 2**40, "tags": ["a", None], "counts": {"x": 0.5}, "inner": {"x": True},
    "uuid": "0c4e6f52-3d9f-4be3-8f3a-3c8f2e7c1a11", "time": dt.time(1), "hash": b"\x00\x01\x02\x03",
}  # fmt: skip


def avro(record: dict[str, Any], *, schema: Any = AVRO, prefix: bytes = b"\x00\x00\x00\x00\x07") -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return prefix + stream.getvalue()


def test_avro_records_become_columns_behind_magic_and_schema_id(spark: SparkSession) -> None:
    found = parse(
        spark, "avro", json.dumps(AVRO), [avro(CLICK), None, avro({**CLICK, "name": "n", "price": None, "number": 3})]
    )
    assert classes(found) == [None] * 3
    first = dict(found[0][0])
    assert first.pop("at").timestamp() == CLICK["at"].timestamp()
    assert first == {**{name: value for name, value in CLICK.items() if name != "at"}, "time": 3_600_000}
    assert found[1] == (None, None, None)
    assert (found[2][0]["name"], found[2][0]["price"], found[2][0]["number"]) == ("n", None, 3)


def test_avro_that_is_broken_is_named_and_spares_its_neighbours(spark: SparkSession) -> None:
    whole = avro(CLICK)
    bad = [
        b"",
        b"\x00\x00\x00",
        whole[:-1],
        whole + b"\x00",
        b"\x01" + whole[1:],
        whole[5:],
        whole[:5],
        b"\x00" * 5 + b"\xff" * 40,
    ]
    found = parse(spark, "avro", json.dumps(AVRO), [whole, *bad, whole])
    assert classes(found) == [None, *["decode"] * len(bad), None]
    assert [value and value["id"] for value, _, _ in found] == [5, *[None] * len(bad), 5]


REFUSED = [
    ("json", "id long, ID string", "several fields 'id'"),
    ("json", "id interval day to second", "has no column type here"),
    ("json", "this is no ddl at all", "schema:"),
    ("json", "m map<int, string>", "keys of maps are strings"),
    ("msgpack", "", "schema"),
    ("variant", "", 'needs writer = "delta-jvm"'),
    ("avro", "{", "not JSON"),
    ("avro", '"string"', "not one of a record"),
    ("avro", '{"type": "record", "name": "R", "fields": []}', "without fields"),
    ("avro", '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}', "contains itself"),
    (
        "avro",
        '{"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}]}',
        "union of several types",
    ),
    ("avro", '{"type": "record", "name": "R", "fields": [{"name": "u", "type": "Missing"}]}', "no type 'Missing'"),
    ("xml", "", "there are raw, json, variant, msgpack and avro"),
]


@pytest.mark.parametrize(("name", "schema", "said"), REFUSED)
def test_schemas_that_no_table_can_hold_are_refused_at_the_start(
    spark: SparkSession, name: str, schema: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        _ = choose(name, schema, writer="delta-rs")


def test_two_spellings_of_one_schema_are_one_schema(spark: SparkSession) -> None:
    one, other = (
        choose("json", text, writer="delta-rs") for text in ("id long,name string", "id  BIGINT , name STRING")
    )
    assert one.schema_text == other.schema_text
    assert one.schema_text != choose("json", "id long, name string not null", writer="delta-rs").schema_text
    assert (
        choose("avro", json.dumps(AVRO), writer="x").schema_text
        == choose("avro", json.dumps(AVRO, indent=3), writer="x").schema_text
    )


def test_any_json_value_becomes_a_variant_where_the_writer_takes_it(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(n, value) for n, value in enumerate(VARIANTS)], f"n int, {READABLE} binary"
    ).coalesce(1)
    parsed = choose("variant", "", writer="delta-jvm").parse(frame).orderBy("n")
    found = parsed.selectExpr("to_json(value) AS value", "error_class").collect()
    assert [(None if row.error_class else row.value, row.error_class) for row in found] == [
        ('{"a":[1]}', None), ("5", None), ("null", None), ("[1,2]", None), (None, None),
        (None, "decode"), (None, "decode"), (None, "decode"), (None, "decode"),
    ]  # fmt: skip


VARIANTS = [b'{"a": [1]}', b"5", b"null", b"[1, 2]", None, b"", b"{", b'{"a": 1} {"a": 2}', b'"\xff"']
