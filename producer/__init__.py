"""The producer's parts; `DirectProducer` is all of them in one process, `AsyncDirectProducer` the same for asyncio."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .direct.aio import AsyncDirectProducer
    from .direct.producer import DirectProducer

__all__ = ["AsyncDirectProducer", "DirectProducer"]


def __getattr__(name: str) -> object:
    # Shards import this package too, and need none of what the direct producer brings along.
    if name == "DirectProducer":
        from .direct.producer import DirectProducer  # noqa: PLC0415

        return DirectProducer
    if name == "AsyncDirectProducer":
        from .direct.aio import AsyncDirectProducer  # noqa: PLC0415

        return AsyncDirectProducer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
