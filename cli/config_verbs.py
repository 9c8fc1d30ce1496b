"""`penstock config …`: settings in force, and the reference page."""

import sys

import typer

from ..config import reference as pages
from .common import ConfigOption, JsonOption, settings_from, write_json

app = typer.Typer(no_args_is_help=True, help="Show the settings in force, and the reference of all settings.")


@app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the settings in force: those of the file and every default."""
    table = settings_from(config).model_dump(mode="json", by_alias=True)
    if as_json:
        write_json(table)
        return
    for section, value in table.items():
        for name, item in value.items() if isinstance(value, dict) else ((None, value),):
            sys.stdout.write(f"{section}{'.' + name if name else ''} = {item!r}\n")


@app.command()
def reference(as_json: JsonOption = False) -> None:
    """Show every setting with its default, limits and meaning (Markdown; JSON schema with --json)."""
    if as_json:
        from ..config.model import Settings

        write_json(Settings.model_json_schema())
        return
    sys.stdout.write(pages.page())
