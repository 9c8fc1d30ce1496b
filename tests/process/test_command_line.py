"""The command line, as a person and as a program would use it, on a whole daemon with an embedded broker."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.daemon import Daemon
from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until

TOPIC = "events"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with EmbeddedCluster(1) as cluster:
        cluster.create_topic(TOPIC, partitions=4)
        with Daemon(cluster.bootstrap, shards=2, sections={"spool": {"bytes_max": "512MiB"}}) as running:
            running.start()
            yield running


def penstock(daemon: Daemon, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "penstock.cli.main", *arguments, "--runtime-dir", str(daemon.folder / "run")]
    return subprocess.run(command, input=given, text=True, capture_output=True, timeout=180, check=False)


def stats(daemon: Daemon) -> dict:
    return json.loads(penstock(daemon, "status", "--json").stdout)


def test_send_takes_values_from_the_arguments(daemon: Daemon) -> None:
    done = penstock(daemon, "send", TOPIC, "one", "two")
    assert (done.returncode, done.stdout) == (0, "2 of 2 records delivered\n"), done.stderr


def test_send_takes_a_record_a_line_from_standard_input(daemon: Daemon) -> None:
    done = penstock(daemon, "send", TOPIC, "--level", "spooled", "--json", given="a\nb\nc\n")
    assert json.loads(done.stdout) == {"sent": 3, "acknowledged": 3, "level": "spooled", "errors": []}


def test_a_topic_that_does_not_exist_is_named_and_the_exit_code_says_so(daemon: Daemon) -> None:
    done = penstock(daemon, "send", "nosuch", "x")
    assert done.returncode == 1
    assert "unknown_topic" in done.stderr
    assert "nosuch" in done.stderr


def test_an_unknown_level_is_refused_with_the_known_ones(daemon: Daemon) -> None:
    done = penstock(daemon, "send", TOPIC, "x", "--level", "sent")
    assert done.returncode == 1
    assert "accepted, spooled, delivered" in done.stderr


def test_loadgen_counts_what_arrived_by_the_brokers_offsets(daemon: Daemon) -> None:
    done = penstock(daemon, "loadgen", TOPIC, "--seconds", "1", "--sessions", "2", "--frame-records", "200", "--json")
    report = json.loads(done.stdout)
    assert report["failed"] == 0
    assert report["sent"] == report["acknowledged"] == report["arrived_by_end_offsets"] > 0
    assert set(report["cpu_us_per_record"]) == {"client", "router", "shards"}
    assert all(value > 0 for value in report["cpu_us_per_record"].values())
    assert report["latency_ms"]["p50"] <= report["latency_ms"]["p99"]


def test_loadgen_keeps_to_a_rate(daemon: Daemon) -> None:
    done = penstock(daemon, "loadgen", TOPIC, "--seconds", "2", "--rate", "500", "--frame-records", "10", "--json")
    report = json.loads(done.stdout)
    assert 800 <= report["sent"] <= 1000
    assert report["arrived_by_end_offsets"] == report["sent"]


def test_loadgen_says_that_a_topic_is_missing(daemon: Daemon) -> None:
    done = penstock(daemon, "loadgen", "nosuch", "--seconds", "1")
    assert done.returncode == 1
    assert "topic nosuch does not exist" in done.stderr


def test_status_for_people_shows_records_and_brokers(daemon: Daemon) -> None:
    done = penstock(daemon, "status")
    assert done.returncode == 0
    assert "delivered" in done.stdout
    assert "127.0.0" in done.stdout


def test_every_record_is_in_exactly_one_sum(daemon: Daemon) -> None:
    penstock(daemon, "send", TOPIC, *[str(number) for number in range(20)])

    def settled() -> dict | None:
        records = stats(daemon)["records"]
        return records if records["pending"] == 0 else None

    records = wait_until(settled, seconds=30, what="nothing is pending")
    ends = ("refused", "pending", "delivered", "dead_lettered", "expired", "quarantined")
    assert records["received"] == sum(records[name] for name in ends) > 0


def test_spool_show_and_verify_read_a_live_spool(daemon: Daemon) -> None:
    assert penstock(daemon, "send", TOPIC, "something to see").returncode == 0
    shown = json.loads(penstock(daemon, "spool", "show", "--json").stdout)
    assert {partition["topic"] for partition in shown["partitions"]} == {TOPIC}
    verified = penstock(daemon, "spool", "verify")
    assert verified.returncode == 0, verified.stdout


def test_dead_letters_are_none_until_kafka_refuses_something(daemon: Daemon) -> None:
    done = penstock(daemon, "dead-letters", "list")
    assert (done.returncode, done.stdout) == (0, "no dead letters\n")
    assert json.loads(penstock(daemon, "dead-letters", "list", "--json").stdout) == []
    missing = penstock(daemon, "dead-letters", "show", "0000000000000000-1-2")
    assert missing.returncode == 1


def test_reload_says_what_is_in_force_and_what_needs_a_restart(daemon: Daemon) -> None:
    config = daemon.folder / "penstock.toml"
    text = config.read_text()
    config.write_text('log_level = "DEBUG"\n' + text.replace("[kafka]", "[kafka]\nlinger.ms = 9"))
    try:
        done = penstock(daemon, "reload", "--config", str(config))
    finally:
        config.write_text(text)
    assert done.returncode == 0, done.stderr
    assert "in force: log_level" in done.stdout
    assert "after a restart: kafka.linger_ms" in done.stdout
    assert penstock(daemon, "send", TOPIC, "after").returncode == 0


def test_a_reload_of_settings_that_are_wrong_changes_nothing(daemon: Daemon) -> None:
    wrong = daemon.folder / "wrong.toml"
    wrong.write_text('shard = 1\n[kafka]\nbootstrap.servers = "x:1"\n')
    done = penstock(daemon, "reload", "--config", str(wrong))
    assert done.returncode == 78
    assert "shard is not a setting" in done.stderr
    assert penstock(daemon, "send", TOPIC, "still").returncode == 0


def test_metrics_health_and_readiness_are_served(daemon: Daemon) -> None:
    status, metrics = daemon.get("/metrics")
    assert status == 200
    assert "penstock_up 1.0" in metrics
    assert 'penstock_records_refused_total{reason="unknown_topic"}' in metrics
    health = daemon.get("/healthz")
    assert health[0] == 200
    assert json.loads(health[1])["ok"] is True
    assert daemon.get("/ready")[0] == 200
    assert json.loads(daemon.get("/stats")[1])["spool"]["segments"] >= 1
    assert daemon.get("/nothing")[0] == 404


def test_config_show_and_reference_need_no_daemon(daemon: Daemon) -> None:
    config = str(daemon.folder / "penstock.toml")
    base = [sys.executable, "-I", "-m", "penstock.cli.main", "config"]
    shown = subprocess.run([*base, "show", "--config", config, "--json"], text=True, capture_output=True, check=True)
    assert json.loads(shown.stdout)["kafka"]["linger.ms"] == 5
    page = subprocess.run([*base, "reference"], text=True, capture_output=True, check=True).stdout
    assert page.startswith("# Settings")


def test_send_without_a_daemon_says_at_once_that_nobody_listens(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-m", "penstock.cli.main", "send", TOPIC, "x", "--runtime-dir", str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)
    assert done.returncode == 1
    assert f"nobody listens at {tmp_path}/penstock.sock" in done.stderr


def test_send_gives_up_when_its_time_is_over(tmp_path: Path) -> None:
    """Nobody accepts: the connection is queued and never answered."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "penstock.sock"))
        silent.listen()
        command = [sys.executable, "-I", "-m", "penstock.cli.main", "send", TOPIC, "x", "--timeout", "1"]
        done = subprocess.run(
            [*command, "--runtime-dir", str(tmp_path)], text=True, capture_output=True, timeout=180, check=False
        )
    assert done.returncode == 1
    assert "1 of 1 records have no answer after 1.0 s" in done.stderr
