"""`penstock spool …`: inspect the spool, live or a copy, and check it. These commands change nothing."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from .common import ConfigOption, DirectoryOption, JsonOption, RuntimeOption, data_settings, fail, write_json

if TYPE_CHECKING:
    from ..daemon.spool.report import SpoolReport, VerifyReport

Report = TypeVar("Report", "SpoolReport", "VerifyReport")

app = typer.Typer(no_args_is_help=True, help="Inspect and check the spool without changing it.")


@app.command()
def show(
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show segments, entries by kind, partitions and client ids."""
    from ..daemon.spool import report as spool_report

    _ = _write_report(spool_report.show, directory, config, runtime_dir, as_json=as_json)


@app.command()
def verify(
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify every checksum. The exit code is 1 if anything is damaged."""
    from ..daemon.spool import report as spool_report

    if _write_report(spool_report.verify, directory, config, runtime_dir, as_json=as_json).damaged:
        raise typer.Exit(1)


def _write_report(
    look: Callable[[Path], Report], directory: Path | None, config: Path | None, runtime: Path | None, *, as_json: bool
) -> Report:
    """Create the report and write it as JSON or as text."""
    folder = directory or data_settings(config, runtime).spool_dir
    try:
        report = look(folder)
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    if as_json:
        write_json(asdict(report))
    else:
        _ = sys.stdout.write(report.text())
    return report
