"""Serializers for keys and values. Those with names produce the same bytes as Kafka's serializer of that type.

A serializer is a name from `SERIALIZERS_BY_NAME`, an object with `serialize(topic, value, headers)`, a class of such
objects, or a function. A function gets as many arguments as it has parameters without a default: `(value)`, `(topic,
value)` or `(topic, value, headers)`.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, cast

from .errors import SerializationError
from .records import Headers


def wanted_arguments(function: Callable[..., object]) -> int:
    """Number of positional arguments without a default; 1024 for `*arguments`; 1 if Python cannot tell."""
    import inspect  # noqa: PLC0415  (importing it takes milliseconds, and most programs pass no functions)

    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 1
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return 1 << 10
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for one in parameters if one.kind in places and one.default is one.empty)


class Serializer(Protocol):
    """Interface of a serializer. Optional: `configure(settings, is_key)`, called before the first record, and
    `close()`.

    `headers` are the record's, and the serializer may add some. None is never passed to it and stays null; it may
    return None for null. `send` raises `SerializationError` with the serializer's exception as the cause.
    """

    def serialize(self, topic: str, value: object, headers: Headers, /) -> bytes | None: ...


class Plain:
    """Passes bytes through."""

    def serialize(self, _topic: str, value: object, _headers: Headers, /) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise TypeError(f"{type(value).__name__} is not bytes")


class Text:
    """str in one of Python's encodings. A character it cannot encode is an error, unless `errors` says otherwise."""

    def __init__(self, encoding: str = "utf-8", errors: str = "strict") -> None:
        """Check the encoding.

        Raises:
            LookupError: Python has no such encoding.
        """
        _ = "".encode(encoding, errors)
        self._encoding: Final = encoding
        self._errors: Final = errors

    def serialize(self, _topic: str, value: object, _headers: Headers, /) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"{type(value).__name__} is not str")
        return value.encode(self._encoding, self._errors)


class _Number:
    """A number of fixed size, big-endian."""

    layout: struct.Struct
    kinds: tuple[type, ...] = (int,)

    def serialize(self, _topic: str, value: object, _headers: Headers, /) -> bytes:
        if isinstance(value, bool) or not isinstance(value, self.kinds):
            raise TypeError(f"{type(value).__name__} is not {self.kinds[0].__name__}")
        try:
            return self.layout.pack(value)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{value} does not fit: {error}") from error


class Short(_Number):
    """int in 2 bytes."""

    layout = struct.Struct(">h")


class Int(_Number):
    """int in 4 bytes."""

    layout = struct.Struct(">i")


class Long(_Number):
    """int in 8 bytes."""

    layout = struct.Struct(">q")


class Float(_Number):
    """float in 4 bytes (IEEE 754), rounded to single precision."""

    layout = struct.Struct(">f")
    kinds = (float, int)


class Double(_Number):
    """float in 8 bytes (IEEE 754)."""

    layout = struct.Struct(">d")
    kinds = (float, int)


class Boolean:
    """bool in a byte, 1 or 0."""

    def serialize(self, _topic: str, value: object, _headers: Headers, /) -> bytes:
        if not isinstance(value, bool):
            raise TypeError(f"{type(value).__name__} is not bool")
        return b"\x01" if value else b"\x00"


class Uuid:
    """uuid.UUID as a text of 36 characters."""

    def serialize(self, _topic: str, value: object, _headers: Headers, /) -> bytes:
        import uuid  # noqa: PLC0415  (most programs need none)

        if not isinstance(value, uuid.UUID):
            raise TypeError(f"{type(value).__name__} is not UUID")
        return str(value).encode()


class Json:
    """Any value that JSON can express, in UTF-8 without spaces, so no NaN or infinities. `default`: as for
    `json.dumps`."""

    def __init__(self, default: Callable[[object], object] | None = None, *, sort_keys: bool = False) -> None:
        import json  # noqa: PLC0415  (most programs need none)

        self._encode: Final = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default, sort_keys=sort_keys
        ).encode

    def serialize(self, _topic: str, value: object, _headers: Headers, /) -> bytes:
        return self._encode(value).encode()


