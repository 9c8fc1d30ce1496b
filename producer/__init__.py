"""The producer's parts; `DirectProducer` is all of them in one process."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .direct import DirectProducer

__all__ = ["DirectProducer"]


def __getattr__(name: str) -> object:
    # Shards import this package too, and need none of what the direct producer brings along.
    if name == "DirectProducer":
        from .direct import DirectProducer  # noqa: PLC0415

        return DirectProducer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
