"""Settings: every mistake is told, once, with what to do."""

from pathlib import Path

import pytest
from penstock.config import handover
from penstock.config.errors import ConfigError
from penstock.config.kafka_names import DAEMON_REFUSED
from penstock.config.load import load

GOOD = '[kafka]\nbootstrap.servers = "localhost:9092"\n'


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.problems


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    return path


def test_dotted_kafka_names_are_read_back_as_names(tmp_path: Path) -> None:
    settings = load(write(tmp_path, GOOD + 'linger.ms = 20\n"compression.type" = "zstd"\n'))
    assert settings.kafka.linger_ms == 20
    assert settings.kafka.compression_type == "zstd"


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = 'shard = 3\n[kafka]\nbootstrap.servers = "x:1"\nlinger.msec = 1\nacks = "1"\n[spool]\nsync_interval_ms = 0\n'
    found = problems(write(tmp_path, text))
    assert len(found) == 4
    assert any("shard is not a setting; the nearest known one is shards" in item for item in found)
    assert any("kafka.linger.msec is not a setting; the nearest known one is kafka.linger.ms" in item for item in found)
    assert any("kafka.acks = '1'" in item for item in found)
    assert any("spool.sync_interval_ms = 0" in item for item in found)


def test_a_setting_that_is_not_kept_is_refused_with_the_reason(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, GOOD + "retries = 5\n"))
    assert "kafka.retries is not kept" in found
    assert "retries for ever" in found


@pytest.mark.parametrize("name", sorted(DAEMON_REFUSED))
def test_every_setting_of_kafkas_producer_that_is_not_kept_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (found,) = problems(write(tmp_path, GOOD + f'"{name}" = "x"\n'))
    assert f"kafka.{name} is not kept: {DAEMON_REFUSED[name]}" in found


def test_a_first_reconnect_wait_alone_is_the_longest_one_too(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD + "reconnect.backoff.ms = 5000\n")).kafka.reconnect_backoff_max_ms == 5000


def test_a_missing_file_says_how_to_name_one(tmp_path: Path) -> None:
    (found,) = problems(tmp_path / "absent.toml")
    assert "--config" in found


def test_missing_bootstrap_servers_come_with_an_example(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, "[kafka]\n"))
    assert "bootstrap.servers" in found
    assert "localhost:9092" in found


def test_bytes_that_are_not_toml_are_named(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, "[kafka\n"))
    assert "is not TOML" in found


def test_a_name_that_begins_another_says_that_it_needs_quotes(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, GOOD + 'buffer.memory = 1\nbuffer.memory.allocation = "x"\n'))
    assert "needs quotes" in found


def test_a_variable_is_expanded_and_an_unset_one_is_an_error(tmp_path: Path) -> None:
    import os

    os.environ["PENSTOCK_TEST_BROKER"] = "broker-9:9092"
    try:
        settings = load(write(tmp_path, '[kafka]\nbootstrap.servers = "${PENSTOCK_TEST_BROKER}"\n'))
    finally:
        del os.environ["PENSTOCK_TEST_BROKER"]
    assert settings.kafka.bootstrap_servers == "broker-9:9092"
    (found,) = problems(write(tmp_path, '[kafka]\nbootstrap.servers = "${PENSTOCK_TEST_BROKER}"\n'))
    assert "PENSTOCK_TEST_BROKER" in found


def test_a_setting_given_twice_names_both_files(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10-more.toml").write_text('shards = 3\n[kafka]\nbootstrap.servers = "other:1"\n')
    (found,) = problems(path)
    assert "penstock.toml" in found
    assert "10-more.toml" in found


def test_drop_ins_add_to_the_main_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10-more.toml").write_text("shards = 3\n[kafka]\nlinger.ms = 7\n")
    settings = load(path)
    assert (settings.shards, settings.kafka.linger_ms) == (3, 7)


def test_a_socket_path_that_the_kernel_cannot_hold_is_found_before_the_start(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, f'runtime_dir = "/run/{"x" * 110}"\n' + GOOD))
    assert "107" in found


@pytest.mark.parametrize("servers", ["localhost", "localhost:", ":9092", "localhost:99999", "a:1,b"])
def test_bootstrap_servers_are_host_and_port(tmp_path: Path, servers: str) -> None:
    found = problems(write(tmp_path, f'[kafka]\nbootstrap.servers = "{servers}"\n'))
    assert all("host:port" in item for item in found)


def test_what_the_processes_read_is_what_the_launcher_checked(tmp_path: Path) -> None:
    settings = load(write(tmp_path, GOOD + '[topics."a.*"]\ncompression.type = "lz4"\n'))
    path = tmp_path / "settings.json"
    handover.write(settings, path)
    assert handover.read(path) == settings
    assert path.stat().st_mode & 0o777 == 0o600
    assert handover.topic_settings(settings, "a.b").compression_type == "lz4"
    assert handover.topic_settings(settings, "b").compression_type is None


def test_digests_tell_settings_apart(tmp_path: Path) -> None:
    one = load(write(tmp_path, GOOD))
    two = load(write(tmp_path, GOOD + "linger.ms = 6\n"))
    assert handover.digest(one) != handover.digest(two)
    assert handover.digest(one) == handover.digest(load(write(tmp_path, GOOD)))


def test_preferring_a_rack_needs_to_know_the_own_one(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, GOOD + "partitioner.rack.aware = true\n"))
    assert "kafka.partitioner.rack.aware needs kafka.client.rack" in found
    settings = load(write(tmp_path, GOOD + 'partitioner.rack.aware = true\nclient.rack = "r1"\n'))
    assert settings.kafka.client_rack == "r1"


@pytest.mark.parametrize("name", ["round_robin", "org.apache.kafka.clients.producer.RoundRobinPartitioner"])
def test_round_robin_is_named_as_in_java_or_in_short(tmp_path: Path, name: str) -> None:
    settings = load(write(tmp_path, GOOD + f'partitioner.class = "{name}"\n'))
    assert settings.kafka.partitioner_class == name


def test_a_partitioner_class_of_ones_own_is_refused(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, GOOD + 'partitioner.class = "com.example.Mine"\n'))
    assert "kafka.partitioner.class = 'com.example.Mine'" in found
    assert "round_robin" in found
