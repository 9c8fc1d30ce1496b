"""Runs the application's callbacks and logs their exceptions."""

import logging
from collections.abc import Callable
from typing import Final

log: Final = logging.getLogger("penstock.producer")


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
