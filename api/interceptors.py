"""The application's own code around every record: before it is serialized, and when its end is known.

One that raises is told of in the log and skipped; neither the record nor the other interceptors notice (INT-1, INT-2, INT-4).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .calling import wanted_arguments
from .errors import PenstockError
from .metadata import UNKNOWN, RecordMetadata
from .records import Headers, Record

PluginErrorReporter = Callable[[str, str], None]
"""Called while an exception is handled: with the name of a plug-in and the name of what was called."""


class Interceptor:
    """Does nothing. Any object with some of these methods is an interceptor; it need not derive from this class."""

    def configure(self, settings: Mapping[str, object], /) -> None:
        """Called once, before the first record. `settings`: the producer's, under Kafka's names, `client.id` among them."""

    def on_send(self, record: Record, /) -> Record | None:
        """Called on the thread that sends, before anything else is done with a record. Answers it, as it is or as another one
        (`record._replace(value=…)`); None leaves it as it is. Headers may be added in place."""
        return record

    def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
        """The end of a record that was taken: called on the producer's thread, before the callback that was given to `send`.

        `metadata` is always there: with an error, topic and partition as far as they are known, and -1. One with only two
        arguments is not given the headers.
        """

    def on_send_error(self, metadata: RecordMetadata, error: BaseException, headers: Headers, /) -> None:
        """A record was not taken: called on the thread that sends. One that does not have this is told by `on_ack`."""
        self.on_ack(metadata, error, headers)

    def close(self) -> None:
        """Called once, when the producer has ended."""


class InterceptorChain:
    """Interceptors in their order."""

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
        """What the interceptors make of a record: each gets what the last one before it that did not fail has answered."""
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
        """The end of a record that was taken."""
        for call, name in self._acks:
            try:
                call(metadata, error, headers)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  (the application's code, which may try to exit on the producer's thread)
                self._report(name, "on_ack")

    def on_send_error(self, record: Record, partition: int, error: BaseException) -> None:
        """A record was not taken (INT-3). `partition`: as far as it is known, else -1."""
        metadata = unknown_metadata(record.topic, partition)
        for call, method, name in self._send_errors:
            try:
                call(metadata, error, record.headers)
            except Exception:  # noqa: BLE001  (the application's code)
                self._report(name, method)


def unknown_metadata(topic: str, partition: int | None) -> RecordMetadata:
    """What is known of where a record went that went nowhere."""
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
