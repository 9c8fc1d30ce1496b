"""The reference page of the command line, made from the commands themselves (`make docs`)."""

from collections.abc import Iterator
from typing import Any, Final, cast

import typer.main

from ..runtime.process import Exit

EXITS: Final = {
    Exit.OK: "done; of a process: an orderly end",
    Exit.FAILED: "it could not be done; standard error says why",
    Exit.USAGE: "wrong options",
    Exit.PARENT_GONE: "of a process: the launcher has ended",
    Exit.PEER_GONE: "of a shard: its router has ended, or the bus between them broke",
    Exit.BROKEN: "of a process: a rule was broken; it stops rather than send",
    Exit.SPOOL: "of a process: spool or journal cannot be had",
    Exit.CONFIGURATION: "the settings, or what they describe, are wrong; every problem is told",
}
"""What each exit code means."""

_HEAD: Final = """# The command line

Made from the commands by `penstock.cli.reference`; do not edit. `penstock VERB --help` says the same. `--config` is by default
`/etc/penstock/penstock.toml`. Verbs about a running daemon find it by `--runtime-dir`, by the folder of `PENSTOCK_SOCKET`, or by the settings
file. With `--json` they write one JSON document for programs. Of these, only `send` may be run by others than the daemon's user and root.
"""


def verbs_of(app: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Every verb with its command, in the order of `--help`."""
    top = cast("Any", typer.main.get_command(app))
    for name, command in top.commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            yield from ((f"{name} {part}", found) for part, found in inner.items())


def _app() -> typer.Typer:
    # The page is about the whole command, and `main` need not know of it.
    from .main import app

    return app


def options() -> dict[str, set[str]]:
    """Each verb's options: `spool show` -> `{"--config", …}`."""
    return options_of(_app())


def options_of(app: typer.Typer) -> dict[str, set[str]]:
    """The same of any command."""
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


def page() -> str:
    """The page, Markdown."""
    lines = [_HEAD, *sections_of(_app(), "penstock")]
    lines += ["## Exit codes\n", "| code | name | meaning |", "|---|---|---|"]
    lines += [f"| {int(code)} | `{code.name}` | {text} |" for code, text in sorted(EXITS.items())]
    return "\n".join(lines) + "\n"


def sections_of(app: typer.Typer, command_name: str) -> Iterator[str]:
    """A section for each verb."""
    for verb, command in verbs_of(app):
        yield f"## {command_name} {verb}\n"
        yield " ".join((command.help or "").split()) + "\n"
        rows = list(_rows(command))
        if rows:
            yield from ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""]
