"""Loads the daemon's settings: the main TOML file, then `conf.d/*.toml` beside it. Reports every problem at once."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from pydantic import ValidationError

from .errors import ConfigError
from .kafka_names import DAEMON_REFUSED
from .model import Settings
from .security import rule_violations
from .security_names import OTHER_CLIENTS_NAMES
from .toml_files import Table, error_message, read_merged, with_flat

_REFUSED: Final = {**OTHER_CLIENTS_NAMES, **DAEMON_REFUSED}
_SOCKET_PATH_BYTES_MAX: Final = 107


def load(path: Path) -> Settings:
    """Read the files, merge them and check the settings.

    Raises:
        ConfigError: with every problem found.
    """
    merged = read_merged([path, *sorted((path.parent / "conf.d").glob("*.toml"))])
    return validate(merged, str(path))


def validate(table: Table, source: str) -> Settings:
    """Check a table of settings as TOML gives it.

    Raises:
        ConfigError: with every problem found.
    """
    try:
        settings = Settings.model_validate(_names(table))
    except ValidationError as error:
        raise ConfigError([error_message(detail, source, Settings, _REFUSED) for detail in error.errors()]) from error
    problems = list(_across(settings, source))
    if problems:
        raise ConfigError(problems)
    return settings


def _names(table: Table) -> Table:
    """Restore the dots in Kafka's names."""
    result = with_flat(table, "kafka")
    topics = result.get("topics")
    if isinstance(topics, dict):
        result["topics"] = with_flat(cast("Table", topics), *cast("Table", topics))
    return result


def _across(settings: Settings, source: str) -> Iterator[str]:
    """Yield violations of the rules between settings."""
    for path in (
        settings.socket_path,
        settings.control_path,
        settings.bus_path,
        settings.runtime_dir / "supervisor.sock",
    ):
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES_MAX:
            yield f"{source}: runtime_dir is too long: {path} exceeds the {_SOCKET_PATH_BYTES_MAX} bytes of a socket's path"
            break
    if settings.spool.segment_bytes < 4 * settings.limits.frame_bytes_max:
        yield f"{source}: spool.segment_bytes must be at least four times limits.frame_bytes_max"
    if settings.spool.bytes_max < 4 * settings.spool.segment_bytes:
        yield f"{source}: spool.bytes_max must be at least four times spool.segment_bytes"
    if settings.kafka.batch_size > settings.kafka.max_request_size:
        yield f"{source}: kafka.batch.size must not exceed kafka.max.request.size"
    if settings.kafka.buffer_memory < 4 * settings.kafka.batch_size:
        yield f"{source}: kafka.buffer.memory must be at least four times kafka.batch.size"
    if settings.kafka.partitioner_rack_aware and not settings.kafka.client_rack:
        yield f"{source}: kafka.partitioner.rack.aware needs kafka.client.rack: the rack that the daemon stands in"
    for rule in rule_violations(settings.kafka, settings.kafka.bootstrap_servers):
        yield f"{source}: kafka.{rule.message}"
