"""Logs: one JSON line per event on standard error, named in the past tense, with fields.

An application that uses the library does not call `configure`: events then go to the standard library's logger
`penstock.producer`, and the application decides what happens to them.
"""

import logging
import sys
from typing import Any, Final, Protocol

_LIBRARY: Final = logging.getLogger("penstock.producer")
_configured = False


class EventLogger(Protocol):
    """Logs events. Pass data in fields, not in the event's text."""

    def debug(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - any value with a text form
    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def error(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def exception(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def critical(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401


class _LibraryLog:
    """Logs events as text through the standard library's logging."""

    def debug(self, event: str, **fields: object) -> None:
        _log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        _log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        _log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        _log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        _log(logging.ERROR, event, {"exc_info": True, **fields})

    def critical(self, event: str, **fields: object) -> None:
        _log(logging.CRITICAL, event, fields)


def _log(level: int, event: str, fields: dict[str, object]) -> None:
    if _LIBRARY.isEnabledFor(level):
        with_trace = bool(fields.pop("exc_info", False))
        text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        _LIBRARY.log(level, "%s", text, exc_info=with_trace, stacklevel=3)


_library_log: Final = _LibraryLog()


def configure(process: str, *, level: str = "INFO") -> None:
    """Set up logging, once per process, before the first event. kafka-python stays at INFO, because at DEBUG it logs
    records."""
    global _configured  # noqa: PLW0603 - a process has one log
    # Only the daemon's processes require structlog.
    import structlog  # noqa: PLC0415

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    logging.getLogger("kafka").setLevel(logging.INFO)
    _configured = True


def get() -> EventLogger:
    """Return the logger of this process: JSON lines if configured, otherwise the application's."""
    if not _configured:
        return _library_log
    import structlog  # noqa: PLC0415 - as above

    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
