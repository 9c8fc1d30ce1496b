"""Settings of TLS and SASL: what goes together, what is refused and with which advice, and which files are believed."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from penstock.config import handover
from penstock.config.direct import DirectSettings, direct_settings
from penstock.config.errors import ConfigError
from penstock.config.load import validate
from penstock.config.secret_files import SecretError, file_problems, read_certificates, read_password, read_secret
from penstock.config.security import SecuritySettings, openssl_suite
from penstock.config.security_names import OTHER_CLIENTS_NAMES, SECURITY_REFUSED

from tests.harness.requirements import need_root

BROKER: Final = {"bootstrap.servers": "localhost:9092"}
SCRAM: Final = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me"}
ENDPOINT: Final = "https://tokens.example/oauth2/token"


def made(given: Mapping[str, object]) -> DirectSettings:
    return direct_settings({**BROKER, **given})


def problems(given: Mapping[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _ = made(given)
    return caught.value.problems


def secret(folder: Path, text: str = "hunter2", mode: int = 0o600) -> Path:
    path = folder / "secret"
    _ = path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("protocol", ["SASL_SSL", "sasl_plaintext"])
def test_sasl_needs_a_mechanism(protocol: str) -> None:
    (found,) = problems({"security.protocol": protocol})
    assert found.startswith(f"security.protocol = {protocol.upper()} needs sasl.mechanism: PLAIN,")


@pytest.mark.parametrize("mechanism", ["PLAIN", "scram-sha-256", "SCRAM-SHA-512"])
def test_a_password_mechanism_needs_user_and_file(mechanism: str) -> None:
    found = problems({"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism})
    name = mechanism.upper()
    assert found == [
        f"sasl.mechanism = {name} needs sasl.username",
        f"sasl.mechanism = {name} needs sasl.password.file",
    ]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_credentials_are_not_shown_to_who_listens_unless_that_is_written(tmp_path: Path, mechanism: str) -> None:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        given["sasl.oauthbearer.token.endpoint.url"] = f"file://{secret(tmp_path)}"
    else:
        given |= {"sasl.username": "me", "sasl.password.file": str(secret(tmp_path))}
    (found,) = problems(given)
    assert "use SASL_SSL, or write sasl.allow_plaintext = true" in found
    allowed = made({**given, "sasl.allow_plaintext": "true"})
    (caution,) = allowed.warnings()
    assert (
        caution == f"sasl.allow_plaintext = true: the credentials of {mechanism} can be read on the way to the brokers"
    )
    assert allowed.insecure_settings() == (caution,)


def test_kerberos_shows_nothing_in_the_clear_and_needs_no_leave() -> None:
    settings = made({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"})
    assert settings.insecure_settings() == settings.warnings() == ()
    assert settings.sasl_kerberos_service_name == "kafka"


def test_tokens_come_from_an_endpoint_with_a_client_and_a_secret() -> None:
    found = problems({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})
    assert found == ["sasl.mechanism = OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url"] + [
        f"sasl.mechanism = OAUTHBEARER needs sasl.oauthbearer.client.{what}" for what in ("id", "secret.file")
    ]


def test_a_client_id_is_not_cut_short_by_a_colon_of_its_own(tmp_path: Path) -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
        "sasl.oauthbearer.client.id": "urn:me",
        "sasl.oauthbearer.client.secret.file": str(secret(tmp_path)),
    }
    (found,) = problems(given)
    assert "has a colon" in found
    assert made({**given, "sasl.oauthbearer.header.urlencode": True}).warnings() == ()


def test_a_token_in_a_file_needs_nothing_else(tmp_path: Path) -> None:
    path = secret(tmp_path)
    settings = made(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{path}",
        }
    )
    assert settings.token_file == path
    assert settings.warnings() == ()


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://tokens.example/token",
            "ftp://x/",
            "tokens.example/token",
            "https://",
            "https:///token",
            "https://x:0/",
        ),
        *(
            "https://x:99999/",
            "https://user:pw@x/",
            "https://x/#here",
            "https://x/a b",
            "https://x/\r\nHost: y",
            "https://ü/",
        ),
        *("file://host/path", "file:relative", "file:///a?b"),
    ],
)
def test_a_secret_goes_nowhere_but_to_an_https_address(url: str) -> None:
    found = problems({"sasl.oauthbearer.token.endpoint.url": url})
    assert len(found) == 1
    assert found[0].startswith("sasl.oauthbearer.token.endpoint.url = ")


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    name, url = "sasl.oauthbearer.token.endpoint.url", "https://me:hunter2/@tokens.example/token"
    (found,) = problems({name: url})
    assert "without user, password" in found
    assert "hunter2" not in found
    with pytest.raises(ConfigError) as caught:
        _ = validate({"kafka": {**BROKER, name: url}}, "penstock.toml")
    assert "tokens.example" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_extensions_are_names_and_values(tmp_path: Path) -> None:
    settings = SecuritySettings.model_validate({"sasl.oauthbearer.extensions": "logicalCluster=lkc-1, poolId=a b=c"})
    assert settings.token_extensions == {"logicalCluster": "lkc-1", "poolId": "a b=c"}


@pytest.mark.parametrize("text", ["auth=x", "a", "a=", "a1=x", "a=x,a=y", "a=\x01", "=x"])
def test_an_extension_that_would_be_something_else_is_refused(text: str) -> None:
    assert len(problems({"sasl.oauthbearer.extensions": text})) == 1


@pytest.mark.parametrize("versions", ["TLSv1.1", "TLSv1.2,TLSv1", "SSLv3", "TLSv1.4", ""])
def test_tls_below_1_2_is_never_spoken(versions: str) -> None:
    assert len(problems({"ssl.enabled.protocols": versions})) == 1


def test_lists_may_be_arrays() -> None:
    settings = made({"ssl.enabled.protocols": ["TLSv1.2"], "ssl.cipher.suites": ("ECDHE-RSA-AES256-GCM-SHA384",)})
    assert (settings.ssl_enabled_protocols, settings.ssl_cipher_suites) == ("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384")


@pytest.mark.parametrize(
    ("registered", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_suites_go_by_their_registered_names_too(registered: str, openssl: str) -> None:
    assert openssl_suite(registered) == openssl
    assert made({"ssl.cipher.suites": registered, "ssl.enabled.protocols": "TLSv1.2"}).ssl_cipher_suites == registered


def test_suites_of_tls_1_3_are_all_or_none() -> None:
    (one,) = problems({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384,ECDHE-RSA-AES256-GCM-SHA384"})
    assert "ssl.enabled.protocols = TLSv1.2" in one
    all_three = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"
    (none_of_1_2,) = problems({"ssl.cipher.suites": all_three})
    assert "ssl.enabled.protocols = TLSv1.3" in none_of_1_2
    assert made({"ssl.cipher.suites": all_three, "ssl.enabled.protocols": "TLSv1.3"}).warnings() != ()
    (unknown,) = problems({"ssl.cipher.suites": "TLS_NULL_WITH_MAGIC"})
    assert "no cipher suite" in unknown


def test_a_key_needs_its_certificate() -> None:
    found = problems({"ssl.key.location": "/nowhere", "ssl.key.password.file": "/nowhere"})
    assert [sentence.split(" needs ")[0] for sentence in found] == ["ssl.key.location", "ssl.key.password.file"]


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({"tls.insecure": True}, "tls.insecure = true"),
        ({"ssl.endpoint.identification.algorithm": ""}, "ssl.endpoint.identification.algorithm is empty"),
    ],
)
def test_what_takes_protection_away_is_said(given: dict[str, object], begins: str) -> None:
    settings = made({"security.protocol": "SSL", **given})
    (caution,) = settings.warnings()
    assert caution.startswith(begins)
    assert settings.insecure_settings() == (caution,)


def test_tls_as_it_comes_has_nothing_to_be_said_of() -> None:
    assert made({"security.protocol": "ssl"}).warnings() == ()


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({"tls.insecure": True}, "tls.insecure"),
        ({"sasl.username": "me"}, "sasl.username"),
        ({"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.username": "me"}, "sasl.username"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.allow_plaintext": True},
            "sasl.allow_plaintext",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "ssl.enabled.protocols": "TLSv1.2"},
            "ssl.enabled.protocols",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.login.read.timeout.ms": 5},
            "sasl.login.read.timeout.ms",
        ),
    ],
)
def test_a_setting_that_does_nothing_is_said(given: dict[str, object], idle: str) -> None:
    (caution,) = made(given).warnings()
    assert caution.startswith(f"{idle} does nothing with security.protocol = ")


def test_what_an_endpoint_needs_does_nothing_beside_a_file(tmp_path: Path) -> None:
    settings = made(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{secret(tmp_path)}",
            "sasl.oauthbearer.scope": "all",
            "sasl.oauthbearer.extensions": "a=b",
        }
    )
    (caution,) = settings.warnings()
    assert caution.startswith("sasl.oauthbearer.scope does nothing")


@pytest.mark.parametrize(("name", "reason"), [*SECURITY_REFUSED.items(), *OTHER_CLIENTS_NAMES.items()])
def test_what_is_not_kept_is_refused_with_what_to_write_instead_and_without_what_was_written(
    name: str, reason: str
) -> None:
    (found,) = problems({name: "hunter2"})
    assert found == f"{name} is not kept: {reason}"
    with pytest.raises(ConfigError) as caught:
        _ = validate({"kafka": {**BROKER, name: "hunter2"}}, "penstock.toml")
    assert caught.value.problems == [f"penstock.toml: kafka.{name} is not kept: {reason}"]


def test_the_daemon_holds_to_the_same_rules() -> None:
    kafka = {**BROKER, "security": {"protocol": "sasl_plaintext"}, "sasl": {"mechanism": "plain", "username": "me"}}
    with pytest.raises(ConfigError) as caught:
        _ = validate({"kafka": kafka}, "penstock.toml")
    shown, missing = caught.value.problems
    assert shown.startswith("penstock.toml: kafka.security.protocol = SASL_PLAINTEXT would show")
    assert missing == "penstock.toml: kafka.sasl.mechanism = PLAIN needs sasl.password.file"


def test_processes_of_the_daemon_are_handed_paths_and_no_secrets(tmp_path: Path) -> None:
    path = secret(tmp_path)
    given = {**BROKER, **SCRAM, "sasl.password.file": str(path)}
    settings = validate({"kafka": given}, "penstock.toml")
    handover.write(settings, tmp_path / "settings.json")
    text = (tmp_path / "settings.json").read_text()
    assert str(path) in text
    assert "hunter2" not in text
    assert handover.read(tmp_path / "settings.json") == settings
    # Everything is written there, which makes nothing of it a choice that was made.
    assert handover.read(tmp_path / "settings.json").kafka.warnings() == ()


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_are_looked_at_before_anything_is_started(tmp_path: Path) -> None:
    (found,) = problems({**SCRAM, "sasl.password.file": str(tmp_path / "absent")})
    assert found.startswith(f"sasl.password.file: {tmp_path}/absent cannot be read by uid ")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602, 0o604, 0o666, 0o601])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path, mode=mode)
    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    if mode == 0o640 and os.geteuid() == 0:
        assert read_password(path) == "hunter2", "root's own may be the group's to read"
        return
    (found,) = problems({**SCRAM, "sasl.password.file": str(path)})
    assert f"{path} has mode {mode:04o}" in found
    assert f"chmod 0600 {path}" in found
    assert "hunter2" not in found


def test_authorities_that_everybody_may_write_are_not_believed(tmp_path: Path) -> None:
    path = secret(tmp_path, mode=0o664)
    tls = {"security.protocol": "SSL", "ssl.truststore.location": str(path)}
    _ = direct_settings({**BROKER, **tls})
    path.chmod(0o666)
    assert problems(tls) == [
        f"ssl.truststore.location: {path} has mode 0666, so everybody may write what is believed: chmod o-w {path}"
    ]


def test_a_secret_of_another_user_is_refused_but_for_root_who_checks_for_others() -> None:
    need_root("give files away")
    # Not below a folder that only root may enter.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        look_as_nobody(secret(path))


def look_as_nobody(path: Path) -> None:
    os.chown(path, 65533, 65534)
    path.chmod(0o440)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        with pytest.raises(SecretError, match="belongs to uid 65533"):
            _ = read_secret(path)
    finally:
        os.seteuid(0)
        os.setegid(0)
    path.chmod(0o400)
    assert read_secret(path) == b"hunter2"


@pytest.mark.parametrize(
    ("written", "password"),
    [
        (b"abc", "abc"),
        (b"abc\n", "abc"),
        (b"abc\r\n", "abc"),
        (b" a b \n\n", " a b \n"),
        ("pä".encode(), "pä"),
        (b"a\r", "a\r"),
    ],
)
def test_one_line_end_after_a_password_does_not_count(tmp_path: Path, written: bytes, password: str) -> None:
    path = secret(tmp_path)
    _ = path.write_bytes(written)
    assert read_password(path) == password


@pytest.mark.parametrize("written", [b"", b"\n", b"\r\n", b"\xff\xfe"])
def test_a_file_without_a_text_holds_no_password(tmp_path: Path, written: bytes) -> None:
    path = secret(tmp_path)
    _ = path.write_bytes(written)
    with pytest.raises(SecretError, match="secret"):
        _ = read_password(path)


def test_pipes_folders_and_endless_files_are_no_secrets(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    long = tmp_path / "long"
    with long.open("wb") as file:
        _ = file.truncate((1 << 20) + 1)
    long.chmod(0o600)
    for path in (pipe, tmp_path, Path("/dev/zero"), long):
        with pytest.raises(SecretError, match=str(path)):
            _ = read_secret(path)
    assert read_certificates(secret(tmp_path, mode=0o644)) == b"hunter2"


def test_only_files_that_are_used_are_looked_at(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    given = {"sasl.password.file": absent, "ssl.truststore.location": absent, "sasl.kerberos.keytab": absent}
    assert file_problems(SecuritySettings.model_validate(given)) == []
    kerberos = {**given, "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    names = [found.split(":")[0] for found in file_problems(SecuritySettings.model_validate(kerberos))]
    assert names == ["ssl.truststore.location", "sasl.kerberos.keytab"]


def test_a_keystore_is_a_secret_unless_its_key_is_elsewhere(tmp_path: Path) -> None:
    path = str(secret(tmp_path, mode=0o644))
    given = {"security.protocol": "SSL", "ssl.keystore.location": path}
    (found,) = file_problems(SecuritySettings.model_validate(given))
    assert found.startswith("ssl.keystore.location: ")
    key = tmp_path / "key"
    _ = key.write_text("key")
    key.chmod(0o600)
    assert file_problems(SecuritySettings.model_validate({**given, "ssl.key.location": str(key)})) == []


def test_kerberos_without_its_package_is_told_with_what_to_install() -> None:
    settings = {**BROKER, "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    # In a process of its own, for which there is no such package.
    program = (
        "import sys; sys.modules['gssapi'] = None\n"
        "from penstock.config.direct import direct_settings\n"
        f"direct_settings({settings!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=False, timeout=60)
    assert (
        "ConfigError: sasl.mechanism = GSSAPI: the package gssapi is not installed: pip install 'penstock[gssapi]'"
        in done.stderr
    )
