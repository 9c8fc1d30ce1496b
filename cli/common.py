"""Helpers shared by several verbs: load the settings file, fail with a message, write JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from ..config import handover
from ..config.errors import ConfigError
from ..config.load import load, validate
from ..config.model import Settings
from ..runtime.process import ExitCode

DEFAULT_CONFIG: Final = Path("/etc/penstock/penstock.toml")

DirectoryOption = Annotated[Path | None, typer.Option("--directory", help="The directory itself, or a copy of it.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help=f"Settings file. Default: {DEFAULT_CONFIG}", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
RuntimeOption = Annotated[
    Path | None,
    typer.Option(
        "--runtime-dir",
        help="The daemon's runtime directory. Default: the directory of PENSTOCK_SOCKET, or the one in the settings.",
    ),
]


def fail(text: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """Write a message to standard error and exit with `code`."""
    sys.stderr.write(f"penstock: {text}\n")
    raise typer.Exit(int(code))


def settings_from(config: Path | None, *, trial: tuple[Path, str] | None = None) -> Settings:
    """Load the settings of `config` or of the default file.

    With `trial` (directory, bootstrap servers) and no file, return settings that keep everything in that directory;
    with a file, those bootstrap servers replace the file's.

    Exits with `ExitCode.CONFIGURATION` after writing every problem.
    """
    try:
        if trial is None:
            return load(config or DEFAULT_CONFIG)
        directory, servers = trial
        if config is None:
            here = directory.absolute()
            table: dict[str, object] = {"data_dir": str(here / "data"), "runtime_dir": str(here / "run")}
            return validate({**table, "kafka": {"bootstrap.servers": servers}}, "--embedded-broker")
        settings = load(config)
        return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"bootstrap_servers": servers})})
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"penstock: {problem}\n")
        raise typer.Exit(int(ExitCode.CONFIGURATION)) from error


def runtime_directory(given: Path | None, config: Path | None) -> Path:
    """Return the daemon's socket directory: as given, else that of PENSTOCK_SOCKET, else the settings file's."""
    if given is not None:
        return given.absolute()
    named = os.environ.get("PENSTOCK_SOCKET")
    if named and config is None:
        return Path(named).absolute().parent
    if config is None and not DEFAULT_CONFIG.exists():
        return Path(Settings.model_fields["runtime_dir"].default)
    return settings_from(config).runtime_dir


def socket_path(given: Path | None, config: Path | None) -> Path:
    """Return the path of the daemon's socket: PENSTOCK_SOCKET unchanged, unless a directory or a file is given."""
    named = os.environ.get("PENSTOCK_SOCKET")
    if named and given is None and config is None:
        return Path(named).absolute()
    return runtime_directory(given, config) / "penstock.sock"


def running_settings(runtime: Path) -> Settings:
    """Return the settings that the running daemon was started with.

    Exits with a message if no daemon is running or its settings may not be read.
    """
    path = runtime / "settings.json"
    try:
        return handover.read(path)
    except FileNotFoundError:
        fail(f"{path} is not there: no daemon was started with this runtime directory (--runtime-dir, --config)")
    except PermissionError:
        fail(f"{path} may not be read by this user: run this as the daemon's user or as root")


def data_settings(config: Path | None, runtime: Path | None) -> Settings:
    """Return the settings that locate the records: the running daemon's if `runtime` is given, else the file's."""
    return running_settings(runtime.absolute()) if runtime is not None else settings_from(config)


def write_json(value: object) -> None:
    """Write one JSON document to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")
