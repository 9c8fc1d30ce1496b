"""The client library: `Producer`, and what it answers with. Needs nothing but msgpack."""

from ..api.errors import (
    BufferExhaustedError,
    ClosedError,
    OutcomeUnknownError,
    PenstockError,
    RefusedError,
    RefusedRange,
    SessionError,
    WaitTimeoutError,
)
from ..api.futures import Future
from ..api.metadata import FrameMetadata, OffsetRun, PartitionMetadata, RecordMetadata
from ..api.partitioning import Partitioner
from .client import Producer

__all__ = [
    "BufferExhaustedError",
    "ClosedError",
    "FrameMetadata",
    "Future",
    "OffsetRun",
    "OutcomeUnknownError",
    "PartitionMetadata",
    "Partitioner",
    "PenstockError",
    "Producer",
    "RecordMetadata",
    "RefusedError",
    "RefusedRange",
    "SessionError",
    "WaitTimeoutError",
]
