"""Settings that are allowed but probably not meant are said: by the direct producer in its log, of the daemon's by `penstock check`."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.producer.direct.producer import DirectProducer

NOBODY = "127.0.0.1:1"


def test_the_direct_producer_logs_a_setting_that_does_not_do_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="penstock.producer"):
        doubtful = {"request.timeout.ms": 130_000, "retry.backoff.ms": 2_000}
        producer = DirectProducer({"bootstrap.servers": NOBODY, "max.block.ms": 0, **doubtful})
        _ = producer.send("topic", b"value")
        producer.close(0)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("risky_setting")]
    assert len(said) == 2
    assert "retry.backoff.max.ms = 1000" in said[0]
    assert "delivery.timeout.ms is raised from its default to 130005" in said[1]


def test_check_warns_of_the_same_in_the_daemons_settings(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(
        f'data_dir = "{tmp_path}/data"\nruntime_dir = "{tmp_path}/run"\nspool.allow_unsafe_filesystem = true\n'
        f'[kafka]\nbootstrap.servers = "{NOBODY}"\nretry.backoff.ms = 2000\n'
    )
    command = [sys.executable, "-I", "-m", "penstock.cli.main", "check", "--config", str(config)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)
    assert "warning: kafka.retry.backoff.ms = 2000 exceeds retry.backoff.max.ms = 1000" in done.stdout, done
    assert done.returncode == 0
