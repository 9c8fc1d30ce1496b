"""What an operator can get wrong, and the sentence each of it gets; nothing is lost meanwhile."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.client import Producer, RefusedError

from tests.harness.daemon import Daemon
from tests.harness.embedded import EmbeddedCluster
from tests.harness.ports import free_ports
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.requirements import mounted_tmpfs

TOPIC = "events"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as running:
        running.create_topic(TOPIC, partitions=2)
        yield running


def run(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "penstock.cli.main", "run", "--config", str(config)]
    return subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)


def test_wrong_settings_are_told_all_at_once_and_nothing_starts(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(f'runtime_dir = "{tmp_path}/run"\nshards = 0\n[kafka]\nbootstrap.servers = "x:1"\nacks = "1"\n')
    done = run(config)
    assert done.returncode == 78
    assert "shards = 0" in done.stderr
    assert "kafka.acks = '1'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_second_daemon_in_the_same_runtime_directory_is_refused_before_it_touches_the_socket(
    cluster: EmbeddedCluster,
) -> None:
    with Daemon(cluster.bootstrap) as first:
        first.start()
        done = run(first.folder / "penstock.toml")
        assert done.returncode == 1
        assert f"pid {first.pid}" in done.stderr
        assert "runtime_dir" in done.stderr
        with Producer(first.socket_path) as producer:
            producer.send(TOPIC, b"still served").result(60)


def test_a_second_daemon_on_the_same_spool_is_refused_with_the_owners_pid(cluster: EmbeddedCluster) -> None:
    with Daemon(cluster.bootstrap) as first, Daemon(cluster.bootstrap) as second:
        first.start()
        config = second.folder / "penstock.toml"
        config.write_text(config.read_text().replace(str(second.folder / "data"), str(first.folder / "data")))
        second.start(ready=False)
        router = str(first.pids()["router"])
        wait_until(lambda: router in second.log_path.read_text() or None, seconds=30, what="the log names the owner")
        assert "another" in second.log_path.read_text()
        with Producer(first.socket_path) as producer:
            producer.send(TOPIC, b"still served").result(60)


def test_records_wait_while_no_broker_answers_and_health_says_so(cluster: EmbeddedCluster) -> None:
    port = free_ports(1)[0]
    with Daemon(f"127.0.0.1:{port}", kafka={"max.block.ms": 1500}) as daemon:
        daemon.start()
        # Healthy once both shards have greeted: a broker that is away makes it degraded, not unhealthy.
        body = wait_until(lambda: _body_of_ok(daemon, "/healthz"), seconds=30, what="the daemon is healthy")
        assert any("no broker answers" in text for text in json.loads(body)["degraded"])
        with Producer(daemon.socket_path) as producer, pytest.raises(RefusedError, match="no_metadata"):
            producer.send(TOPIC, b"of a topic nobody ever told about").result(60)
        check = [
            sys.executable,
            "-I",
            "-m",
            "penstock.cli.main",
            "check",
            "--connect",
            "--config",
            str(daemon.folder / "penstock.toml"),
        ]
        done = subprocess.run(check, text=True, capture_output=True, timeout=180, check=False)
        assert done.returncode == 78
        assert f"127.0.0.1:{port}" in done.stderr


def test_known_topics_are_taken_while_the_brokers_are_away_and_arrive_when_they_are_back() -> None:
    with EmbeddedCluster(1, folders=True) as brokers:
        brokers.create_topic(TOPIC, partitions=2)
        with Daemon(brokers.bootstrap) as daemon:
            daemon.start()
            with Producer(daemon.socket_path, client_id="patient") as producer:
                producer.send(TOPIC, b"0").result(60)
                brokers.nodes[0].kill()
                spooled = [producer.send(TOPIC, b"%d" % number, level="spooled") for number in range(1, 50)]
                for future in spooled:
                    future.result(60)
                delivered = producer.send(TOPIC, b"50")
                assert not delivered.done()
                brokers.nodes[0].start()
                delivered.result(40)
            found = sorted(int(record.value or b"") for record in read_topic(brokers, TOPIC))
            assert found == list(range(51))


def test_a_full_disk_refuses_frames_and_loses_nothing(cluster: EmbeddedCluster) -> None:
    """Every acknowledged record arrives, the others were refused with `no_space`, and the daemon lives."""
    # Sockets' paths are short, and so is this one.
    with tempfile.TemporaryDirectory(prefix="full-", dir="/tmp") as name, mounted_tmpfs(Path(name), "size=24m") as disk:
        spool = {"segment_bytes": "4MiB", "bytes_max": "64MiB", "allow_unsafe_filesystem": True}
        with Daemon(cluster.bootstrap, sections={"spool": spool}, folder=disk, kafka={"linger.ms": 0}) as daemon:
            daemon.start()
            cluster.create_topic("full", partitions=1)
            answers = {"acknowledged": 0, "no_space": 0}
            with Producer(daemon.socket_path, client_id="filler") as producer:
                producer.send("full", b"first").result(60)
                filler = disk / "filler"
                with filler.open("wb") as file:
                    _fill(file.fileno())
                futures = [
                    producer.send_many("full", [b"%d" % number + b"x" * 50_000] * 4, level="spooled")
                    for number in range(100)
                ]
                for future in futures:
                    error = future.exception(30)
                    if error is None:
                        answers["acknowledged"] += 4
                    else:
                        assert isinstance(error, RefusedError)
                        assert "no_space" in str(error)
                        answers["no_space"] += 1
                filler.unlink()
                producer.send("full", b"last").result(60)
            assert answers["no_space"] > 0
            assert len(list(read_topic(cluster, "full"))) == answers["acknowledged"] + 2


def _body_of_ok(daemon: Daemon, page: str) -> str | None:
    status, body = daemon.get(page)
    return body if status == 200 else None


def _fill(descriptor: int) -> None:
    """Take all room but the last kilobytes."""
    for size in (1 << 20, 1 << 16, 1 << 12):
        try:
            while True:
                os.write(descriptor, b"\0" * size)
        except OSError:
            continue
