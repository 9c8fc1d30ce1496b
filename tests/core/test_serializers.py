"""Keys and values as bytes: those of Kafka's serializers, and those of functions of the application's."""

import math
import uuid
from collections.abc import Callable
from typing import Any, Final

import pytest
from penstock.api.errors import PenstockError, SerializationError
from penstock.api.records import Headers
from penstock.api.serializers import BoundSerializer, Json, Text

from tests.harness.serialized import SERIALIZED

READ: Final[dict[str, Callable[[str], Any]]] = {
    "boolean": lambda text: text == "true",
    "short": int,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "uuid": uuid.UUID,
    "string": str,
}


def made(serializer: object, value: object, headers: Headers | None = None) -> bytes | None:
    return BoundSerializer(serializer, is_key=False).serialize(
        "topic", value, Headers() if headers is None else headers
    )


@pytest.mark.parametrize(("kind", "text", "recorded"), SERIALIZED)
def test_a_serializer_that_has_a_name_makes_the_bytes_of_kafkas_own(kind: str, text: str, recorded: str) -> None:
    found = made(kind, READ[kind](text))
    assert found is not None
    assert found.hex() == recorded


def test_bytes_text_and_json_are_what_they_seem() -> None:
    assert made("bytes", bytearray(b"a")) == b"a"
    assert made("bytes", memoryview(b"b")) == b"b"
    assert made("text", "\u20ac") == made("string", "\u20ac") == b"\xe2\x82\xac"
    assert made(Text("latin-1"), "\u00e9") == b"\xe9"
    assert made("integer", 7) == made("int", 7)
    assert made("float", 3) == made("float", 3.0)
    assert made("json", {"b": [1, None, "\u20ac"], "a": 1.5}) == b'{"b":[1,null,"\xe2\x82\xac"],"a":1.5}'
    assert made(Json(default=str, sort_keys=True), {"b": 1, "a": uuid.UUID(int=0)}) == (
        b'{"a":"00000000-0000-0000-0000-000000000000","b":1}'
    )
    assert made(Json, [1]) == b"[1]"


@pytest.mark.parametrize("name", ["bytes", "text", "int", "json", "uuid", "double", "boolean"])
def test_nothing_stays_nothing(name: str) -> None:
    assert made(name, None) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", "text"),
        ("text", b"bytes"),
        ("text", "\ud800"),
        ("short", 32_768),
        ("int", -(2**31) - 1),
        ("long", 2**63),
        ("int", True),
        ("int", 1.0),
        ("float", 1e39),
        ("double", "1"),
        ("boolean", 1),
        ("uuid", str(uuid.UUID(int=1))),
        ("json", math.nan),
        ("json", object()),
    ],
)
def test_what_a_serializer_cannot_take_is_an_error_that_names_it(name: str, value: object) -> None:
    with pytest.raises(
        SerializationError, match=f"the value serializer {name} cannot take .* for topic topic"
    ) as caught:
        _ = made(name, value)
    assert caught.value.topic == "topic"
    assert isinstance(caught.value, PenstockError)


def test_a_function_gets_as_many_arguments_as_it_wants() -> None:
    def all_three(topic: str, value: object, headers: Headers) -> bytes:
        headers.add("seen", b"yes")
        return f"{topic}:{value}".encode()

    def every(*arguments: object) -> bytes:
        return str(len(arguments)).encode()

    headers = Headers()
    assert made(all_three, 1, headers) == b"topic:1"
    assert list(headers) == [("seen", b"yes")]
    assert made(lambda topic, value: f"{topic}{value}".encode(), 2) == b"topic2"
    assert made(lambda value: b"%d" % value, 3) == b"3"
    assert made(lambda value, encoding="utf-8": value.encode(encoding), "4") == b"4"
    assert made(str.encode, "5") == b"5"
    assert made(bytes, [54]) == b"6"
    assert made(every, 7) == b"3"
    assert made(lambda _: None, 8) is None


def test_what_a_function_raises_is_the_cause_and_what_is_not_bytes_is_an_error() -> None:
    def fails(value: object) -> bytes:
        raise LookupError(value)

    with pytest.raises(SerializationError, match=r"fails cannot take this int .* LookupError: 1") as caught:
        _ = made(fails, 1)
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(SerializationError, match="answered str, not bytes"):
        _ = made(str, 1)
    with pytest.raises(SerializationError, match="the key serializer int"):
        _ = BoundSerializer("int", is_key=True).serialize("topic", "1", Headers())


def test_an_unknown_name_or_what_cannot_be_called_is_refused_when_it_is_given() -> None:
    with pytest.raises(ValueError, match=r"no serializer 'avro': the names are .*uuid"):
        _ = BoundSerializer("avro", is_key=True)
    with pytest.raises(TypeError, match="no serializer"):
        _ = BoundSerializer(7, is_key=True)
    with pytest.raises(LookupError):
        _ = Text("no-such-encoding")


def test_headers_can_be_changed_until_they_are_frozen() -> None:
    headers = Headers([("a", b"1"), ("b", None)])
    headers.add("a", b"2")
    assert (headers.last("a"), headers.named("a"), len(headers)) == (b"2", [b"1", b"2"], 3)
    with pytest.raises(KeyError):
        _ = headers.last("c")
    headers[0] = ("a", b"0")
    del headers[1]
    assert list(headers) == [("a", b"0"), ("a", b"2")]
    assert headers == Headers(headers[:])
    headers.freeze()
    changes: list[Callable[[], object]] = [
        lambda: headers.add("c", b""),
        headers.clear,
        lambda: headers.extend([("c", b"")]),
        lambda: headers.__setitem__(0, ("c", b"")),
    ]
    for change in changes:
        with pytest.raises(RuntimeError, match="has been sent"):
            _ = change()
    assert list(headers) == [("a", b"0"), ("a", b"2")]
