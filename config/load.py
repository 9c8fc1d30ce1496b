"""Settings from TOML files: the main one, then `conf.d/*.toml` beside it. Every problem is told at once.

`linger.ms = 5` in TOML is a table in a table; it is read back as Kafka's name. `${NAME}` in a text takes the environment's
value. A setting given in two files is an error that names both.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Final, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .bootstrap import parse_bootstrap
from .errors import ConfigError, shown, what_is_wanted
from .kafka_names import DAEMON_REFUSED
from .model import Settings
from .security import broken_rules
from .security_names import ELSEWHERE

Table = dict[str, object]

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SOCKET_PATH_BYTES_MAX: Final = 107


def load(path: Path) -> Settings:
    """Read, merge, check.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[str] = []
    merged: Table = {}
    origin: dict[tuple[str, ...], Path] = {}
    drop_ins = sorted((path.parent / "conf.d").glob("*.toml"))
    for file in [path, *drop_ins]:
        table = _read(file, problems)
        expanded = cast("Table", _expand(table, file, problems))
        _merge(merged, expanded, file, origin, (), problems)
    if problems:
        raise ConfigError(problems)
    return validate(merged, str(path))


def validate(table: Table, source: str) -> Settings:
    """Check a table of settings as TOML gives it.

    Raises:
        ConfigError: with every problem found.
    """
    try:
        settings = Settings.model_validate(_names(table))
    except ValidationError as error:
        raise ConfigError([_sentence(detail, source) for detail in error.errors()]) from error
    problems = list(_across(settings, source))
    if problems:
        raise ConfigError(problems)
    return settings


def _read(file: Path, problems: list[str]) -> Table:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        problems.append(f"{file}: there is no such file. Give the settings file with --config.")
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        problems.append(f"{file}: is not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        hint = ""
        if "overwrite a value" in str(error):
            hint = ' (a Kafka name that is also the beginning of another needs quotes: "buffer.memory" = …)'
        problems.append(f"{file}: is not TOML: {error}{hint}")
    return {}


def _expand(value: object, file: Path, problems: list[str]) -> object:
    if isinstance(value, str):

        def replace(match: re.Match[str]) -> str:
            found = os.environ.get(match[1])
            if found is None:
                problems.append(f"{file}: ${{{match[1]}}} is not set in the environment")
                return ""
            return found

        return _VARIABLE.sub(replace, value)
    if isinstance(value, dict):
        return {key: _expand(item, file, problems) for key, item in cast("Table", value).items()}
    if isinstance(value, list):
        return [_expand(item, file, problems) for item in cast("list[object]", value)]
    return value


def _merge(
    into: Table,
    table: Table,
    file: Path,
    origin: dict[tuple[str, ...], Path],
    place: tuple[str, ...],
    problems: list[str],
) -> None:
    for key, value in table.items():
        here = (*place, key)
        there = into.get(key)
        if isinstance(value, dict) and (there is None or isinstance(there, dict)):
            into.setdefault(key, {})
            _merge(cast("Table", into[key]), cast("Table", value), file, origin, here, problems)
        elif key in into:
            first = origin.get(here) or next(file for name, file in origin.items() if name[: len(here)] == here)
            problems.append(f"{'.'.join(here)} is set in {first} and again in {file}: keep one")
        else:
            into[key] = value
            origin[here] = file


def _names(table: Table) -> Table:
    """Give back their dots to Kafka's names."""
    result = dict(table)
    kafka = result.get("kafka")
    if isinstance(kafka, dict):
        result["kafka"] = dict(_flat(cast("Table", kafka), ""))
    topics = result.get("topics")
    if isinstance(topics, dict):
        result["topics"] = {
            pattern: dict(_flat(cast("Table", item), "")) if isinstance(item, dict) else item
            for pattern, item in cast("Table", topics).items()
        }
    return result


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(cast("Table", value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _sentence(detail: ErrorDetails, source: str) -> str:
    place = [str(part) for part in detail["loc"]]
    name = ".".join(place)
    if detail["type"] == "extra_forbidden":
        return f"{source}: {_unknown(place)}"
    if detail["type"] == "missing":
        return f"{source}: {name} is missing" + (
            ': say where Kafka is, for example bootstrap.servers = "localhost:9092" under [kafka]'
            if name in ("kafka", "kafka.bootstrap.servers")
            else ""
        )
    return f"{source}: {name} = {shown(detail['input'])}: {what_is_wanted(detail)}"


def _unknown(place: list[str]) -> str:
    last = place[-1]
    reason = DAEMON_REFUSED.get(last, ELSEWHERE.get(last))
    if place[0] in ("kafka", "topics") and reason is not None:
        return f"{'.'.join(place)} is not kept: {reason}"
    near = difflib.get_close_matches(last, _known(place), n=1, cutoff=0.5)
    hint = f"; the nearest known one is {'.'.join([*place[:-1], near[0]])}" if near else ""
    return f"{'.'.join(place)} is not a setting{hint}"


def _known(place: list[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in place[:-1]:
        field = next((item for name, item in model.model_fields.items() if part in (name, item.alias)), None)
        if field is None:
            continue
        inner = _model_in(field.annotation)
        if inner is not None:
            model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (dict, Union, UnionType):
        return next((found for item in get_args(annotation) if (found := _model_in(item))), None)
    return None


def _across(settings: Settings, source: str) -> Iterator[str]:
    """Rules between settings."""
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
    yield from (f"{source}: kafka.{rule.sentence}" for rule in broken_rules(settings.kafka))
    try:
        _ = parse_bootstrap(settings.kafka.bootstrap_servers)
    except ValueError as error:
        yield f"{source}: kafka.{error}"
