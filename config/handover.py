"""Passes settings from the launcher to the processes: checked once, written as JSON, identified by their digest."""

import hashlib
import json
import os
from fnmatch import fnmatchcase
from pathlib import Path

from .model import DaemonTopicSettings, Settings


def digest(settings: Settings) -> str:
    """Return a short digest that identifies exactly these settings."""
    return hashlib.sha256(_canonical(settings)).hexdigest()[:16]


def write(settings: Settings, path: Path) -> None:
    """Write the settings for the processes (mode 0600, atomically)."""
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_canonical(settings))
    temporary.replace(path)


def read(path: Path) -> Settings:
    return Settings.model_validate_json(path.read_bytes())


def topic_settings(settings: Settings, topic: str) -> DaemonTopicSettings:
    """Return the settings of the first pattern that matches, else the defaults."""
    return next(
        (found for pattern, found in settings.topics.items() if fnmatchcase(topic, pattern)), DaemonTopicSettings()
    )


def _canonical(settings: Settings) -> bytes:
    return json.dumps(settings.model_dump(mode="json", by_alias=True), sort_keys=True).encode()
