"""TLS contexts from PEM files, recreated when a file changes, because keys and CAs are replaced at run time.

The files are checked before each new connection. The last good context stays in use until a new one can be created.
"""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from ...config.errors import ConfigError
from ...config.secret_files import SecretError, read_certificates, read_password, read_secret
from ...config.security import SUITES_OF_TLS_1_3, SecuritySettings, openssl_suite, split_list
from ...runtime import logs

_MISMATCH: Final = "KEY_VALUES_MISMATCH"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(Exception):
    """No context can be created from the files. The text names the setting and the file."""


class TlsRules(NamedTuple):
    """How to verify the broker, and which certificate to send to it."""

    truststore: Path | None = None
    """None: the system's CAs."""
    keystore: Path | None = None
    key: Path | None = None
    """None: the key is in the keystore."""
    key_password_file: Path | None = None
    checks_host: bool = True
    checks_certificate: bool = True
    versions: tuple[ssl.TLSVersion, ...] = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    suites: tuple[str, ...] = ()
    """TLS 1.2 cipher suites, by OpenSSL's names; empty: OpenSSL's default."""


def tls_rules(settings: SecuritySettings) -> TlsRules:
    """The TLS rules from the settings."""
    suites = split_list(settings.ssl_cipher_suites)
    return TlsRules(
        truststore=settings.ssl_truststore_location,
        keystore=settings.ssl_keystore_location,
        key=settings.ssl_key_location,
        key_password_file=settings.ssl_key_password_file,
        checks_host=bool(settings.ssl_endpoint_identification_algorithm) and not settings.tls_insecure,
        checks_certificate=not settings.tls_insecure,
        versions=tuple(_VERSIONS[version] for version in split_list(settings.ssl_enabled_protocols)),
        suites=tuple(openssl_suite(suite) for suite in suites if suite not in SUITES_OF_TLS_1_3),
    )


_FileFingerprint = tuple[int, int, int, int] | None


class TlsContexts:
    """Provides the TLS context of a process's connections. For use by one thread."""

    def __init__(self, rules: TlsRules) -> None:
        self.rules: Final = rules
        self._context: ssl.SSLContext | None = None
        self._fingerprints: tuple[_FileFingerprint, ...] = ()
        self._last_error = ""
        self._log = logs.get()

    def current(self) -> ssl.SSLContext:
        """The context for a new connection. Reads the files again if one has changed; if they are now unusable, returns
        the previous context.

        Raises:
            TlsError: the files are unusable and there is no previous context.
        """
        # Fingerprints are taken before reading: the next call then sees a change made in between.
        stamps = tuple(_file_fingerprint(path) for path in self._files())
        if self._context is not None and stamps == self._fingerprints:
            return self._context
        try:
            made = make_context(self.rules)
        except TlsError as error:
            if self._context is None:
                raise
            if self._last_error != str(error):
                self._last_error = str(error)
                self._log.warning("tls_reload_failed", reason=str(error))
            return self._context
        if self._context is not None:
            self._log.info("tls_reloaded")
        self._context, self._fingerprints, self._last_error = made, stamps, ""
        return made

    def _files(self) -> list[Path]:
        rules = self.rules
        return [path for path in (rules.truststore, rules.keystore, rules.key, rules.key_password_file) if path]


def make_context(rules: TlsRules) -> ssl.SSLContext:
    """Create a context from the current files.

    Raises:
        TlsError: the files are unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = min(rules.versions)
    context.maximum_version = max(rules.versions)
    # Renegotiation would make writes wait for reads, without any benefit to us.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if not rules.checks_host or not rules.checks_certificate:
        context.check_hostname = False
    if rules.checks_certificate:
        _trust(context, rules.truststore)
    else:
        context.verify_mode = ssl.CERT_NONE
    if rules.suites:
        try:
            context.set_ciphers(":".join(rules.suites))
        except ssl.SSLError as error:
            raise TlsError(f"ssl.cipher.suites: {_reason(error)}") from error
    if rules.keystore is not None:
        _load_keystore(context, rules, rules.keystore)
    return context


def require_good_files(settings: SecuritySettings) -> None:
    """Check the TLS files by creating a context, before anything is started.

    Raises:
        ConfigError: the files are unusable.
    """
    if settings.uses_tls:
        try:
            _ = make_context(tls_rules(settings))
        except TlsError as error:
            raise ConfigError([str(error)]) from error


def _trust(context: ssl.SSLContext, truststore: Path | None) -> None:
    if truststore is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    # Every certificate in the truststore is a trust anchor, even if it is not a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        _ = read_certificates(truststore)
        context.load_verify_locations(cafile=truststore)
    except SecretError as error:
        raise TlsError(f"ssl.truststore.location: {error}") from error
    except ssl.SSLError as error:
        raise TlsError(
            f"ssl.truststore.location: {truststore} holds no certificate in PEM ({_reason(error)})"
        ) from error
    except OSError as error:
        raise TlsError(f"ssl.truststore.location: {truststore}: {error.strerror}") from error


def _load_keystore(context: ssl.SSLContext, rules: TlsRules, keystore: Path) -> None:
    """Load the certificate and key that are sent to the broker. OpenSSL reports the error, but not which file has
    it."""
    name, key = ("ssl.key.location", rules.key) if rules.key is not None else ("ssl.keystore.location", keystore)
    try:
        password = b"" if rules.key_password_file is None else read_password(rules.key_password_file).encode()
    except SecretError as error:
        raise TlsError(f"ssl.key.password.file: {error}") from error
    try:
        sealed = b"ENCRYPTED" in read_secret(key)
        _ = read_certificates(keystore)
    except SecretError as error:
        raise TlsError(f"{name}: {error}") from error
    try:
        # Always pass a password, even an empty one: without it OpenSSL would prompt on the terminal.
        context.load_cert_chain(keystore, key, password)
    except ssl.SSLError as error:
        if sealed and error.reason != _MISMATCH:
            raise TlsError(_key_password_error(rules, key)) from error
        raise TlsError(_key_pair_error(name, keystore, key, error)) from error
    except OSError as error:
        raise TlsError(f"{name}: {key}: {error.strerror}") from error


def _key_pair_error(name: str, keystore: Path, key: Path, error: ssl.SSLError) -> str:
    if error.reason == _MISMATCH:
        return f"{name}: the key in {key} is not that of the certificate in {keystore}"
    return f"{name}: {keystore} and {key} are no certificate and key in PEM ({_reason(error)})"


def _key_password_error(rules: TlsRules, key: Path) -> str:
    """The error for an encrypted key that cannot be loaded. OpenSSL does not report a wrong password as such."""
    if rules.key_password_file is None:
        return f"ssl.key.password.file: the key in {key} is encrypted, and no file has its password"
    return f"ssl.key.password.file: the key in {key} cannot be decrypted with it"


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _file_fingerprint(path: Path) -> _FileFingerprint:
    """A value that changes when the file is replaced or written, or its permissions change; None if it cannot be
    read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
