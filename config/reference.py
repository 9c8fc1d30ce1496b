"""The reference page of the settings, made from their declarations."""

from collections.abc import Iterator
from types import UnionType
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .kafka_names import EVERY_DEFAULT
from .model import Exporter, Kafka, Limits, Settings, Spool, Timeouts, Topic

_HEAD = """# Settings

Made from the declarations in `config/model.py` by `penstock config reference`; do not edit.

One TOML file (`--config`, by default `/etc/penstock/penstock.toml`) and drop-ins beside it in `conf.d/*.toml`. A setting given
twice, an unknown one and a wrong value are errors, told all at once. `${NAME}` in a text takes the value from the environment.
Kafka's settings keep Kafka's names, with dots; a name that is also the beginning of another must be quoted. Sizes are numbers of
bytes or texts such as `"64MiB"`.
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [_HEAD, *_section("Top level", Settings, skip=(BaseModel,))]
    parts += _section("[kafka]", Kafka, kafka=True)
    parts += _section("[spool]", Spool)
    parts += _section("[exporter]", Exporter)
    parts += _section("[limits]", Limits)
    parts += _section("[timeouts]", Timeouts)
    parts += _section('[topics."pattern"]', Topic)
    return "\n".join(parts)


def _section(title: str, model: type[BaseModel], *, kafka: bool = False, skip: tuple[type, ...] = ()) -> Iterator[str]:
    yield f"## {title}\n"
    if model.__doc__:
        yield f"{model.__doc__.strip()}\n"
    columns = "| setting | default | values | meaning |"
    if kafka:
        columns = "| setting | default | Kafka's default | values | meaning |"
    yield columns
    yield "|---" * (columns.count("|") - 1) + "|"
    for name, field in model.model_fields.items():
        if skip and _is_section(field.annotation):
            continue
        label = field.alias or name
        meaning = " ".join((field.description or "").split())
        cells = [f"`{label}`", _default(field)]
        if kafka:
            cells.append(EVERY_DEFAULT.get(label, "none"))
        yield "| " + " | ".join([*cells, _values(field), meaning]) + " |"
    yield ""


def _is_section(annotation: object) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, BaseModel)
    return get_origin(annotation) is dict


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "as `[kafka]`"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
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
    return ", ".join([_kind(field.annotation), *limits])


def _kind(annotation: object) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return ", ".join(f"`{str(item).lower() if isinstance(item, bool) else item}`" for item in get_args(annotation))
    if origin in (Union, UnionType):
        return ", ".join(_kind(item) for item in get_args(annotation) if item is not type(None))
    names = {ByteSize: "bytes", bool: "`true`, `false`", int: "whole number", str: "text"}
    return names.get(annotation, "path") if isinstance(annotation, type) else str(annotation)
