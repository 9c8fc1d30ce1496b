"""Security of connections to brokers and the producer's identity: Kafka's names, PEM files, secrets from files only.

`rule_violations` checks the rules between these settings; `secret_files.py` checks the named files.
"""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, cast
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from .bootstrap import parse_bootstrap
from .section import KafkaSection

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
MechanismName = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]
HostCheck = Literal["https", ""]

PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_OLD_TLS: Final = ("SSLv2", "SSLv3", "SSLv2Hello", "TLSv1", "TLSv1.1")
SUITES_OF_TLS_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_INT_MAX: Final = 2**31 - 1
# RFC 7628 3.1; `auth` is the token's own.
_EXTENSION: Final = re.compile(r"([A-Za-z]+)=([\x21-\x2b\x2d-\x7e \t]+)")


def _upper(given: object) -> object:
    return given.strip().upper() if isinstance(given, str) else given


def _lower(given: object) -> object:
    return given.strip().lower() if isinstance(given, str) else given


def _joined(given: object) -> object:
    """Join an array into a comma-separated string, as in a properties file; return other values unchanged."""
    if isinstance(given, list | tuple):
        return ",".join(str(item) for item in cast("list[object]", given))
    return given


def split_list(text: str) -> tuple[str, ...]:
    """Return the distinct entries of a comma-separated string, in order."""
    return tuple(dict.fromkeys(part for entry in text.split(",") if (part := entry.strip())))


def _tls_versions(text: str) -> str:
    versions = split_list(text)
    if not versions:
        raise ValueError("a version is wanted: TLSv1.2 or TLSv1.3, or both with a comma")
    for version in versions:
        if version in _OLD_TLS:
            raise ValueError(f"{version} is broken and never spoken: TLSv1.2 and TLSv1.3 are taken")
        if version not in TLS_VERSIONS:
            raise ValueError(f"{version!r} is no version of TLS: TLSv1.2 and TLSv1.3 are taken")
    return ",".join(versions)


