from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from ...api.errors import PenstockError
from ...api.futures import Future
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.partitioning import Partitioner
from .chunks import AccumulatorTopic
from .futures import DirectRecordFuture

Bytes: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Iterable[tuple[str, Bytes | None]] | None
RecordCallback: TypeAlias = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback: TypeAlias = Callable[[FrameMetadata | None, PenstockError | None], None]

class RecordAppender:
    topics: dict[str, AccumulatorTopic]
    acquire: Callable[[], object]
    release: Callable[[], object]
    refusal: PenstockError | None
    transaction_epoch: int
    wall_clock: Callable[[], int] | None
    partitioner: Partitioner | None
    wake_needed: bool
    ignore_keys: bool
    single_replica: bool
    record_bytes_max: int
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
        transaction_epoch: int,
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
        transaction_epoch: int,
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
