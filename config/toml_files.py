"""Common parts of all settings files: TOML with drop-ins, `${NAME}`, dotted names, and messages for problems.

`linger.ms = 5` in TOML is a nested table; `flat` restores Kafka's name. A setting given in two files is an error that
names both.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Final, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from .errors import ConfigError, expectation, redacted

Table = dict[str, object]

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_merged(files: Iterable[Path]) -> Table:
    """Merge all the files into one table and expand variables.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[str] = []
    merged: Table = {}
    origin: dict[tuple[str, ...], Path] = {}
    for file in files:
        table = _read(file, problems)
        expanded = cast("Table", _expand(table, file, problems))
        _merge(merged, expanded, file, origin, (), problems)
    if problems:
        raise ConfigError(problems)
    return merged


def _read(file: Path, problems: list[str]) -> Table:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
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


def flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted names and their values."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(cast("Table", value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def with_flat(table: Mapping[str, object], *sections: str) -> Table:
    """Restore the dotted names in these sections."""
    dotted = {name: dict(flat(cast("Table", table[name]))) for name in sections if isinstance(table.get(name), dict)}
    return {**table, **dotted}


def error_message(detail: ErrorDetails, source: str, model: type[BaseModel], refused: Mapping[str, str]) -> str:
    """Return a message with problem, place and remedy. `refused`: reasons for refusing known names."""
    place = [str(part) for part in detail["loc"]]
    name = ".".join(place)
    if detail["type"] == "extra_forbidden":
        return f"{source}: {_unknown(place, model, refused)}"
    if detail["type"] == "missing":
        return f"{source}: {name} is missing" + (
            ': say where Kafka is, for example bootstrap.servers = "localhost:9092" under [kafka]'
            if name in ("kafka", "kafka.bootstrap.servers")
            else ""
        )
    return f"{source}: {name} = {redacted(detail['input'])}: {expectation(detail)}"


def _unknown(place: list[str], model: type[BaseModel], refused: Mapping[str, str]) -> str:
    last = place[-1]
    reason = refused.get(last)
    if place[0] in ("kafka", "topics") and reason is not None:
        return f"{'.'.join(place)} is not kept: {reason}"
    return f"{'.'.join(place)} is not a setting{suggestion(place, _known(place, model))}"


def suggestion(place: list[str], known: Iterable[str]) -> str:
    """Return the end of a sentence that suggests the nearest known name, or an empty string."""
    near = difflib.get_close_matches(place[-1], list(known), n=1, cutoff=0.5)
    return f"; the nearest known one is {'.'.join([*place[:-1], near[0]])}" if near else ""


def _known(place: list[str], model: type[BaseModel]) -> list[str]:
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
