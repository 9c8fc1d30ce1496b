"""Generates the reference page of the command line from the commands themselves (`make docs`)."""

from typing import Final

import typer

from ..runtime.command_page import options_of, sections_of
from ..runtime.process import ExitCode

EXITS: Final = {
    ExitCode.OK: "success; of a process: an orderly shutdown",
    ExitCode.FAILED: "failure; standard error explains why",
    ExitCode.USAGE: "wrong options",
    ExitCode.PARENT_GONE: "of a process: the launcher has ended",
    ExitCode.PEER_GONE: "of a shard: its router has ended, or the bus between them failed",
    ExitCode.INVARIANT_VIOLATED: "of a process: an invariant was violated; the process stops without sending more",
    ExitCode.SPOOL: "of a process: spool or journal cannot be used",
    ExitCode.CONFIGURATION: "the settings, or the things that they describe, are wrong; every problem is reported",
}
"""What each exit code means."""

_HEAD: Final = """# The command line

Made from the commands by `penstock.cli.reference`; do not edit. `penstock VERB --help` says the same. `--config` is by default
`/etc/penstock/penstock.toml`. Verbs about a running daemon find it by `--runtime-dir`, by the folder of `PENSTOCK_SOCKET`, or by the settings
file. With `--json` they write one JSON document for programs. Of these, only `send` may be run by others than the daemon's user and root.
"""


def _app() -> typer.Typer:
    # The page is about the whole command, and `main` need not know of it.
    from .main import app

    return app


def options() -> dict[str, set[str]]:
    """Return each verb's options: `spool show` -> `{"--config", …}`."""
    return options_of(_app())


def page() -> str:
    """Render the page in Markdown."""
    lines = [_HEAD, *sections_of(_app(), "penstock")]
    lines += ["## Exit codes\n", "| code | name | meaning |", "|---|---|---|"]
    lines += [f"| {int(code)} | `{code.name}` | {text} |" for code, text in sorted(EXITS.items())]
    return "\n".join(lines) + "\n"
