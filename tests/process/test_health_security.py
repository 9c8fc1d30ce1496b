"""What the daemon says of its own protection, and of brokers that it cannot log in to."""

import json
from pathlib import Path

from tests.harness.daemon import Daemon
from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until

PASSWORD = "CANARY_hunter2"


def test_insecure_settings_and_refused_logins_are_shown_and_no_secret_is(tmp_path: Path) -> None:
    password = tmp_path / "password"
    _ = password.write_text(PASSWORD)
    password.chmod(0o600)
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password.file": str(password),
        "sasl.allow_plaintext": True,
    }
    with EmbeddedCluster(1) as brokers, Daemon(brokers.bootstrap, shards=1, kafka=login) as daemon:
        daemon.start()

        def refused() -> list[str] | None:
            # 200: it takes records, and keeps them.
            status, body = daemon.get("/healthz")
            degraded: list[str] = json.loads(body).get("degraded", [])
            told = any("authentication failed: " in text for text in degraded)
            return degraded if status == 200 and told else None

        degraded = wait_until(refused, seconds=30, what="the refused login is told")
        insecure = "sasl.allow_plaintext = true: the credentials of SCRAM-SHA-256 can be read on the way to the brokers"
        assert insecure in degraded
        stats = json.loads(daemon.get("/stats")[1])
        assert stats["security"] == {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "SCRAM-SHA-256",
            "insecure": [insecure],
        }
        log = daemon.log_path.read_text()
        assert log.count('"risky_setting"') == 1
        assert f"kafka.{insecure}" in log
        assert PASSWORD not in log + json.dumps(stats) + daemon.get("/metrics")[1] + daemon.get("/healthz")[1]
