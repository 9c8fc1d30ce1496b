"""Makes kafka-python's message classes thread-safe: the library creates parts of them lazily, on first use."""

from typing import Any, TypeVar

ResponseT = TypeVar("ResponseT")


def thread_safe_class(kind: type[ResponseT]) -> type[ResponseT]:
    """Return the response class, prepared for decoding by any number of threads.

    When kafka-python decodes a version for the first time, it replaces the struct's class, a weak reference, by the
    real class. A second thread that does the same concurrently may permanently keep the weak reference in its decoder,
    which then cannot create objects. Setting the real class in advance avoids the replacement.
    """
    made: Any = kind
    made._struct._data_class = kind  # noqa: SLF001
    return kind
