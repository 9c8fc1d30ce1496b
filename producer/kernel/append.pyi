from collections.abc import Callable, Iterable, Sequence
from threading import Condition
from typing import Protocol, TypeAlias

from ...api.errors import PenstockError
from ...api.futures import Future
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.partitioning import Partitioner
from .chunks import AccumulatorPartition, AccumulatorTopic, Chunk, ChunkSpan
from .futures import DirectRecordFuture

Bytes: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Iterable[tuple[str, Bytes | None]] | None
RecordCallback: TypeAlias = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback: TypeAlias = Callable[[FrameMetadata | None, PenstockError | None], None]

# Opens and closes chunks. Called under the lock, but for the last two.
class ChunkPort(Protocol):
    # Open a chunk for a row of this size, or return an error; None: look again.
    def open_chunk(
        self, part: AccumulatorPartition, row: int, began: float | None, keyless: AccumulatorTopic | None, /
    ) -> PenstockError | None: ...
    # Make room for one more row. False: the chunk is closed.
    def grow(self, chunk: Chunk, row: int, /) -> bool: ...
    def close(self, chunk: Chunk, /) -> None: ...
    def wake_sender(self) -> None: ...
    def too_large(self, size: int, /) -> PenstockError: ...

# Topics with known partitions, and the choice of partitions. `rotate` is called under the lock.
class TopicPort(Protocol):
    @property
    def by_name(self) -> dict[str, AccumulatorTopic]: ...
    @property
    def partitioner(self) -> Partitioner | None: ...
    def rotate(self, topic: AccumulatorTopic, full: bool, /) -> None: ...
    def ask_partitioner(self, topic: AccumulatorTopic, key: bytes | None, value: bytes | None, /) -> int: ...
    def ask_partitioner_for_each(
        self,
        topic: AccumulatorTopic,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        wanted: Sequence[int | None] | None,
        /,
    ) -> list[int | None]: ...

# Waits for topics.
class MetadataPort(Protocol):
    def wait_for_metadata(
        self, name: str, partition: int | None, /
    ) -> tuple[float, AccumulatorTopic | PenstockError]: ...

# Makes the futures of rejected records and of columns.
class FuturePort(Protocol):
    def failed(
        self, topic: str, partition: int, error: PenstockError, on_ack: RecordCallback | None, /
    ) -> DirectRecordFuture: ...
    def columns_future(
        self,
        topic: str,
        spans: list[ChunkSpan],
        partitions: bytearray | None,
        count: int,
        error: PenstockError | None,
        on_ack: FrameCallback | None,
        /,
    ) -> Future[FrameMetadata]: ...

class RecordAppender:
    refusal: PenstockError | None
    transaction_epoch: int
    wake_needed: bool
    def __init__(
        self,
        lock: Condition,
        chunks: ChunkPort,
        topics: TopicPort,
        metadata: MetadataPort,
        futures: FuturePort,
        wall_clock: Callable[[], int] | None,
        ignore_keys: bool,
        record_bytes_max: int,
    ) -> None: ...
    def check_accepting(self) -> None: ...
    def append(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_ack: RecordCallback | None,
        began: float | None,
        epoch: int,
        /,
    ) -> DirectRecordFuture: ...
    def append_many(
        self,
        topic: str,
        values: Sequence[Bytes | None],
        keys: Sequence[Bytes | None] | None,
        headers: Sequence[Headers] | None,
        partitions: int | Sequence[int | None] | None,
        timestamps_ms: int | Sequence[int | None] | None,
        on_ack: FrameCallback | None,
        began: float | None,
        epoch: int,
        /,
    ) -> Future[FrameMetadata]: ...

class SendPipeline(Protocol):
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

class SendMethods:
    _appender: RecordAppender
    plugin_pipeline: SendPipeline | None
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
