"""The client library: `Producer`, `AsyncProducer` and their result types. Depends only on msgpack."""

from typing import TYPE_CHECKING

from ..api.errors import (
    BufferExhaustedError,
    ClosedError,
    OutcomeUnknownError,
    PenstockError,
    RefusedError,
    RefusedRange,
    SerializationError,
    SessionError,
    WaitTimeoutError,
)
from ..api.futures import Future
from ..api.interceptors import Interceptor
from ..api.metadata import FrameMetadata, OffsetRun, PartitionMetadata, RecordMetadata
from ..api.partitioning import Partitioner
from ..api.records import Headers, Record
from ..api.serializers import Serializer
from .client import Producer

if TYPE_CHECKING:
    from .async_client import AsyncProducer

__all__ = [
    "AsyncProducer",
    "BufferExhaustedError",
    "ClosedError",
    "FrameMetadata",
    "Future",
    "Headers",
    "Interceptor",
    "OffsetRun",
    "OutcomeUnknownError",
    "PartitionMetadata",
    "Partitioner",
    "PenstockError",
    "Producer",
    "Record",
    "RecordMetadata",
    "RefusedError",
    "RefusedRange",
    "SerializationError",
    "Serializer",
    "SessionError",
    "WaitTimeoutError",
]


def __getattr__(name: str) -> object:
    # Imported on first use: asyncio is slow to import, and most programs do not need it.
    if name == "AsyncProducer":
        from .async_client import AsyncProducer  # noqa: PLC0415

        return AsyncProducer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
