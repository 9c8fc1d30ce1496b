"""Settings handed from the launcher to the processes: read and checked once, written as JSON, known by their digest."""

import hashlib
import json
import os
from fnmatch import fnmatchcase
from pathlib import Path

from .model import DaemonTopicSettings, Settings


def digest(settings: Settings) -> str:
    """A short name of exactly these settings."""
    return hashlib.sha256(_canonical(settings)).hexdigest()[:16]


def write(settings: Settings, path: Path) -> None:
    """Write for the processes (mode 0600, atomically)."""
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_canonical(settings))
    temporary.replace(path)


def read(path: Path) -> Settings:
    """What `write` wrote."""
    return Settings.model_validate_json(path.read_bytes())


def topic_settings(settings: Settings, topic: str) -> DaemonTopicSettings:
    """The first pattern that matches, else the defaults."""
    return next(
        (found for pattern, found in settings.topics.items() if fnmatchcase(topic, pattern)), DaemonTopicSettings()
    )


def _canonical(settings: Settings) -> bytes:
    return json.dumps(settings.model_dump(mode="json", by_alias=True), sort_keys=True).encode()
