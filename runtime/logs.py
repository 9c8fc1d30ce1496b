"""Logs: one JSON line an event, past tense, with fields, on standard error.

In an application that uses the library nobody calls `configure`: there events go to the standard library's logger
`penstock.producer`, and what becomes of them is the application's choice.
"""

import logging
import sys
from typing import Any, Final, Protocol

_LIBRARY: Final = logging.getLogger("penstock.producer")
_configured = False


class EventLogger(Protocol):
    """Takes events. Use fields, not text."""

    def debug(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - whatever has a text
    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def error(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def exception(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def critical(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401


class _LibraryLog:
    """Events as texts for the standard library's logging."""

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
    """Once per process, before the first line. kafka-python is kept at INFO: at DEBUG it writes records out."""
    global _configured  # noqa: PLW0603 - a process has one log
    # Only processes of the daemon have it; an application need not.
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
    """The log of this process, or the application's."""
    if not _configured:
        return _library_log
    import structlog  # noqa: PLC0415 - as above

    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
