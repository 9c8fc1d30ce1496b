from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ...api.errors import PenstockError
from ...api.metadata import RecordMetadata
from ..accumulator.partitioners import KeylessPartitioner

HEADER_BYTES: int
OutcomeRange: TypeAlias = tuple[int, int, int, int, PenstockError | None]

Watcher: TypeAlias = tuple[Any, Callable[..., object], bool]
"""An object with an `index`, a callback, and whether it takes metadata and error instead of that object."""

class ChunkOwner(Protocol):
    @property
    def single_replica(self) -> bool: ...
    def wait(self, chunk: Chunk, index: int, timeout: float | None, /) -> None: ...
    def watch(self, chunk: Chunk, watcher: Watcher, /) -> bool: ...
    def callbacks_done(self, chunk: Chunk, /) -> bool: ...

class Chunk:
    part: AccumulatorPartition
    data: bytearray | None
    end: int
    capacity: int
    limit: int
    reserved_bytes: int
    node: int
    count: int
    created: float
    base_ts: int
    max_ts: int
    serial: int
    first: int
    segment: int
    resolved: int
    completed: int
    unreleased: int
    outcomes: list[OutcomeRange]
    callbacks: list[Any] | None
    watchers: list[Watcher] | None
    span: ChunkSpan | None
    def __init__(self, part: AccumulatorPartition) -> None: ...
    def use(self, data: bytearray) -> None: ...
    def seal(self) -> bytearray: ...
    def resolve(self, first: int, count: int, offset: int, log_append_ms: int, error: PenstockError | None) -> bool: ...
    def fail_unresolved(self, end: int, error: PenstockError) -> None: ...
    def take_callbacks(self) -> Sequence[Any]: ...
    def take_watchers(self) -> Sequence[Watcher]: ...
    def outcome_at(self, index: int) -> OutcomeRange | None: ...
    def next_open(self, first: int, end: int) -> int: ...
    def is_completed(self, index: int) -> bool: ...
    def metadata(self, index: int, stamp: int) -> RecordMetadata: ...
    def error(self, index: int) -> PenstockError | None: ...

class AccumulatorPartition:
    owner: ChunkOwner
    topic: str
    index: int
    chunk: Chunk | None
    sealed: deque[Chunk]
    next_ordinal: int
    initial_chunk_bytes: int
    node: int
    def __init__(self, owner: object, topic: str, index: int) -> None: ...

class AccumulatorTopic:
    name: str
    parts: list[AccumulatorPartition]
    count: int
    keyless: KeylessPartitioner
    sticky: int
    allowance: int
    sticky_bytes: int
    used_at: float
    def __init__(self, name: str, keyless: KeylessPartitioner) -> None: ...

class ChunkSpan:
    chunk: Chunk
    first: int
    count: int
    owner: Any
    def __init__(self, chunk: Chunk, first: int, count: int, owner: object) -> None: ...
