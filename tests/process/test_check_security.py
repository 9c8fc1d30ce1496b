"""`penstock check` finds what is wrong with secrets, certificates and listeners before a start, and `config show` shows no secret."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pytest
from penstock.config.errors import ConfigError
from penstock.producer import DirectProducer

from tests.harness.certificates import EXPIRED, Authority
from tests.harness.embedded import EmbeddedCluster
from tests.harness.token_server import TokenServer

CANARY: Final = "CANARY_hunter2"


class Verdict(NamedTuple):
    """What came of a check."""

    status: int
    problems: list[str]
    warnings: list[str]
    printed: str


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "kafka.password"
    _ = path.write_text(CANARY)
    path.chmod(0o600)
    return path


def configured(folder: Path, lines: str, server: str = "localhost:1") -> Path:
    path = folder / "penstock.toml"
    top = f'data_dir = "{folder}/data"\nruntime_dir = "{folder}/run"\n[spool]\nallow_unsafe_filesystem = true\n'
    _ = path.write_text(f'{top}[kafka]\nbootstrap.servers = "{server}"\n{lines}')
    return path


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "penstock.cli.main", *arguments]
    return subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)


def check(config: Path, *options: str) -> Verdict:
    done = penstock("check", "--config", str(config), "--json", *options)
    told = cast("dict[str, Any]", json.loads(done.stdout))
    return Verdict(done.returncode, told["problems"], told["warnings"], done.stdout + done.stderr)


def sasl(password: Path, protocol: str = "SASL_SSL") -> str:
    return (
        f'security.protocol = "{protocol}"\nsasl.mechanism = "SCRAM-SHA-512"\nsasl.username = "me"\n'
        f'sasl.password.file = "{password}"\n'
    )


def test_a_secret_that_others_may_read_is_named_with_what_to_do(tmp_path: Path, password: Path) -> None:
    config = configured(tmp_path, sasl(password))
    assert check(config) == Verdict(0, [], [], check(config).printed)
    password.chmod(0o644)
    found = check(config)
    assert found.status == 78
    assert found.problems == [
        f"kafka.sasl.password.file: {password} has mode 0644, so others may read or write the secret: chmod 0600 {password}"
    ]
    assert CANARY not in found.printed


def test_settings_are_shown_without_what_is_secret_in_them(tmp_path: Path, password: Path) -> None:
    config = configured(tmp_path, sasl(password))
    for options in ((), ("--json",)):
        shown = penstock("config", "show", "--config", str(config), *options)
        assert shown.returncode == 0
        assert str(password) in shown.stdout
        assert CANARY not in shown.stdout + shown.stderr


def test_a_password_that_was_written_into_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    lines = f'sasl.password = "{CANARY}"\nsasl.jaas.config = "x password=\'{CANARY}\';"\n'
    found = penstock("check", "--config", str(configured(tmp_path, lines)))
    assert found.returncode == 78
    assert "name it in sasl.password.file" in found.stderr
    assert "sasl.jaas.config is not kept: write sasl.username" in found.stderr
    assert CANARY not in found.stdout + found.stderr


def test_certificates_that_are_none_are_named(tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    _ = trust.write_text("-----BEGIN NONSENSE-----")
    found = check(configured(tmp_path, f'security.protocol = "SSL"\nssl.truststore.location = "{trust}"\n'))
    assert found.status == 78
    (problem,) = found.problems
    assert problem.startswith(f"kafka.ssl.truststore.location: {trust} holds no certificate")


def test_what_takes_protection_away_is_a_warning(tmp_path: Path, password: Path) -> None:
    lines = f"{sasl(password, 'SASL_PLAINTEXT')}sasl.allow_plaintext = true\n"
    found = check(configured(tmp_path, lines))
    assert found.status == 0
    assert found.warnings == [
        "kafka.sasl.allow_plaintext = true: the credentials of SCRAM-SHA-512 can be read on the way to the brokers"
    ]
    lines = 'security.protocol = "SSL"\ntls.insecure = true\n'
    (warning,) = check(configured(tmp_path, lines)).warnings
    assert warning.startswith("kafka.tls.insecure = true: ")


@pytest.mark.parametrize("wrong", ["name", "time", "authority"])
def test_a_broker_that_cannot_be_believed_is_found_by_asking(tmp_path: Path, wrong: str) -> None:
    authority = Authority()
    trust = authority.write(tmp_path / "trust.pem")
    signed = {
        "name": lambda: authority.issue("broker", hosts=("kafka.example",)),
        "time": lambda: authority.issue("broker", validity=EXPIRED),
        "authority": lambda: Authority("Somebody").issue("broker"),
    }[wrong]()
    reason = {"name": "mismatch", "time": "expired", "authority": "authority"}[wrong]
    # All that is wanted of it is that it speaks TLS.
    with TokenServer({}, signed.write(tmp_path / "broker.pem")) as server:
        lines = f'security.protocol = "SSL"\nssl.truststore.location = "{trust}"\n'
        found = check(configured(tmp_path, lines, f"localhost:{server.port}"), "--connect")
    assert found.status == 78
    first, last = found.problems
    assert f"localhost:{server.port}" in first
    assert reason in first
    assert last == "no bootstrap server can be used: records would wait in the spool"


def test_a_listener_of_another_kind_is_found_by_asking(tmp_path: Path, password: Path) -> None:
    authority = Authority()
    with TokenServer({}, authority.issue("broker").write(tmp_path / "broker.pem")) as server:
        found = check(configured(tmp_path, "", f"localhost:{server.port}"), "--connect")
    assert found.status == 78
    assert "does this listener want TLS?" in found.problems[0]
    with EmbeddedCluster(1) as brokers:
        for lines in (
            'security.protocol = "SSL"\n',
            f"{sasl(password, 'SASL_PLAINTEXT')}sasl.allow_plaintext = true\n",
        ):
            found = check(configured(tmp_path, lines, brokers.bootstrap), "--connect")
            assert found.status == 78
            assert brokers.bootstrap in found.problems[0]
        found = check(configured(tmp_path, "", f"{brokers.bootstrap},localhost:1"), "--connect")
        assert found.status == 0
        listener, audit = found.warnings
        assert "localhost:1" in listener, "one that answers will do, but the other is told"
        assert "penstock audit create-topic" in audit, "these brokers have no audit topic"


def test_the_direct_producer_refuses_files_that_are_no_certificates_before_it_starts(tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    _ = trust.write_text("-----BEGIN NONSENSE-----")
    threads = threading.active_count()
    given = {"bootstrap.servers": "localhost:1", "security.protocol": "SSL", "ssl.truststore.location": str(trust)}
    with pytest.raises(ConfigError, match=f"ssl.truststore.location: {trust} holds no certificate"):
        _ = DirectProducer(given)
    assert threading.active_count() == threads
