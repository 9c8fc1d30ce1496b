"""The audit topic on real brokers: made by the verb, written through kills, and equal to what others read from the data's topic."""

import json
import subprocess
import sys
from pathlib import Path

from penstock.wire.audit_records import CLOSED

from tests.harness.audit_topic import check_balance, read_audit
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster
from tests.harness.raw_session import RawSession
from tests.harness.readers import read_topic
from tests.harness.resender import Resender

from .conftest import count_from

FRAME = 20


def create_audit_topic(cluster: Cluster, topic: str, folder: Path) -> str:
    """By the verb; what it says."""
    path = folder / "penstock.toml"
    lines = [
        f"data_dir = {json.dumps(str(folder / 'data'))}",
        f"runtime_dir = {json.dumps(str(folder / 'run'))}",
        "[kafka]",
        f'bootstrap.servers = "{cluster.bootstrap}"',
        "[audit]",
        f'topic = "{topic}"',
    ]
    path.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-I", "-m", "penstock.cli.main", "audit", "create-topic", "--config", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_latest_statements_balance_exactly_with_what_lies_in_the_topic(
    kafka_one: Cluster, topic_name: str, tmp_path: Path
) -> None:
    topic, audit_topic = kafka_one.create_topic(topic_name, 4), f"{topic_name}-audit"
    assert "made, 3 partitions" in create_audit_topic(kafka_one, audit_topic, tmp_path)
    assert "as it should be" in create_audit_topic(kafka_one, audit_topic, tmp_path)
    frames = count_from("PENSTOCK_RECORDS", 12_000) // FRAME
    sections = {"audit": {"topic": audit_topic, "interval_s": 1.0}}
    with Daemon(kafka_one.bootstrap, kafka={"linger.ms": 2}, sections=sections) as daemon:
        daemon.start()
        client = Resender(daemon.socket_path, "app", topic)
        for seq in range(frames):
            client.add(seq, [b"%d:%d" % (seq, row) for row in range(FRAME)], [b"%d" % row for row in range(FRAME)])
        kills = {frames // 4: "router", frames // 2: "shard-0"}

        def step(answered: int) -> None:
            for at in [at for at in kills if at <= answered]:
                _ = daemon.kill(kills.pop(at))

        client.run(seconds=120, step=step)
        client.close()
        assert not kills
        with RawSession(daemon.socket_path, None) as session:
            _ = session.acked(session.send(topic, [b"last"]))
        assert daemon.stop() == 0
    told = read_audit(kafka_one, audit_topic)
    [(incarnation, heartbeat)] = told.heartbeats().items()
    assert heartbeat.state == CLOSED
    assert check_balance(told, topic, list(read_topic(kafka_one, topic))) == {incarnation: frames * FRAME + 1}
