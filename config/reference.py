"""Generates the reference pages of the settings from their declarations."""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .direct import DirectSettings
from .durations import seconds_of, text_of
from .kafka_names import DAEMON_REFUSED, DIRECT_REFUSED, EVERY_DEFAULT, NEWER_DEFAULTS
from .model import (
    AuditSettings,
    DaemonTopicSettings,
    Exporter,
    KafkaSettings,
    LimitSettings,
    Settings,
    SpoolSettings,
    Timeouts,
)
from .pipeline import (
    LandSettings,
    ListenerSettings,
    PipelineAuditSettings,
    PipelineSettings,
    PipelineTopicSettings,
    SealSettings,
)
from .pipeline_kafka import JAVA_ONLY, REFUSED, PipelineKafka
from .security import SecuritySettings

_HEAD = """# Settings

Made from the declarations in `config/model.py` by `penstock config reference`; do not edit.

One TOML file (`--config`, by default `/etc/penstock/penstock.toml`) and drop-ins beside it in `conf.d/*.toml`. A setting given
twice, an unknown one and a wrong value are errors, reported all at once. `${NAME}` in a text takes the value from the environment.
Kafka's settings keep Kafka's names, with dots; a name that is also the beginning of another must be quoted. Sizes are numbers of
bytes or texts such as `"64MiB"`.
"""

_PIPELINE_HEAD = """# Settings of the pipeline

Made from the declarations in `config/pipeline.py` by `make docs`; do not edit.

One TOML file (`--config`, by default `/etc/penstock/pipeline.toml`) and drop-ins beside it in `pipeline.conf.d/*.toml` (named after the
file). A setting given twice, an unknown one and a wrong value are errors, reported all at once. `${NAME}` in a text takes the value from
the environment. Kafka's and Spark's settings keep their names. Times are numbers of seconds or texts such as `"500ms"`, `"30s"`,
`"5m"`, `"24h"`, `"7d"`; sizes are numbers of bytes or texts such as `"64MiB"`.
"""

_DIRECT_HEAD = """# Settings of the direct producer

Made from the declarations in `config/direct.py` and `config/producer.py` by `make docs`; do not edit. The daemon's are on
[a page of their own](settings.md).

A mapping of Kafka's names to values, as `KafkaProducer` in Java takes them: a number may be a number or its text, as in a
properties file. Names may be written with underscores instead of dots. Unknown names, wrong values and settings that contradict
each other are errors, reported all at once; nothing is started.
"""

_SECURITY = frozenset(SecuritySettings.model_fields)


def page() -> str:
    parts = [_HEAD, *section_rows("Top level", Settings, skip=(BaseModel,))]
    parts += section_rows("[kafka]", KafkaSettings, kafka=True, without=_SECURITY)
    parts += section_rows("[kafka]: security", SecuritySettings, kafka=True)
    parts += section_rows("[spool]", SpoolSettings)
    parts += section_rows("[exporter]", Exporter)
    parts += section_rows("[limits]", LimitSettings)
    parts += section_rows("[timeouts]", Timeouts)
    parts += section_rows("[audit]", AuditSettings)
    parts += section_rows('[topics."pattern"]', DaemonTopicSettings)
    parts += _not_kept(DAEMON_REFUSED)
    return "\n".join(parts)


def direct_page() -> str:
    parts = [_DIRECT_HEAD, *section_rows("The settings", DirectSettings, kafka=True, without=_SECURITY)]
    parts += [*section_rows("Security", SecuritySettings, kafka=True), *_not_kept(DIRECT_REFUSED)]
    return "\n".join(parts)


def pipeline_page() -> str:
    lines = [_PIPELINE_HEAD, *section_rows("Top level", PipelineSettings, skip=(BaseModel,), unset="none")]
    lines += section_rows("[kafka]", PipelineKafka, without=_SECURITY | {"java"}, unset="none")
    lines += _java()
    lines += section_rows("[kafka]: security", SecuritySettings, kafka=True)
    lines += section_rows("[land]", LandSettings)
    lines += section_rows('[topics."name"]', PipelineTopicSettings, unset="none")
    lines += section_rows("[audit]", PipelineAuditSettings, unset="none")
    lines += section_rows("[seal]", SealSettings)
    lines += section_rows("[listener]", ListenerSettings)
    lines += ["## [spark]\n", "Any setting of Spark. `spark.` may be left out of its name.\n"]
    return "\n".join(lines)


