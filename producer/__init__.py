"""The producer's components. `DirectProducer` runs them all in one process; `AsyncDirectProducer` is its asyncio
form."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .direct.aio import AsyncDirectProducer
    from .direct.producer import DirectProducer

__all__ = ["AsyncDirectProducer", "DirectProducer"]


def __getattr__(name: str) -> object:
    # Lazy, because shards import this package too, and do not need the dependencies of the direct producer.
    if name == "DirectProducer":
        from .direct.producer import DirectProducer  # noqa: PLC0415

        return DirectProducer
    if name == "AsyncDirectProducer":
        from .direct.aio import AsyncDirectProducer  # noqa: PLC0415

        return AsyncDirectProducer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
