"""The reference page of a command line, generated from its commands."""

from collections.abc import Iterator
from typing import Any, cast

import typer.main


def verbs_of(app: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Yield every verb with its command, in the order of `--help`."""
    top = cast("Any", typer.main.get_command(app))
    for name, command in top.commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            yield from ((f"{name} {part}", found) for part, found in inner.items())


def options_of(app: typer.Typer) -> dict[str, set[str]]:
    """The long options of every verb, with `--help`."""
    return {
        verb: {name for param in command.params for name in param.opts if name.startswith("--")} | {"--help"}
        for verb, command in verbs_of(app)
    }


def _rows(command: Any) -> Iterator[str]:  # noqa: ANN401 - typer does not type its commands
    for param in command.params:
        if getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            name = f"{param.name.upper()}{'…' if param.nargs == -1 else ''}"
        else:
            name = ", ".join(param.opts)
        text = (getattr(param, "help", None) or "").replace("|", "\\|")
        default = param.default
        told = not (default is None or default is False or default == () or param.required)
        yield f"| `{name}` | {f'`{default}`' if told else ''} | {text} |"


def sections_of(app: typer.Typer, command_name: str) -> Iterator[str]:
    """Yield a section for each verb."""
    for verb, command in verbs_of(app):
        yield f"## {command_name} {verb}\n"
        yield " ".join((command.help or "").split()) + "\n"
        rows = list(_rows(command))
        if rows:
            yield from ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""]
