"""Logs: one JSON line an event, past tense, with fields, on standard error."""

import logging
import sys

import structlog


def configure(process: str, *, level: str = "INFO") -> None:
    """Once per process, before the first line. kafka-python is kept at INFO: at DEBUG it writes records out."""
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


def get() -> structlog.typing.FilteringBoundLogger:
    """A logger; use its fields, not text."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
