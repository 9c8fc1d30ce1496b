from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from ..api.errors import PenstockError
from ..api.futures import Future
from ..api.metadata import FrameMetadata, RecordMetadata
from ..api.partitioning import Partitioner
from .kernel_chunks import Part, Topic

Bytes: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Iterable[tuple[str, Bytes | None]] | None
RecordCallback: TypeAlias = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback: TypeAlias = Callable[[FrameMetadata | None, PenstockError | None], None]

class Rows:
    topics: dict[str, Topic]
    acquire: Callable[[], object]
    release: Callable[[], object]
    refusal: PenstockError | None
    wall: Callable[[], int] | None
    partitioner: Partitioner | None
    stir: bool
    ignore_keys: bool
    weak: bool
    record_max: int

class Sends:
    _front: Rows
    def send(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None = None,
        *,
        headers: Headers = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_ack: RecordCallback | None = None,
    ) -> Future[RecordMetadata]: ...
    def send_many(
        self,
        topic: str,
        values: Sequence[Bytes | None],
        keys: Sequence[Bytes | None] | None = None,
        *,
        headers: Sequence[Headers] | None = None,
        partitions: int | Sequence[int | None] | None = None,
        timestamps_ms: int | Sequence[int | None] | None = None,
        on_ack: FrameCallback | None = None,
    ) -> Future[FrameMetadata]: ...

class RecordFuture(Future[RecordMetadata]):
    @property
    def index(self) -> int: ...
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def add_done_callback(self, callback: Callable[[Future[RecordMetadata]], None]) -> None: ...

def failed_future(part: Part, stamp: int, error: PenstockError) -> RecordFuture: ...
def run_acks(acks: Sequence[Any], report: Callable[[], object]) -> None: ...
