from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from ...api.errors import PenstockError
from ...api.futures import Future
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.partitioning import Partitioner
from .chunks import Topic
from .futures import RecordFuture

Bytes: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Iterable[tuple[str, Bytes | None]] | None
RecordCallback: TypeAlias = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback: TypeAlias = Callable[[FrameMetadata | None, PenstockError | None], None]

class Rows:
    topics: dict[str, Topic]
    acquire: Callable[[], object]
    release: Callable[[], object]
    refusal: PenstockError | None
    turn: int
    wall: Callable[[], int] | None
    partitioner: Partitioner | None
    stir: bool
    ignore_keys: bool
    weak: bool
    record_max: int
    def take(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_ack: RecordCallback | None,
        began: float | None,
        turn: int,
        /,
    ) -> RecordFuture: ...
    def take_many(
        self,
        topic: str,
        values: Sequence[Bytes | None],
        keys: Sequence[Bytes | None] | None,
        headers: Sequence[Headers] | None,
        partitions: int | Sequence[int | None] | None,
        timestamps_ms: int | Sequence[int | None] | None,
        on_ack: FrameCallback | None,
        began: float | None,
        turn: int,
        /,
    ) -> Future[FrameMetadata]: ...

class Plugged(Protocol):
    def send(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_ack: RecordCallback | None,
        /,
    ) -> Future[RecordMetadata]: ...
    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Sequence[Headers] | None,
        partitions: int | Sequence[int | None] | None,
        timestamps_ms: int | Sequence[int | None] | None,
        on_ack: FrameCallback | None,
        /,
    ) -> Future[FrameMetadata]: ...

class Sends:
    _front: Rows
    plugged: Plugged | None
    def send(
        self,
        topic: str,
        value: object,
        key: object = None,
        *,
        headers: Headers = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_ack: RecordCallback | None = None,
    ) -> Future[RecordMetadata]: ...
    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        headers: Sequence[Headers] | None = None,
        partitions: int | Sequence[int | None] | None = None,
        timestamps_ms: int | Sequence[int | None] | None = None,
        on_ack: FrameCallback | None = None,
    ) -> Future[FrameMetadata]: ...
