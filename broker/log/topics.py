"""Topics: names, ids, settings, and the assignment of partitions to nodes."""

from __future__ import annotations

import re
import uuid
import zlib
from enum import Enum
from typing import Final, NamedTuple

LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
ID_SPACE: Final = uuid.UUID("6f1d2c5e-6a0e-5c0b-9a5e-0c8f3f2f7d41")
"""Namespace of topic ids: version 5 UUIDs of the name, so that every node computes the same id."""

PARTITIONS_MAX: Final = 10_000
LONG_MAX: Final = (1 << 63) - 1


class TimestampType(Enum):
    """Whether a topic's records carry the producer's or the broker's time."""

    CREATE = "CreateTime"
    LOG_APPEND = "LogAppendTime"


class TopicRules(NamedTuple):
    """A topic's settings as the checks use them."""

    max_message_bytes: int = 1_048_588
    min_insync_replicas: int = 1
    timestamp_type: TimestampType = TimestampType.CREATE
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = 3_600_000
    compacted: bool = False


class SettingError(ValueError):
    """An unknown topic setting, or an invalid value."""


class TopicSetting(NamedTuple):
    """One topic setting, by Kafka's name."""

    default: str
    pattern: re.Pattern[str]
    kind: int
    """Type number in DescribeConfigs responses."""


_LONG: Final = re.compile(r"-?[0-9]{1,19}")
_BOOL: Final = re.compile(r"true|false")
_INT_KIND, _LONG_KIND, _STRING_KIND, _LIST_KIND, _BOOL_KIND = 3, 5, 2, 7, 1

SETTINGS: Final[dict[str, TopicSetting]] = {
    "cleanup.policy": TopicSetting("delete", re.compile(r"delete|compact|compact,delete|delete,compact"), _LIST_KIND),
    # Batches are stored as received, so only the producer's codec is supported.
    "compression.type": TopicSetting("producer", re.compile(r"producer"), _STRING_KIND),
    "max.message.bytes": TopicSetting("1048588", re.compile(r"[0-9]{1,9}"), _INT_KIND),
    "message.timestamp.after.max.ms": TopicSetting("3600000", _LONG, _LONG_KIND),
    "message.timestamp.before.max.ms": TopicSetting(str(LONG_MAX), _LONG, _LONG_KIND),
    "message.timestamp.type": TopicSetting("CreateTime", re.compile(r"CreateTime|LogAppendTime"), _STRING_KIND),
    "min.insync.replicas": TopicSetting("1", re.compile(r"[1-9][0-9]{0,3}"), _INT_KIND),
    # Reported but not applied: no records expire by retention.
    "retention.bytes": TopicSetting("-1", _LONG, _LONG_KIND),
    "retention.ms": TopicSetting("-1", _LONG, _LONG_KIND),
    "unclean.leader.election.enable": TopicSetting("false", _BOOL, _BOOL_KIND),
}


class BrokerTopic(NamedTuple):
    """One incarnation of a topic: a recreated topic gets the next incarnation and a new id."""

    name: str
    incarnation: int
    partitions: int
    settings: tuple[tuple[str, str], ...] = ()
    """Those that differ from the default, sorted by name."""

    @property
    def id(self) -> uuid.UUID:
        """The topic id, the same on every node."""
        return uuid.uuid5(ID_SPACE, self.name if self.incarnation == 0 else f"{self.name}#{self.incarnation}")

    @property
    def rules(self) -> TopicRules:
        """The settings as the checks use them."""
        value = {name: setting.default for name, setting in SETTINGS.items()} | dict(self.settings)
        return TopicRules(
            max_message_bytes=int(value["max.message.bytes"]),
            min_insync_replicas=int(value["min.insync.replicas"]),
            timestamp_type=TimestampType(value["message.timestamp.type"]),
            timestamp_before_max_ms=int(value["message.timestamp.before.max.ms"]),
            timestamp_after_max_ms=int(value["message.timestamp.after.max.ms"]),
            compacted="compact" in value["cleanup.policy"].split(","),
        )


def check_settings(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return topic settings in their stored form.

    Raises:
        SettingError: a name is not known or a value is not possible.
    """
    for name, value in settings.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise SettingError(f"unknown topic setting {name}")
        if not setting.pattern.fullmatch(value):
            raise SettingError(f"{name} cannot be {value!r}")
    return tuple(sorted((name, value) for name, value in settings.items() if value != SETTINGS[name].default))


def name_is_legal(name: str) -> bool:
    """Return whether Kafka accepts this topic name."""
    return LEGAL_NAME.fullmatch(name) is not None and name not in {".", ".."}


def leader_index(name: str, partition: int, nodes: int) -> int:
    """Return which of `nodes` nodes, sorted by id, leads a partition; adjacent partitions get different nodes."""
    return (zlib.crc32(name.encode()) + partition) % nodes
