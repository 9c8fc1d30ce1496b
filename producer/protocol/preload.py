"""kafka-python's message classes, where several threads of a process use them: it makes parts of them when they are first wanted."""

from typing import Any, TypeVar

ResponseT = TypeVar("ResponseT")


def thread_safe_class(kind: type[ResponseT]) -> type[ResponseT]:
    """The response class, fit to be decoded by any number of threads.

    While a version is decoded for the first time, kafka-python exchanges the struct's own class, a weak reference, for the real
    one. A second thread at the same work may then keep the weak one in its decoder, which can make no objects, for good. With
    the real one in its place from the beginning nothing changes.
    """
    made: Any = kind
    made._struct._data_class = kind  # noqa: SLF001
    return kind