SERIALIZERS_BY_NAME: Final[Mapping[str, Callable[[], Serializer]]] = {
    "boolean": Boolean,
    "bytes": Plain,
    "double": Double,
    "float": Float,
    "int": Int,
    "integer": Int,
    "json": Json,
    "long": Long,
    "short": Short,
    "string": Text,
    "text": Text,
    "uuid": Uuid,
}
"""Serializers that can be selected by name."""


class BoundSerializer:
    """A serializer bound to keys or values. `given` comes from the application; `serializer` is created from it."""

    def __init__(self, given: object, *, is_key: bool) -> None:
        """Create the serializer from what the application gave.

        Raises:
            ValueError: no serializer has that name.
            TypeError: the object cannot serve as a serializer.
        """
        self.is_key: Final = is_key
        self.serializer, self.name = _instantiate(given)
        self._call, wanted = _adapt(self.serializer)
        self.sees_headers: Final = wanted >= 3 and type(self.serializer) not in SERIALIZERS_BY_NAME.values()
        """Whether the serializer can add headers."""

    def serialize(self, topic: str, value: object, headers: Headers) -> bytes | None:
        """Return the bytes of a key or value (SND-5).

        Raises:
            SerializationError: the serializer raised, or returned neither bytes nor None.
        """
        if value is None:
            return None
        try:
            found = self._call(topic, value, headers)
        except Exception as error:
            raise self._error(topic, value, f"{type(error).__name__}: {error}") from error
        if found is None or type(found) is bytes:
            return found
        if isinstance(found, bytes | bytearray | memoryview):
            return bytes(found)
        raise self._error(topic, value, f"it answered {type(found).__name__}, not bytes")

    def serialize_column(
        self, topic: str, values: Sequence[object], headers: Sequence[object] | None
    ) -> list[bytes | None]:
        """Serialize a column. `headers`: those of each record, needed if the serializer can add some (`sees_headers`).

        Raises:
            SerializationError: for the first value that the serializer rejects.
        """
        if not self.sees_headers or headers is None:
            none = Headers()
            return [self.serialize(topic, value, none) for value in values]
        own = (one if isinstance(one, Headers) else Headers() for one in headers)
        return [self.serialize(topic, value, one) for value, one in zip(values, own, strict=True)]

    def _error(self, topic: str, value: object, why: str) -> SerializationError:
        what = "key" if self.is_key else "value"
        error = SerializationError(
            f"the {what} serializer {self.name} cannot take this {type(value).__name__} for topic {topic}: {why}"
        )
        error.topic = topic
        return error


def _instantiate(given: object) -> tuple[object, str]:
    if isinstance(given, str):
        if given not in SERIALIZERS_BY_NAME:
            raise ValueError(f"there is no serializer {given!r}: the names are {', '.join(SERIALIZERS_BY_NAME)}")
        return SERIALIZERS_BY_NAME[given](), given
    if isinstance(given, type) and hasattr(given, "serialize"):
        return cast("object", given()), given.__qualname__
    name: object = getattr(cast("object", given), "__qualname__", None)
    return given, name if isinstance(name, str) else type(given).__qualname__


def _adapt(made: object) -> tuple[Callable[[str, object, Headers], object], int]:
    """The callable to use, and the number of arguments that the application's function takes."""
    serialize: object = getattr(made, "serialize", None)
    function = serialize if callable(serialize) else made
    if not callable(function):
        raise TypeError(f"{made!r} is no serializer: it is neither callable nor has it `serialize`")
    wanted = wanted_arguments(function)
    if wanted >= 3:
        return function, wanted
    if wanted == 2:
        return (lambda topic, value, _: function(topic, value)), wanted
    return (lambda _, value, __: function(value)), wanted