def openssl_suite(name: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite; `name` may be that or the registered one (`TLS_RSA_WITH_…`)."""
    exchange, with_, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not with_:
        return name
    cipher = re.sub(r"^AES_(\d+)_", r"AES\1_", cipher).replace("_CBC_", "_")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return "-".join(word.replace("_", "-") for word in ("" if exchange == "RSA" else exchange, cipher) if word)


def _cipher_suites(text: str) -> str:
    suites = split_list(text)
    for suite in suites:
        if suite in SUITES_OF_TLS_1_3:
            continue
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(openssl_suite(suite))
        except ssl.SSLError:
            raise ValueError(f"{suite!r} is no cipher suite that this OpenSSL has") from None
    return ",".join(suites)


def _extensions(text: str) -> str:
    names: set[str] = set()
    for entry in split_list(text):
        found = _EXTENSION.fullmatch(entry)
        if found is None or found[1] == "auth":
            raise ValueError(f"{entry!r} is not name=value with a name of letters that is not `auth`")
        if found[1] in names:
            raise ValueError(f"{found[1]} is named twice")
        names.add(found[1])
    return text


def _endpoint(text: str) -> str:
    if not text:
        return text
    url = urlsplit(text)
    if url.scheme == "file":
        if url.netloc or not url.path.startswith("/") or url.query or url.fragment:
            raise ValueError("a token's file is written file:///absolute/path")
    elif url.scheme != "https":
        raise ValueError("https:// or file:/// is wanted: a secret is sent there, and a token comes back")
    elif not url.hostname or not _port_is_good(url) or url.username is not None or url.fragment:
        raise ValueError("https://host[:port]/path is wanted, without user, password and fragment")
    if any(ord(letter) <= ord(" ") or ord(letter) > ord("~") for letter in text):
        raise ValueError("a URL has no spaces, control characters and letters beyond ASCII")
    return text


def _port_is_good(url: SplitResult) -> bool:
    try:
        return url.port != 0
    except ValueError:
        return False


class SecuritySettings(KafkaSection):
    """Security of connections, and the producer's identity."""

    security_protocol: Annotated[Protocol, BeforeValidator(_upper)] = "PLAINTEXT"
    """Protocol of connections to brokers: plaintext or TLS (`SSL`), with or without authentication (`SASL_…`)."""
    ssl_truststore_location: Path | None = None
    """PEM file of the certificate authorities to trust. Unset: the system's."""
    ssl_keystore_location: Path | None = None
    """PEM file of the producer's certificate, with the intermediate certificates, and its private key unless
    `ssl.key.location` names another file."""
    ssl_key_location: Path | None = None
    """PEM file of the private key, if it is not in the keystore."""
    ssl_key_password_file: Path | None = None
    """File with the password of an encrypted private key."""
    ssl_endpoint_identification_algorithm: Annotated[HostCheck, BeforeValidator(_lower)] = "https"
    """`https`: a broker's certificate must be issued for the host that is connected to. Empty: any certificate signed
    by a trusted authority is accepted, so anyone who has one can intercept connections."""
    ssl_enabled_protocols: Annotated[str, BeforeValidator(_joined), AfterValidator(_tls_versions)] = "TLSv1.2,TLSv1.3"
    """TLS versions to use."""
    ssl_cipher_suites: Annotated[str, BeforeValidator(_joined), AfterValidator(_cipher_suites)] = ""
    """Cipher suites, by their registered or OpenSSL names, preferred first. Empty: OpenSSL's choice. If TLS 1.3 is
    enabled, its three suites must be in the list."""
    tls_insecure: bool = False
    """Accept any certificate, for any host: TLS then protects records from eavesdroppers only, not from impersonation.
    For testing only."""
    sasl_mechanism: Annotated[MechanismName | None, BeforeValidator(_upper)] = None
    """How the producer authenticates. Required by `SASL_PLAINTEXT` and `SASL_SSL`."""
    sasl_username: str = ""
    """User name for `PLAIN` and `SCRAM-…`."""
    sasl_password_file: Path | None = None
    """File with the user's password; a line end after it is ignored."""
    sasl_allow_plaintext: Annotated[bool, Field(alias="sasl.allow_plaintext")] = False
    """Allow `SASL_PLAINTEXT` to send credentials that others can use: the password of `PLAIN`, the token of
    `OAUTHBEARER`, and for `SCRAM-…` data from which a password can be guessed. `GSSAPI` does not need it."""
    sasl_oauthbearer_token_endpoint_url: Annotated[str, AfterValidator(_endpoint)] = ""
    """Source of the token: `https://…` of a token endpoint (client credentials, RFC 6749 4.4), or `file:///…`, read
    again when it changes."""
    sasl_oauthbearer_client_id: str = ""
    """Client id sent to the token endpoint."""
    sasl_oauthbearer_client_secret_file: Path | None = None
    """File with the client secret; a line end after it is ignored."""
    sasl_oauthbearer_scope: str = ""
    """Scopes to request, separated by spaces. Empty: the endpoint's default."""
    sasl_oauthbearer_extensions: Annotated[str, BeforeValidator(_joined), AfterValidator(_extensions)] = ""
    """`name=value` pairs, separated by commas, sent to the broker with the token (RFC 7628 3.1; in JAAS:
    `extension_name`)."""
    sasl_oauthbearer_header_urlencode: bool = False
    """Form-encode client id and secret before they go into the header, as RFC 6749 2.3.1 requires and few endpoints
    expect."""
    sasl_oauthbearer_truststore_location: Path | None = None
    """PEM file of the certificate authorities for the token endpoint. Unset: the system's."""
    sasl_login_connect_timeout_ms: int = Field(default=5_000, ge=1, le=_INT_MAX)
    """How long connecting to the token endpoint may take, in ms. Its sum with `sasl.login.read.timeout.ms` should stay
    below `socket.connection.setup.timeout.ms`, which covers a whole login."""
    sasl_login_read_timeout_ms: int = Field(default=5_000, ge=1, le=_INT_MAX)
    """How long the token endpoint's whole response may take, in ms."""
    sasl_login_retry_backoff_ms: int = Field(default=100, ge=1, le=_INT_MAX)
    """First backoff before a failed token request is retried, in ms; doubles with every failure."""
    sasl_login_retry_backoff_max_ms: int = Field(default=10_000, ge=1, le=_INT_MAX)
    """Maximum of that backoff, in ms."""
    sasl_login_refresh_window_factor: float = Field(default=0.8, ge=0.5, le=1.0)
    """Fraction of a token's lifetime after which a new one is requested."""
    sasl_login_refresh_window_jitter: float = Field(default=0.05, ge=0.0, le=0.25)
    """Maximum random addition to that fraction, so that many producers do not request tokens at once."""
    sasl_login_refresh_min_period_seconds: int = Field(default=60, ge=0, le=900)
    """Minimum time between two token requests, in seconds. Ignored if the token's lifetime does not fit both it and
    `sasl.login.refresh.buffer.seconds`."""
    sasl_login_refresh_buffer_seconds: int = Field(default=300, ge=0, le=3_600)
    """Minimum time before a token expires at which a new one is requested, in seconds. Ignored if the token's lifetime
    does not fit both it and `sasl.login.refresh.min.period.seconds`."""
    sasl_kerberos_service_name: str = Field(default="kafka", pattern=r"^[^\s@/]+$")
    """First part of the brokers' Kerberos principals, before the host."""
    sasl_kerberos_keytab: Path | None = None
    """Keytab for obtaining tickets. Unset: the ticket cache of the process (`KRB5CCNAME`), or its default client
    keytab."""
    sasl_kerberos_principal: str = ""
    """The producer's Kerberos principal. Empty: the first of the keytab, or that of the cache."""

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def token_file(self) -> Path | None:
        """Path of the token's file; None if the token comes from an endpoint."""
        url = urlsplit(self.sasl_oauthbearer_token_endpoint_url)
        return Path(unquote(url.path)) if url.scheme == "file" else None

    @property
    def token_extensions(self) -> dict[str, str]:
        """`sasl.oauthbearer.extensions` as a mapping of names to values."""
        found = (entry.partition("=") for entry in split_list(self.sasl_oauthbearer_extensions))
        return {name: value for name, _, value in found}

    def insecure_settings(self) -> tuple[str, ...]:
        """Return the disabled protections, one sentence each; they are shown as long as they are disabled."""
        found: list[str] = []
        if self.uses_tls and self.tls_insecure:
            found.append("tls.insecure = true: whoever stands between here and the brokers can pose as one")
        elif self.uses_tls and not self.ssl_endpoint_identification_algorithm:
            found.append(
                "ssl.endpoint.identification.algorithm is empty: any host with a certificate can pose as a broker"
            )
        if self._exposes_credentials:
            found.append(
                f"sasl.allow_plaintext = true: the credentials of {self.sasl_mechanism} can be read on the way to the brokers"
            )
        return tuple(found)

    @property
    def _exposes_credentials(self) -> bool:
        return self.security_protocol == "SASL_PLAINTEXT" and self.sasl_mechanism not in (None, "GSSAPI")

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about allowed but probably unintended values, one sentence each."""
        idle = [name for name, attribute in _named() if self._is_changed(attribute) and not self._is_effective(name)]
        if not idle:
            return self.insecure_settings()
        of_mechanism = f" and sasl.mechanism = {self.sasl_mechanism}" if self.uses_sasl else ""
        protocol = f"security.protocol = {self.security_protocol}{of_mechanism}"
        return (*self.insecure_settings(), *(f"{name} does nothing with {protocol}" for name in idle))

    def _is_changed(self, attribute: str) -> bool:
        # Not `model_fields_set`: the processes of the daemon read a file in which everything is given.
        return bool(getattr(self, attribute) != SecuritySettings.model_fields[attribute].default)

    def _is_effective(self, name: str) -> bool:
        """Return whether this setting has an effect with this protocol and mechanism."""
        mechanism = self.sasl_mechanism
        if name.startswith(("ssl.", "tls.")):
            return self.uses_tls
        if name.startswith("sasl.oauthbearer.") and name != "sasl.oauthbearer.token.endpoint.url":
            asks = mechanism == "OAUTHBEARER" and (self.token_file is None or name.endswith(".extensions"))
            return self.uses_sasl and asks
        families = (("sasl.oauthbearer.", "OAUTHBEARER"), ("sasl.login.", "OAUTHBEARER"), ("sasl.kerberos.", "GSSAPI"))
        for family, owner in families:
            if name.startswith(family):
                return self.uses_sasl and mechanism == owner
        if name in ("sasl.username", "sasl.password.file"):
            return self.uses_sasl and mechanism in PASSWORD_MECHANISMS
        return (
            name != "sasl.allow_plaintext" or self._exposes_credentials
            if self.uses_sasl
            else not name.startswith("sasl.")
        )


def _named() -> Iterator[tuple[str, str]]:
    for attribute, field in SecuritySettings.model_fields.items():
        yield field.alias or attribute, attribute


class RuleViolation(NamedTuple):
    """A violated rule between settings, with the names of the settings."""

    names: tuple[str, ...]
    message: str


def rule_violations(settings: SecuritySettings, bootstrap_servers: str) -> Iterator[RuleViolation]:
    """Yield violations of the rules between the settings; `secret_files.py` has the rules about files."""
    try:
        _ = parse_bootstrap(bootstrap_servers)
    except ValueError as error:
        yield RuleViolation(("bootstrap.servers",), str(error))
    if settings.uses_sasl:
        yield from _sasl_rules(settings)
    if settings.uses_sasl and settings.sasl_mechanism == "OAUTHBEARER":
        yield from _token_rules(settings)
    yield from _tls_rules(settings)


def _sasl_rules(settings: SecuritySettings) -> Iterator[RuleViolation]:
    protocol, mechanism = settings.security_protocol, settings.sasl_mechanism
    if mechanism is None:
        sentence = f"security.protocol = {protocol} needs sasl.mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI"
        yield RuleViolation(("security.protocol", "sasl.mechanism"), sentence)
        return
    if protocol == "SASL_PLAINTEXT" and mechanism != "GSSAPI" and not settings.sasl_allow_plaintext:
        yield RuleViolation(
            ("security.protocol", "sasl.mechanism", "sasl.allow_plaintext"),
            f"security.protocol = SASL_PLAINTEXT would show the credentials of {mechanism} to whoever listens: use SASL_SSL, "
            "or write sasl.allow_plaintext = true as well",
        )
    if mechanism in PASSWORD_MECHANISMS:
        wanted = {"sasl.username": settings.sasl_username, "sasl.password.file": settings.sasl_password_file}
    elif mechanism == "OAUTHBEARER":
        wanted = {"sasl.oauthbearer.token.endpoint.url": settings.sasl_oauthbearer_token_endpoint_url}
        if settings.token_file is None:
            wanted |= {
                "sasl.oauthbearer.client.id": settings.sasl_oauthbearer_client_id,
                "sasl.oauthbearer.client.secret.file": settings.sasl_oauthbearer_client_secret_file,
            }
    else:
        wanted = {}
    for name in (name for name, value in wanted.items() if not value):
        yield RuleViolation(("sasl.mechanism", name), f"sasl.mechanism = {mechanism} needs {name}")


def _token_rules(settings: SecuritySettings) -> Iterator[RuleViolation]:
    if ":" in settings.sasl_oauthbearer_client_id and not settings.sasl_oauthbearer_header_urlencode:
        yield RuleViolation(
            ("sasl.oauthbearer.client.id", "sasl.oauthbearer.header.urlencode"),
            "sasl.oauthbearer.client.id has a colon, which would end it: write sasl.oauthbearer.header.urlencode = true",
        )


def _tls_rules(settings: SecuritySettings) -> Iterator[RuleViolation]:
    if settings.ssl_keystore_location is None:
        for name, value in (
            ("ssl.key.location", settings.ssl_key_location),
            ("ssl.key.password.file", settings.ssl_key_password_file),
        ):
            if value is not None:
                yield RuleViolation(
                    (name, "ssl.keystore.location"), f"{name} needs ssl.keystore.location, the certificate of the key"
                )
    suites = set(split_list(settings.ssl_cipher_suites))
    newer = suites & set(SUITES_OF_TLS_1_3)
    versions = split_list(settings.ssl_enabled_protocols)
    names = ("ssl.cipher.suites", "ssl.enabled.protocols")
    if suites and "TLSv1.3" in versions and len(newer) < len(SUITES_OF_TLS_1_3):
        yield RuleViolation(
            names,
            "ssl.cipher.suites: suites of TLS 1.3 cannot be left out one by one: name all three "
            f"({', '.join(SUITES_OF_TLS_1_3)}), or write ssl.enabled.protocols = TLSv1.2",
        )
    if suites and suites == newer and "TLSv1.2" in versions:
        yield RuleViolation(
            names, "ssl.cipher.suites has no suite of TLS 1.2: name one, or write ssl.enabled.protocols = TLSv1.3"
        )
