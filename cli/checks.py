"""What `penstock check` looks at besides the settings themselves."""

import os
import resource
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..config.bootstrap import parse_bootstrap
from ..config.model import Settings
from ..runtime.clock import monotonic

_CONNECT_S: Final = 5.0
_DESCRIPTORS_PER_PEER: Final = 4
_BROKERS_ASSUMED: Final = 16


@dataclass(slots=True)
class Found:
    """What would keep the daemon from starting, and what may surprise later."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def host(settings: Settings) -> Found:
    """Directories, file system, descriptors, checksums: without touching what a running daemon holds."""
    found = Found(warnings=[f"kafka.{caution}" for caution in settings.kafka.cautions()])
    for path in (settings.data_dir, settings.runtime_dir):
        _directory(path, found)
    _filesystem(settings, found)
    _descriptors(settings, found)
    from ..producer.core.batch import self_check

    try:
        self_check(monotonic)
    except RuntimeError as error:
        found.problems.append(str(error))
    return found


def _directory(path: Path, found: Found) -> None:
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), None)
    if existing is None or not os.access(existing, os.W_OK | os.X_OK):
        found.problems.append(f"{path} cannot be written by uid {os.getuid()}: create it for the daemon's user")


def _filesystem(settings: Settings, found: Found) -> None:
    from ..daemon.spool_directory import SpoolError, check_file_system

    place = next(parent for parent in (settings.spool_dir, *settings.spool_dir.parents) if parent.exists())
    try:
        found.warnings += check_file_system(place, allow_unsafe_filesystem=settings.spool.allow_unsafe_filesystem)
    except SpoolError as error:
        found.problems.append(str(error))


def _descriptors(settings: Settings, found: Found) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _DESCRIPTORS_PER_PEER * _BROKERS_ASSUMED + settings.limits.sessions_max
    if hard != resource.RLIM_INFINITY and hard < needed:
        found.problems.append(
            f"the limit of {hard} open files is below the {needed} that limits.sessions_max asks for: raise it (LimitNOFILE=), or lower the setting"
        )


def brokers(settings: Settings) -> list[str]:
    """Ask every bootstrap server for a connection; problems where none answers."""
    failures: list[str] = []
    servers = parse_bootstrap(settings.kafka.bootstrap_servers)
    for host, port in servers:
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_S):
                pass
        except OSError as error:
            failures.append(f"kafka.bootstrap.servers: {host}:{port}: {error.strerror or error}")
    if len(failures) < len(servers):
        return []
    return [*failures, "no bootstrap server answers: records would wait in the spool"]
