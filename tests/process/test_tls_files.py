"""TLS contexts out of files: what is wrong with them is said, and what replaces them is noticed."""

import logging
import os
import ssl
from pathlib import Path

import pytest
from penstock.config.model import KafkaSettings
from penstock.producer.network.tls import TlsContexts, TlsError, TlsRules, make_context, tls_rules

from tests.harness.certificates import Authority


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def rules(authority: Authority, tmp_path: Path) -> TlsRules:
    return TlsRules(
        truststore=authority.write(tmp_path / "authority.pem"),
        keystore=authority.issue("a client").write(tmp_path / "client.pem"),
    )


def written(path: Path, content: bytes | str) -> Path:
    path.touch(0o600)
    _ = path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- out of the settings ---------------------------------------------------------------------------------------------


def kafka(**more: object) -> KafkaSettings:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return KafkaSettings.model_validate({"bootstrap.servers": "x:1", "security.protocol": "SSL", **given})


def test_everything_is_checked_unless_the_settings_say_otherwise() -> None:
    rules = tls_rules(kafka())
    assert (rules.checks_host, rules.checks_certificate) == (True, True)
    assert tls_rules(kafka(ssl_endpoint_identification_algorithm="")).checks_host is False
    insecure = tls_rules(kafka(tls_insecure=True))
    assert (insecure.checks_host, insecure.checks_certificate) == (False, False)


def test_versions_and_suites_are_those_of_the_settings() -> None:
    given = {
        "ssl.enabled.protocols": "TLSv1.2",
        "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,ECDHE-RSA-AES128-GCM-SHA256",
    }
    base = {"bootstrap.servers": "x:1", "security.protocol": "SSL", "tls.insecure": True}
    context = make_context(tls_rules(KafkaSettings.model_validate({**base, **given})))
    assert context.minimum_version is context.maximum_version is ssl.TLSVersion.TLSv1_2
    old = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert old == ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
    context = make_context(tls_rules(KafkaSettings.model_validate({**base, "ssl.enabled.protocols": "TLSv1.3"})))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_a_context_speaks_tls_1_2_or_newer_checks_names_and_never_renegotiates(rules: TlsRules) -> None:
    context = make_context(rules)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


def test_without_a_trust_store_the_authorities_of_the_system_are_believed() -> None:
    believed = make_context(TlsRules()).cert_store_stats()["x509_ca"]
    assert believed == ssl.create_default_context().cert_store_stats()["x509_ca"]


# --- what is wrong with the files ------------------------------------------------------------------------------------


def complaint(rules: TlsRules) -> str:
    with pytest.raises(TlsError) as raised:
        _ = make_context(rules)
    return str(raised.value)


def test_a_trust_store_that_is_missing_or_holds_nothing_is_named(rules: TlsRules, tmp_path: Path) -> None:
    missing = complaint(rules._replace(truststore=tmp_path / "nowhere.pem"))
    assert "ssl.truststore.location" in missing
    assert "nowhere.pem" in missing
    empty = complaint(rules._replace(truststore=written(tmp_path / "empty.pem", "")))
    assert "holds no certificate" in empty


def test_a_store_in_javas_format_is_told_to_be_none(rules: TlsRules, tmp_path: Path) -> None:
    java = written(tmp_path / "store.jks", b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    assert "PEM" in complaint(rules._replace(truststore=java))
    assert "PEM" in complaint(rules._replace(keystore=java))


def test_a_key_that_others_may_read_is_refused(rules: TlsRules) -> None:
    assert rules.keystore is not None
    rules.keystore.chmod(0o644)
    assert "chmod 0600" in complaint(rules)


def test_a_key_of_another_certificate_is_refused(rules: TlsRules, authority: Authority, tmp_path: Path) -> None:
    other = written(tmp_path / "other.key", authority.issue("another").key_pem())
    said = complaint(rules._replace(key=other))
    assert "ssl.key.location" in said
    assert "is not that of the certificate" in said


def test_a_key_may_have_a_file_of_its_own(rules: TlsRules, authority: Authority, tmp_path: Path) -> None:
    made = authority.issue("apart")
    chain = written(tmp_path / "chain.pem", made.chain_pem())
    chain.chmod(0o644)
    assert "no certificate and key in PEM" in complaint(
        rules._replace(keystore=written(tmp_path / "c", made.chain_pem()))
    )
    _ = make_context(rules._replace(keystore=chain, key=written(tmp_path / "apart.key", made.key_pem())))


def test_an_encrypted_key_needs_the_right_password(rules: TlsRules, authority: Authority, tmp_path: Path) -> None:
    keystore = authority.issue("sealed").write(tmp_path / "sealed.pem", password="open sesame")
    right = written(tmp_path / "right", "open sesame\n")
    wrong = written(tmp_path / "wrong", "open barley\n")
    _ = make_context(rules._replace(keystore=keystore, key_password_file=right))
    said = complaint(rules._replace(keystore=keystore, key_password_file=wrong))
    assert "ssl.key.password.file" in said
    assert "cannot be decrypted" in said
    # Nobody is asked at the terminal.
    assert "ssl.key.password.file" in complaint(rules._replace(keystore=keystore))
    assert "nowhere" in complaint(rules._replace(keystore=keystore, key_password_file=tmp_path / "nowhere"))


def test_a_password_that_no_key_needs_does_no_harm(rules: TlsRules, tmp_path: Path) -> None:
    _ = make_context(rules._replace(key_password_file=written(tmp_path / "idle", "open sesame\n")))


# --- replaced files --------------------------------------------------------------------------------------------------


def test_the_context_stays_as_long_as_the_files_do(rules: TlsRules) -> None:
    contexts = TlsContexts(rules)
    assert contexts.current() is contexts.current()


def test_any_file_that_was_replaced_makes_a_new_context(rules: TlsRules, authority: Authority) -> None:
    contexts = TlsContexts(rules)
    assert rules.keystore is not None
    assert rules.truststore is not None
    first = contexts.current()
    _ = authority.issue("a client").write(rules.keystore)
    second = contexts.current()
    assert second is not first
    _ = Authority("Another").write(rules.truststore)
    assert contexts.current() is not second


def test_a_file_of_the_same_size_and_time_is_noticed_by_its_number(rules: TlsRules) -> None:
    contexts = TlsContexts(rules)
    first = contexts.current()
    assert rules.truststore is not None
    before = rules.truststore.stat()
    other = written(rules.truststore.with_name("other.pem"), rules.truststore.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    _ = other.replace(rules.truststore)
    assert contexts.current() is not first


def test_files_that_are_no_good_any_more_leave_the_old_context_and_are_told_once(
    rules: TlsRules, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    contexts = TlsContexts(rules)
    assert rules.keystore is not None
    first = contexts.current()
    with caplog.at_level(logging.INFO):
        _ = rules.keystore.write_text("half a certif")
        assert contexts.current() is first
        assert contexts.current() is first
        assert caplog.text.count("tls_reload_failed") == 1
        rules.keystore.unlink()
        assert contexts.current() is first
        assert caplog.text.count("tls_reload_failed") == 2
        _ = authority.issue("a client").write(rules.keystore)
        assert contexts.current() is not first
        assert "tls_reloaded" in caplog.text


def test_files_that_were_never_good_are_an_error_until_they_are(rules: TlsRules, authority: Authority) -> None:
    assert rules.keystore is not None
    rules.keystore.unlink()
    contexts = TlsContexts(rules)
    for _ in range(2):
        with pytest.raises(TlsError, match=r"ssl\.keystore\.location"):
            _ = contexts.current()
    _ = authority.issue("a client").write(rules.keystore)
    _ = contexts.current()
