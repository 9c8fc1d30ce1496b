"""Creates, configures and closes the application's plug-ins: serializers, interceptors and the partitioner."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from .interceptors import InterceptorChain, PluginErrorReporter
from .serializers import BoundSerializer


class PluginOptions:
    """Plug-ins as the application passed them; see `Plugins`."""

    def __init__(
        self,
        key_serializer: object = None,
        value_serializer: object = None,
        interceptors: Sequence[object] = (),
        partitioner: object = None,
    ) -> None:
        self.key_serializer: Final = key_serializer
        self.value_serializer: Final = value_serializer
        self.interceptors: Final = interceptors
        self.partitioner: Final = partitioner

    @property
    def has_any(self) -> bool:
        return bool(self.interceptors) or any(
            one is not None for one in (self.key_serializer, self.value_serializer, self.partitioner)
        )


class Plugins:
    """A producer's plug-ins. `key` and `value`: serializers; None leaves bytes as they are. `chain`: None without
    interceptors."""

    def __init__(self, given: PluginOptions, settings: Mapping[str, object], report: PluginErrorReporter) -> None:
        """Create and configure all plug-ins. On an exception, close those created so far and raise it again (CFG-10).

        Raises:
            TypeError, ValueError: an object is not a serializer or interceptor.
        """
        self._report: Final = report
        self._all: list[object] = []
        self._closed = False
        self._failure: Exception | None = None
        try:
            self.key = self._serializer(given.key_serializer, settings, is_key=True)
            self.value = self._serializer(given.value_serializer, settings, is_key=False)
            if given.partitioner is not None:
                self._register(given.partitioner)
                _configure(given.partitioner, settings)
            made = [self._interceptor(one, settings) for one in given.interceptors]
            self.chain = InterceptorChain(made, report) if made else None
        except BaseException:
            _ = self.close()
            raise

    @property
    def handles_records(self) -> bool:
        """Whether any plug-in sees records before they are bytes."""
        return self.key is not None or self.value is not None or self.chain is not None

    def _serializer(self, given: object, settings: Mapping[str, object], *, is_key: bool) -> BoundSerializer | None:
        if given is None:
            return None
        role = BoundSerializer(given, is_key=is_key)
        self._register(role.serializer)
        _configure(role.serializer, settings, is_key)
        return role

    def _interceptor(self, given: object, settings: Mapping[str, object]) -> object:
        made = cast("object", given()) if isinstance(given, type) else given
        if not any(hasattr(made, name) for name in ("on_send", "on_ack", "on_send_error")):
            raise TypeError(f"{made!r} is no interceptor: it has none of on_send, on_ack, on_send_error")
        self._register(made)
        _configure(made, settings)
        return made

    def _register(self, made: object) -> None:
        if not any(made is one for one in self._all):
            self._all.append(made)

    def close(self) -> Exception | None:
        """Close each plug-in once, in reverse order of creation. Exceptions are reported, and every call returns the
        first one (CLS-4, INT-4)."""
        if not self._closed:
            self._closed = True
            for one in reversed(self._all):
                self._close(one)
        return self._failure

    def _close(self, one: object) -> None:
        close: object = None if isinstance(one, type) else getattr(one, "close", None)
        if not callable(close):
            return
        try:
            _ = close()
        except Exception as error:  # noqa: BLE001  (the application's code)
            self._report(type(one).__qualname__, "close")
            self._failure = self._failure or error


def _configure(made: object, *arguments: object) -> None:
    configure: object = getattr(made, "configure", None)
    if callable(configure):
        _ = configure(*arguments)
