"""Runs the application's code around every record: before it is serialized, and when its outcome is known.

An exception in an interceptor is logged and skipped. It affects neither the record nor the other interceptors (INT-1,
INT-2, INT-4).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .errors import PenstockError
from .metadata import UNKNOWN, RecordMetadata
from .records import Headers, Record
from .serializers import wanted_arguments

PluginErrorReporter = Callable[[str, str], None]
"""Called while an exception is handled, with the name of the plug-in and of the method that raised."""


class Interceptor:
    """Base class that does nothing. Any object with some of these methods is an interceptor, derived or not."""

    def configure(self, settings: Mapping[str, object], /) -> None:
        """Called once, before the first record. `settings`: the producer's, with Kafka's names and `client.id`."""

    def on_send(self, record: Record, /) -> Record | None:
        """Called on the thread that calls `send`, before anything else happens to a record. Return the record or a
        changed one (`record._replace(value=…)`); None leaves it unchanged. Headers may be added in place."""
        return record

    def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
        """The outcome of a buffered record. Called on the producer's thread, before the callback passed to `send`.

        `metadata` is never None: with an error, it has the topic and partition if known, and -1 otherwise. A method
        with only two parameters is called without the headers.
        """

    def on_send_error(self, metadata: RecordMetadata, error: BaseException, headers: Headers, /) -> None:
        """A record was not buffered. Called on the thread that calls `send`. If missing, `on_ack` is called instead."""
        self.on_ack(metadata, error, headers)

    def close(self) -> None:
        """Called once, when the producer has closed."""


class InterceptorChain:
    """Calls the interceptors in order."""

    def __init__(self, interceptors: Sequence[object], report: PluginErrorReporter) -> None:
        self._report: Final = report
        named = [(one, type(one).__qualname__) for one in interceptors]
        self._sends: Final = [(_method(one, "on_send"), name) for one, name in named if hasattr(one, "on_send")]
        self._acks: Final = [(_ack_method(one, "on_ack"), name) for one, name in named if hasattr(one, "on_ack")]
        refusals = [(one, "on_send_error" if hasattr(one, "on_send_error") else "on_ack", name) for one, name in named]
        self._send_errors: Final = [
            (_ack_method(one, call), call, name) for one, call, name in refusals if hasattr(one, call)
        ]

    def on_send(self, record: Record) -> Record:
        """Pass a record through the interceptors. Each gets the result of the last one before it that did not fail."""
        for call, name in self._sends:
            try:
                answer = call(record)
                if answer is not None and not isinstance(answer, Record):
                    raise TypeError(f"on_send answers a Record or None, not {type(answer).__name__}")
            except Exception:  # noqa: BLE001  (the application's code)
                self._report(name, "on_send")
            else:
                record = record if answer is None else answer
        return record

    def on_ack(self, metadata: RecordMetadata, error: PenstockError | None, headers: Headers) -> None:
        """Report the outcome of a buffered record."""
        for call, name in self._acks:
            try:
                call(metadata, error, headers)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  (the application's code, which may try to exit on the producer's thread)
                self._report(name, "on_ack")

    def on_send_error(self, record: Record, partition: int, error: BaseException) -> None:
        """Report a record that was not buffered (INT-3). `partition`: the record's, or -1 if unknown."""
        metadata = unknown_metadata(record.topic, partition)
        for call, method, name in self._send_errors:
            try:
                call(metadata, error, record.headers)
            except Exception:  # noqa: BLE001  (the application's code)
                self._report(name, method)


def unknown_metadata(topic: str, partition: int | None) -> RecordMetadata:
    """Metadata of a record that was not written: the topic and the partition, if known."""
    return RecordMetadata(
        topic, UNKNOWN if partition is None else partition, UNKNOWN, UNKNOWN, "", single_replica=False
    )


def _method(interceptor: object, name: str) -> Callable[..., object]:
    method: Callable[..., object] = getattr(interceptor, name)
    return method


def _ack_method(interceptor: object, method: str) -> Callable[[RecordMetadata, Any, Headers], object]:
    function = _method(interceptor, method)
    if wanted_arguments(function) >= 3:
        return function
    return lambda metadata, error, _: function(metadata, error)
