"""The order of the files for workers that run side by side."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
# A file's tests stay on one worker (`--dist loadfile`), so a long file that is begun last keeps everybody waiting.
LONGEST_FIRST = (
    "test_audit_topic",
    "test_shard_lives",
    "test_readme",
    "test_direct_transactions",
    "test_router_whole_way",
    "test_client_whole_way",
    "test_slow_node",
    "test_command_line",
    "test_broker_lives",
    "test_clear_messages",
    "test_faults_direct",
    "test_record_ids",
    "test_router_control",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For workers side by side, begin with the files that take long."""
    if hasattr(config, "workerinput"):
        ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
        own_items = [item for item in items if FOLDER in item.path.parents]
        own_items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
        items[:] = [*own_items, *(item for item in items if FOLDER not in item.path.parents)]