def _java() -> Iterator[str]:
    names = ", ".join(f"`{name}`" for name in sorted(JAVA_ONLY))
    yield f"Taken besides, and given to Spark's connector as they stand: {names}.\n"
    yield "| not taken | why |"
    yield "|---|---|"
    yield from (f"| `{name}` | {reason} |" for name, reason in sorted(REFUSED.items()))
    yield ""


def _not_kept(reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings of Kafka's producer that this one refuses, by reason."""
    yield "## Kafka's settings that are not kept\n"
    yield "Each is refused by its name, with this reason.\n"
    yield "| settings | why |"
    yield "|---|---|"
    names_of: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names_of.setdefault(reason, []).append(f"`{name}`")
    for reason, names in sorted(names_of.items(), key=lambda item: item[1]):
        yield f"| {', '.join(names)} | {reason} |"
    yield ""


def _kafka_default(name: str) -> str:
    value = EVERY_DEFAULT.get(name)
    if value is None:
        return "not a setting of Kafka's producer"
    later = " (newer than 4.3)" if name in NEWER_DEFAULTS else ""
    return (
        f"`{value}`" if value not in ("", "null", "required") else {"": "empty", "null": "none"}.get(value, value)
    ) + later


def section_rows(
    title: str,
    model: type[BaseModel],
    *,
    kafka: bool = False,
    skip: tuple[type, ...] = (),
    without: frozenset[str] = frozenset(),
    unset: str = "as `[kafka]`",
) -> Iterator[str]:
    """Yield a table of a model's settings. `unset`: text for a default of None."""
    yield f"## {title}\n"
    if model.__doc__:
        yield f"{model.__doc__.strip()}\n"
    columns = "| setting | default | values | meaning |"
    if kafka:
        columns = "| setting | default | Kafka's default | values | meaning |"
    yield columns
    yield "|---" * (columns.count("|") - 1) + "|"
    for name, field in model.model_fields.items():
        if name in without or (skip and _is_section(field.annotation)):
            continue
        label = field.alias or name
        meaning = " ".join((field.description or "").split())
        cells = [f"`{label}`", "none" if kafka and field.default is None else _default(field, unset)]
        if kafka:
            cells.append(_kafka_default(label))
        yield "| " + " | ".join([*cells, _values(field), meaning]) + " |"
    yield ""


def _is_section(annotation: object) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, BaseModel)
    return get_origin(annotation) is dict


def _default(field: FieldInfo, unset: str) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return unset
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if _is_time(field):
        return f"`{text_of(field.default)}`"
    if isinstance(field.default, ByteSize):
        return f"`{int(field.default)}` ({field.default.human_readable()})"
    return f"`{field.default}`" if field.default != "" else "empty"


def _values(field: FieldInfo) -> str:
    limits = [
        f"{sign} {value}"
        for sign, name in (("≥", "ge"), ("≤", "le"), (">", "gt"), ("<", "lt"))
        for value in [next((getattr(item, name) for item in field.metadata if hasattr(item, name)), None)]
        if value is not None
    ]
    return ", ".join(["time" if _is_time(field) else _kind(field.annotation), *limits])


def _is_time(field: FieldInfo) -> bool:
    return any(isinstance(item, BeforeValidator) and item.func is seconds_of for item in field.metadata)


def _kind(annotation: object) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        choices = (str(item).lower() if isinstance(item, bool) else item for item in get_args(annotation))
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in choices)
    if origin in (Union, UnionType):
        return ", ".join(_kind(item) for item in get_args(annotation) if item is not type(None))
    names = {ByteSize: "bytes", bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return names.get(annotation, "path") if isinstance(annotation, type) else str(annotation)
