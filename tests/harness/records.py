"""Test records whose every byte follows from who sent them, so that a damaged or invented record is seen, not guessed."""

import json
import re
from hashlib import blake2b
from typing import Final, NamedTuple

ID_HEADER: Final = "id"
JSON_ID: Final = re.compile(rb'\{"id": "([^"]*)"')
EPOCH_MS: Final = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]


class RecordId(NamedTuple):
    """Who a record is: the `row`-th of the `frame`-th call of a client. A client's calls count from 0."""

    client: str
    frame: int
    row: int

    def __str__(self) -> str:
        """As it stands at the front of a value."""
        return f"{self.client}:{self.frame}:{self.row}"


class Shape(NamedTuple):
    """What the records of one client look like."""

    value_bytes: int = 100
    key_count: int = 0
    """How many different keys; 0: no record has a key."""
    headers: bool = False
    timestamps: bool = False
    """Each record has its own timestamp; otherwise the time is not looked at."""
    null_every: int = 0
    """Every n-th record has a null value, and its id in a header; 0: none. Needs `headers`."""
    json: bool = False
    """Values are JSON objects: `id`, `n` and `fill`."""
    broken_every: int = 0
    """Every n-th value is no JSON after all; 0: none. Needs `json`."""

    def breaks(self, name: RecordId) -> bool:
        """Whether the value of this record is no JSON though the others' are."""
        return bool(self.broken_every) and _number(name) % self.broken_every == 0


class Record(NamedTuple):
    """What is sent."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None


class Found(NamedTuple):
    """One record as a reader saw it. `numbered`: incarnation, origin and ordinal of the id that a daemon gave it, which is not
    among `headers`; None: it has none."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    numbered: tuple[int, int, int] | None = None


def _number(name: RecordId) -> int:
    return name.frame * 1_009 + name.row


def record_of(name: RecordId, shape: Shape) -> Record:
    """The one record that this id and shape stand for."""
    text = str(name).encode()
    number = _number(name)
    seed = blake2b(text, digest_size=32).hexdigest().encode()
    front = text + b":"
    value: bytes | None = (front + seed * (shape.value_bytes // 64 + 1))[: max(shape.value_bytes, len(front))]
    if shape.null_every and number % shape.null_every == 0:
        assert shape.headers, "a record without a value needs a header to be known by"
        value = None
    elif shape.json and not shape.breaks(name):
        fill = (seed.decode() * (shape.value_bytes // 64 + 1))[: max(0, shape.value_bytes - 40)]
        value = json.dumps({"id": str(name), "n": number, "fill": fill}).encode()
    # The key follows from the id in another way than the value does, so that a column that slipped by one shows.
    key = b"key-%d" % (int(seed[:8], 16) % shape.key_count) if shape.key_count else None
    headers: Headers = ((ID_HEADER, text), ("twice", seed[:5]), ("twice", None), ("", b"")) if shape.headers else ()
    return Record(key, value, headers, EPOCH_MS + number if shape.timestamps else None)


def id_of(value: bytes | None, headers: Headers) -> RecordId | None:
    """The id a record claims, from its value or else its header; None when there is none to be read."""
    text = value if value is not None else dict(headers).get(ID_HEADER)
    if text is not None and (named := JSON_ID.match(text)) is not None:
        text = named[1] + b":"
    parts = (text or b"").split(b":", 3)
    if len(parts) < 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    try:
        return RecordId(parts[0].decode("ascii"), int(parts[1]), int(parts[2]))
    except UnicodeDecodeError:
        return None
