"""The reference page of `penstock-pipeline`, generated from its commands (`make docs`)."""

from typing import Final

from ..runtime.command_page import options_of, sections_of
from .cli import app
from .exits import MEANINGS

_HEAD: Final = """# The command line of the pipeline

Made from the commands by `penstock.pipeline.command_page`; do not edit. `penstock-pipeline VERB --help` says the same. `--config` is
by default `/etc/penstock/pipeline.toml`. Logs are JSON lines on standard error; what people asked for is on standard output.
"""


def options() -> dict[str, set[str]]:
    """The options of each verb."""
    return options_of(app)


def page() -> str:
    """Return the page as Markdown."""
    lines = [_HEAD, *sections_of(app, "penstock-pipeline")]
    lines += ["## Exit codes\n", "| code | name | meaning |", "|---|---|---|"]
    lines += [f"| {int(code)} | `{code.name}` | {text} |" for code, text in sorted(MEANINGS.items())]
    return "\n".join(lines) + "\n"
