"""Detects nulls in a decoded request where the protocol allows none.

kafka-python decodes a null array, string or byte field as None whether the schema allows it or not. The code that
serves a request relies on the schema, so the broker rejects violations first.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, cast

from kafka.protocol.api_message import ApiMessage

FOR_EVER = 32_767


class MisplacedNullError(ValueError):
    """A field is null that must not be."""


class Field(NamedTuple):
    """A field in one version of a request."""

    attribute: str
    nullable: bool
    array: bool
    inner: tuple[Field, ...]
    """Fields of the struct, or of the array's structs; none for plain values."""


_PLANS: Final[dict[tuple[str, int], tuple[Field, ...]]] = {}
"""Cache with at most one entry per supported version."""


def check_nulls(message: ApiMessage, version: int) -> None:
    """Check that a request has nulls only where its version allows them.

    Raises:
        MisplacedNullError: another field is null.
    """
    _check(message, plan(type(message), version))


def _check(struct: object, fields: tuple[Field, ...]) -> None:
    for field in fields:
        value: object = getattr(struct, field.attribute)
        if value is None:
            if not field.nullable:
                raise MisplacedNullError(f"{field.attribute} is null")
        elif field.array:
            for item in cast("list[object]", value):
                if item is None:
                    raise MisplacedNullError(f"an element of {field.attribute} is null")
                _check(item, field.inner)
        else:
            _check(value, field.inner)


def plan(kind: type[ApiMessage], version: int) -> tuple[Field, ...]:
    """Return the fields of a request version, from kafka-python's copy of Kafka's schema."""
    key = (kind.__name__, version)
    if key not in _PLANS:
        _PLANS[key] = _fields(cast("dict[str, object]", kind.json), version)
    return _PLANS[key]


def _fields(schema: dict[str, object], version: int) -> tuple[Field, ...]:
    found: list[Field] = []
    for field in cast("list[dict[str, object]]", schema.get("fields", [])):
        if not _has(field, "versions", version):
            continue
        array = str(field["type"]).startswith("[]")
        attribute = re.sub(r"(?<!^)(?=[A-Z])", "_", str(field["name"])).lower()
        # A tagged field that was not sent is None, or its default.
        optional = _has(field, "nullableVersions", version) or _has(field, "taggedVersions", version)
        # kafka-python decodes the zero id, which means "none", as None.
        nullable = optional or field["type"] == "uuid"
        found.append(Field(attribute, nullable, array, _fields(field, version)))
    return tuple(found)


def _has(field: dict[str, object], key: str, version: int) -> bool:
    """Return whether a version is in a range like `3`, `3-5`, `3+` or `none`."""
    text = str(field.get(key, "none"))
    if text == "none":
        return False
    low, dash, high = text.partition("-")
    if low.endswith("+"):
        return int(low[:-1]) <= version <= FOR_EVER
    return int(low) <= version <= int(high if dash else low)
