"""`penstock spool …`: look into the spool, live or a copy, and check it. Nothing is changed."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .common import (
    ConfigOption,
    JsonOption,
    RuntimeOption,
    fail,
    running_settings,
    runtime_directory,
    settings_from,
    write_json,
)

app = typer.Typer(no_args_is_help=True, help="Look into the spool and check it; nothing is changed.")
DirectoryOption = Annotated[
    Path | None, typer.Option("--directory", help="The spool's folder itself, or a copy of it.")
]


def _folder(directory: Path | None, config: Path | None, runtime: Path | None) -> Path:
    if directory is not None:
        return directory
    if runtime is not None:
        return running_settings(runtime_directory(runtime, config)).spool_dir
    return settings_from(config).spool_dir


@app.command()
def show(
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Segments, entries by kind, partitions, client ids."""
    from ..daemon.spool_report import show as report

    folder = _folder(directory, config, runtime_dir)
    try:
        shown = report(folder)
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    if as_json:
        write_json(asdict(shown))
    else:
        sys.stdout.write(shown.text())


@app.command()
def verify(
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every checksum. Exit code 1 when anything is damaged."""
    from ..daemon.spool_report import verify as report

    folder = _folder(directory, config, runtime_dir)
    try:
        found = report(folder)
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    if as_json:
        write_json(asdict(found))
    else:
        sys.stdout.write(found.text())
    if found.damaged:
        raise typer.Exit(1)
