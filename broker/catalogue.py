"""The topic list: in memory for one node, or in a folder that all nodes of a cluster share.

    <folder>/lock       held (flock) while the list is changed
    <folder>/NAME@N.t   topic NAME in its incarnation N: {"partitions": 12, "settings": {"max.message.bytes": "1000"}}
    <folder>/NAME@N.d   it was deleted; the next topic of that name is incarnation N + 1

A file is written under another name and then renamed, so a crash leaves at most an unused `.tmp` file.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .log.topics import BrokerTopic, check_settings

TOPIC_SUFFIX: Final = ".t"
DELETED_SUFFIX: Final = ".d"
UNSETTLED_NS: Final = 100_000_000
"""If a folder changed less than this before a read, a later change may have the same timestamp."""

Settings = tuple[tuple[str, str], ...]


class MemoryCatalogue:
    """The topics of a cluster of one node, kept only in memory."""

    def __init__(self) -> None:
        self._topics: dict[str, BrokerTopic] = {}
        self._incarnations: dict[str, int] = {}
        self._changed = True

    def changed(self) -> bool:
        """Return whether a topic was created, changed or deleted since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def all(self) -> Sequence[BrokerTopic]:
        """Return the topics that exist."""
        return list(self._topics.values())

    def create(self, name: str, partitions: int, settings: Settings, replicas: int = 1) -> BrokerTopic | None:
        """Add a topic, or return None when one of that name exists."""
        assert replicas == 1
        if name in self._topics:
            return None
        incarnation = self._incarnations.get(name, -1) + 1
        self._incarnations[name] = incarnation
        self._topics[name] = BrokerTopic(name, incarnation, partitions, settings)
        self._changed = True
        return self._topics[name]

    def alter(self, topic: BrokerTopic, settings: Settings) -> bool:
        """Change the settings of a topic; False when it no longer exists."""
        if self._topics.get(topic.name, topic).id != topic.id or topic.name not in self._topics:
            return False
        self._topics[topic.name] = self._topics[topic.name]._replace(settings=settings)
        self._changed = True
        return True

    def delete(self, topic: BrokerTopic) -> bool:
        """Remove a topic; False when it no longer exists."""
        found = self._topics.get(topic.name)
        if found is None or found.id != topic.id:
            return False
        del self._topics[topic.name]
        self._changed = True
        return True


class FolderCatalogue:
    """The topics of a cluster, in a folder."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, created if it is missing.

        Raises:
            OSError: it cannot be created or read.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._read_at = -1
        self._stamp = -1

    def changed(self) -> bool:
        """Return whether the folder may have changed since the last `all`."""
        stamp = self._folder.stat().st_mtime_ns
        return stamp != self._stamp or self._read_at - stamp < UNSETTLED_NS

    def all(self) -> Sequence[BrokerTopic]:
        """Return the topics that exist."""
        # Read the timestamp first, so that a change during the read counts as a later one.
        self._stamp = self._folder.stat().st_mtime_ns
        self._read_at = time.time_ns()
        topics: list[BrokerTopic] = []
        for entry in sorted(path.name for path in self._folder.iterdir()):
            if entry.endswith(TOPIC_SUFFIX):
                topic = self._read(entry)
                if topic is not None:
                    topics.append(topic)
        return topics

    def create(self, name: str, partitions: int, settings: Settings, replicas: int = 1) -> BrokerTopic | None:
        """Add a topic, or return None when one of that name exists."""
        assert replicas == 1
        with self._lock():
            entries = [path.name for path in self._folder.iterdir()]
            lives = [entry.rpartition("@") for entry in entries if entry.startswith(f"{name}@")]
            if any(life.endswith(TOPIC_SUFFIX) for _, _, life in lives):
                return None
            incarnation = 1 + max((int(life.partition(".")[0]) for _, _, life in lives), default=-1)
            topic = BrokerTopic(name, incarnation, partitions, settings)
            self._write(topic)
            return topic

    def alter(self, topic: BrokerTopic, settings: Settings) -> bool:
        """Change the settings of a topic; False when it no longer exists."""
        with self._lock():
            if not self._path(topic).exists():
                return False
            self._write(topic._replace(settings=settings))
            return True

    def delete(self, topic: BrokerTopic) -> bool:
        """Remove a topic; False when it no longer exists."""
        with self._lock():
            path = self._path(topic)
            if not path.exists():
                return False
            _ = path.rename(path.with_name(f"{topic.name}@{topic.incarnation}{DELETED_SUFFIX}"))
            return True

    def _path(self, topic: BrokerTopic) -> Path:
        return self._folder / f"{topic.name}@{topic.incarnation}{TOPIC_SUFFIX}"

    def _read(self, entry: str) -> BrokerTopic | None:
        try:
            content = json.loads((self._folder / entry).read_text())
        except FileNotFoundError:
            return None  # deleted after the folder was listed
        name, _, life = entry.rpartition("@")
        settings = check_settings(content["settings"])
        return BrokerTopic(name, int(life.removesuffix(TOPIC_SUFFIX)), int(content["partitions"]), settings)

    def _write(self, topic: BrokerTopic) -> None:
        path = self._path(topic)
        aside = path.with_name(f".{os.getpid()}.tmp")
        _ = aside.write_text(json.dumps({"partitions": topic.partitions, "settings": dict(topic.settings)}))
        _ = aside.rename(path)

    @contextmanager
    def _lock(self) -> Generator[None]:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
