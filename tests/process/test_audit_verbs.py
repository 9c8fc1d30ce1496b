"""`penstock audit create-topic`, and what `penstock check` says of the topic, against embedded brokers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.embedded import EmbeddedCluster

pytestmark = pytest.mark.process


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        yield found


def settings_file(folder: Path, bootstrap: str) -> Path:
    path = folder / "penstock.toml"
    lines = [f"data_dir = {json.dumps(str(folder / 'data'))}", f"runtime_dir = {json.dumps(str(folder / 'run'))}"]
    path.write_text("\n".join([*lines, "[kafka]", f'bootstrap.servers = "{bootstrap}"', ""]))
    return path


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "penstock.cli.main", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)


def test_the_audit_topic_is_made_once_and_found_to_be_as_it_should(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    path = str(settings_file(tmp_path, cluster.bootstrap))
    warned = penstock("check", "--connect", "--config", path)
    assert "penstock audit create-topic makes it" in warned.stdout
    made = penstock("audit", "create-topic", "--config", path, "--partitions", "5", "--replication-factor", "1")
    assert (made.returncode, made.stdout, made.stderr) == (
        0, "penstock.audit: made, 5 partitions, compacted, kept for 90 days\n", "",
    )  # fmt: skip
    again = penstock("audit", "create-topic", "--config", path)
    assert (again.returncode, again.stdout) == (0, "penstock.audit: is there, 5 partitions, as it should be\n")
    assert "audit topic" not in penstock("check", "--connect", "--config", path).stdout


def test_what_is_wrong_with_a_topic_that_is_there_is_said(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    cluster.create_topic("penstock.audit", partitions=1, config={"cleanup.policy": "delete", "retention.ms": "1000"})
    path = str(settings_file(tmp_path, cluster.bootstrap))
    found = penstock("audit", "create-topic", "--config", path)
    assert found.returncode == 1
    assert "cleanup.policy lacks compact" in found.stderr
    assert "retention.ms = 1000 is less than 90 days" in found.stderr
    assert "message.timestamp.type is not LogAppendTime" in found.stderr


def test_a_cluster_that_does_not_answer_is_said(tmp_path: Path) -> None:
    found = penstock("audit", "create-topic", "--config", str(settings_file(tmp_path, "127.0.0.1:1")))
    assert found.returncode == 1
    assert "127.0.0.1:1" in found.stderr
