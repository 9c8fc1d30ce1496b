"""Names of the tables that belong to topics."""

import re
from collections.abc import Iterable
from typing import Final

from ..config.errors import ConfigError

QUARANTINE: Final = "quarantine"
_NOT_IN_A_TABLE: Final = re.compile("[^a-z0-9_]")


def bronze_table(topic: str) -> str:
    """Return the name of a topic's table. Capitals and punctuation become `_`, so two topics may get the same name: see
    `check_topics`."""
    return "bronze_" + _NOT_IN_A_TABLE.sub("_", topic)


def check_topics(topics: Iterable[str]) -> None:
    """Check that every topic has its own table.

    Raises:
        ConfigError: lists all pairs of topics that would land in the same table.
    """
    by_table: dict[str, str] = {}
    problems: list[str] = []
    for topic in topics:
        table = bronze_table(topic)
        other = by_table.setdefault(table, topic)
        if other != topic:
            problems.append(
                f"topics {other!r} and {topic!r} would both be landed in the table {table}; land one of them apart, with tables of its own"
            )
    if problems:
        raise ConfigError(problems)
