"""Calling back the application from the direct producer."""

import logging
from collections.abc import Callable
from typing import Any, Final

from ...api.errors import PenstockError
from ...api.futures import Future

log: Final = logging.getLogger("penstock.producer")


def result_of(done: Future[Any]) -> tuple[Any, PenstockError | None]:
    """Metadata and error of a future that is done, one of them None."""
    error = done.exception()
    return (None, error) if error is not None else (done.result(), None)


def run_callback(callback: Callable[..., object], *arguments: object) -> None:
    """Call back the application; what it raises is logged."""
    try:
        _ = callback(*arguments)
    except Exception:
        log.exception("callback_failed")


def run_callback_on_sender(callback: Callable[..., object], *arguments: object) -> None:
    """The same on the producer's own thread, which goes on whatever is raised: `sys.exit` as well."""
    try:
        _ = callback(*arguments)
    except BaseException:
        log.exception("callback_failed")


def log_plugin_failure(plugin: str, what: str) -> None:
    """Tell of a plug-in that raised, while that is handled."""
    log.exception("plugin_failed plugin=%s call=%s", plugin, what)  # noqa: LOG004
