"""Verbs about the daemon as a whole: `status`, `reload`, `resend`, `check`, `broker`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import handover
from ..config.errors import ConfigError
from ..config.load import load
from ..runtime.process import ExitCode
from .common import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    RuntimeOption,
    fail,
    runtime_directory,
    settings_from,
    write_json,
)


def _ask(runtime: Path, verb: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
    """Send a command to the running daemon and return its response. Exits with a message if that fails."""
    from ..daemon.processes.control_client import ControlError, ask

    try:
        return ask(runtime / "control.sock", verb, **arguments)
    except ControlError as error:
        fail(str(error))


def status(config: ConfigOption = None, runtime_dir: RuntimeOption = None, as_json: JsonOption = False) -> None:
    """Show the state of the running daemon: records, spool, brokers, shards, alarms."""
    from .status_page import show

    stats = _ask(runtime_directory(runtime_dir, config), "stats")
    if as_json:
        write_json(stats)
    else:
        assert isinstance(stats, dict)
        show(stats)


def reload(config: ConfigOption = None, runtime_dir: RuntimeOption = None, as_json: JsonOption = False) -> None:
    """Check the settings file, then apply to the running daemon the settings that can change at run time."""
    from ..daemon.processes.control_client import ControlError, ask

    settings = settings_from(config)
    runtime = runtime_dir.absolute() if runtime_dir else settings.runtime_dir
    handed_over = runtime / "settings.json"
    try:
        before = handover.read(handed_over)
        handover.write(settings, handed_over)
    except OSError as error:
        fail(f"{handed_over}: {error.strerror}: is the daemon running, and is this its user?")
    try:
        result: Any = ask(runtime / "control.sock", "reload")
    except ControlError as error:
        handover.write(before, handed_over)
        fail(str(error))
    if as_json:
        write_json(result)
        return
    for name in result.get("changed", []):
        sys.stdout.write(f"in force: {name}\n")
    for name in result.get("needs_restart", []):
        sys.stdout.write(f"in force after a restart: {name}\n")
    if not result.get("changed") and not result.get("needs_restart"):
        sys.stdout.write("nothing changed\n")


def resend(
    topic: Annotated[str, typer.Argument(help="Topic of the partition.")],
    partition: Annotated[int, typer.Argument(help="Partition number.", min=0)],
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
) -> None:
    """Resume one blocked partition under a new producer id. Records that were in flight may then be in Kafka twice."""
    _ = _ask(runtime_directory(runtime_dir, config), "resend", topic=topic, partition=partition)
    sys.stdout.write(f"{topic}-{partition} resumed; see possible_duplicates in the log\n")


def check(
    config: ConfigOption = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also connect to the brokers: TLS, login, one request.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find every problem before a start: settings, directories, spool, and, with --connect, brokers."""
    path = config or DEFAULT_CONFIG
    problems: list[str] = []
    warnings: list[str] = []
    try:
        settings = load(path)
    except ConfigError as error:
        problems = error.problems
    else:
        from . import checks

        found = checks.host(settings)
        problems, warnings = found.problems, found.warnings
        if connect:
            reached = checks.brokers(settings)
            problems, warnings = problems + reached.problems, warnings + reached.warnings
    if as_json:
        write_json({"ok": not problems, "problems": problems, "warnings": warnings})
    else:
        for text in warnings:
            sys.stdout.write(f"warning: {text}\n")
        for text in problems:
            sys.stderr.write(f"penstock: {text}\n")
        if not problems:
            sys.stdout.write(f"{path}: no problem found\n")
    if problems:
        raise typer.Exit(int(ExitCode.CONFIGURATION))


def broker(context: typer.Context) -> None:
    """Run a single embedded broker. NOT FOR PRODUCTION. Its options: `penstock broker --help-broker`."""
    from ..broker import server

    arguments = [argument.replace("--help-broker", "--help") for argument in context.args]
    raise typer.Exit(server.main(arguments))
