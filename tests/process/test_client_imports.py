"""The client library in a process of its own: what it brings along."""

import subprocess
import sys
from typing import Final

# Everything the daemon and the tests need and an application should not have to.
NOT_FOR_CLIENTS: Final = (
    "confluent_kafka", "cramjam", "crc32c", "kafka", "lz4", "prometheus_client", "pydantic", "rich", "structlog",
    "supervisor", "typer", "zmq", "zstandard", "asyncio",
)  # fmt: skip
OURS_FOR_CLIENTS: Final = {"api", "client", "wire"}


def loaded_by(statement: str) -> set[str]:
    """Names of all modules after `statement` ran in a fresh interpreter."""
    script = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=180)
    return set(done.stdout.split())


def test_the_client_needs_nothing_but_msgpack() -> None:
    loaded = loaded_by("import penstock.client")
    assert "msgpack" in loaded
    assert loaded & set(NOT_FOR_CLIENTS) == set()
    assert {name.split(".")[1] for name in loaded if name.startswith("penstock.")} == OURS_FOR_CLIENTS


def test_a_daemon_module_would_be_noticed() -> None:
    assert "crc32c" in loaded_by("import penstock.producer.records.batch_builder")
