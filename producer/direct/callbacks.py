"""Runs the application's callbacks and logs their exceptions."""

import logging
from collections.abc import Callable
from typing import Any, Final

from ...api.errors import PenstockError
from ...api.futures import Future

log: Final = logging.getLogger("penstock.producer")


def result_of(done: Future[Any]) -> tuple[Any, PenstockError | None]:
    """Metadata and error of a completed future; one of them is None."""
    error = done.exception()
    return (None, error) if error is not None else (done.result(), None)


def run_callback(callback: Callable[..., object], *arguments: object) -> None:
    """Run a callback of the application, and log an exception."""
    try:
        _ = callback(*arguments)
    except Exception:
        log.exception("callback_failed")


def run_callback_on_sender(callback: Callable[..., object], *arguments: object) -> None:
    """The same on the sender thread, which must survive every exception, `sys.exit` included."""
    try:
        _ = callback(*arguments)
    except BaseException:
        log.exception("callback_failed")


def log_plugin_failure(plugin: str, what: str) -> None:
    """Log the current exception of a plug-in; call it in an exception handler."""
    log.exception("plugin_failed plugin=%s call=%s", plugin, what)  # noqa: LOG004
