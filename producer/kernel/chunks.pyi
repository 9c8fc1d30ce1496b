from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ...api.errors import PenstockError
from ...api.metadata import RecordMetadata
from ..accumulator.partitioners import Keyless

HEADER_BYTES: int
Piece: TypeAlias = tuple[int, int, int, int, PenstockError | None]

Watcher: TypeAlias = tuple[Any, Callable[..., object], bool]
"""Something with an `index`, what to call, and whether with metadata and error instead of the first."""

class Telling(Protocol):
    @property
    def weak(self) -> bool: ...
    def wait(self, chunk: Chunk, index: int, timeout: float | None, /) -> None: ...
    def watch(self, chunk: Chunk, watcher: Watcher, /) -> bool: ...
    def has_told(self, chunk: Chunk, /) -> bool: ...

class Chunk:
    part: Part
    data: bytearray | None
    end: int
    room: int
    limit: int
    charge: int
    node: int
    count: int
    created: float
    base_ts: int
    max_ts: int
    serial: int
    first: int
    segment: int
    resolved: int
    told: int
    held: int
    pieces: list[Piece]
    acks: list[Any] | None
    watchers: list[Watcher] | None
    span: Span | None
    def __init__(self, part: Part) -> None: ...
    def use(self, data: bytearray) -> None: ...
    def seal(self) -> bytearray: ...
    def resolve(self, first: int, count: int, offset: int, log_append_ms: int, error: PenstockError | None) -> bool: ...
    def fail_open(self, end: int, error: PenstockError) -> None: ...
    def take_acks(self) -> Sequence[Any]: ...
    def take_watchers(self) -> Sequence[Watcher]: ...
    def piece(self, index: int) -> Piece | None: ...
    def next_open(self, first: int, end: int) -> int: ...
    def is_told(self, index: int) -> bool: ...
    def metadata(self, index: int, stamp: int) -> RecordMetadata: ...
    def error(self, index: int) -> PenstockError | None: ...

class Part:
    front: Telling
    topic: str
    index: int
    chunk: Chunk | None
    sealed: deque[Chunk]
    next_ordinal: int
    open_bytes: int
    node: int
    def __init__(self, front: object, topic: str, index: int) -> None: ...

class Topic:
    name: str
    parts: list[Part]
    count: int
    keyless: Keyless
    sticky: int
    allowance: int
    used: int
    used_at: float
    def __init__(self, name: str, keyless: Keyless) -> None: ...

class Span:
    chunk: Chunk
    first: int
    count: int
    owner: Any
    def __init__(self, chunk: Chunk, first: int, count: int, owner: object) -> None: ...
