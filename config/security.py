"""How connections to brokers are protected and who the producer is to them: Kafka's names, PEM files, secrets from files only.

Rules between these settings are `rule_violations`; what the named files are like is looked at by `secret_files.py`.
"""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, cast
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

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
    """A list may be an array, or a text with commas as in a properties file."""
    if isinstance(given, list | tuple):
        return ",".join(str(item) for item in cast("list[object]", given))
    return given


def split_list(text: str) -> tuple[str, ...]:
    """The entries of a text with commas."""
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
    """OpenSSL's name of a suite of TLS 1.2, from the registered name (`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`) or its own."""
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
    """Protection of connections, and the producer's own identity."""

    security_protocol: Annotated[Protocol, BeforeValidator(_upper)] = "PLAINTEXT"
    """What connections to brokers are: in the clear or TLS (`SSL`), and whether the producer says who it is (`SASL_…`)."""
    ssl_truststore_location: Path | None = None
    """PEM file of the authorities whose certificates are believed. Unset: the system's."""
    ssl_keystore_location: Path | None = None
    """PEM file of the certificate the producer shows, with the certificates between it and the authority, and its private key if
    `ssl.key.location` names no other file."""
    ssl_key_location: Path | None = None
    """PEM file of the private key, where it is not in the keystore."""
    ssl_key_password_file: Path | None = None
    """File with the password of an encrypted private key."""
    ssl_endpoint_identification_algorithm: Annotated[HostCheck, BeforeValidator(_lower)] = "https"
    """`https`: a broker's certificate must be for the host that is connected to. Empty: any certificate that an authority
    signed will do, which whoever has one can use to stand between."""
    ssl_enabled_protocols: Annotated[str, BeforeValidator(_joined), AfterValidator(_tls_versions)] = "TLSv1.2,TLSv1.3"
    """Versions of TLS that are spoken."""
    ssl_cipher_suites: Annotated[str, BeforeValidator(_joined), AfterValidator(_cipher_suites)] = ""
    """Cipher suites, by their registered or OpenSSL's names, best first. Empty: OpenSSL's choice. With TLS 1.3 enabled its three
    suites must be among them."""
    tls_insecure: bool = False
    """Believe any certificate, for any host: TLS hides records from who only listens, and from nobody else. For trying out."""
    sasl_mechanism: Annotated[MechanismName | None, BeforeValidator(_upper)] = None
    """How the producer says who it is. `SASL_PLAINTEXT` and `SASL_SSL` need it."""
    sasl_username: str = ""
    """The user, of `PLAIN` and `SCRAM-…`."""
    sasl_password_file: Path | None = None
    """File with the user's password; a line end after it does not count."""
    sasl_allow_plaintext: Annotated[bool, Field(alias="sasl.allow_plaintext")] = False
    """Let `SASL_PLAINTEXT` send what others can use: the password of `PLAIN`, the token of `OAUTHBEARER`, and of `SCRAM-…` what a
    password can be guessed from. `GSSAPI` does not need it."""
    sasl_oauthbearer_token_endpoint_url: Annotated[str, AfterValidator(_endpoint)] = ""
    """Where the token comes from: `https://…` of a token endpoint (client credentials, RFC 6749 4.4), or `file:///…`, read again
    when it changes."""
    sasl_oauthbearer_client_id: str = ""
    """Who asks the endpoint."""
    sasl_oauthbearer_client_secret_file: Path | None = None
    """File with the secret of who asks; a line end after it does not count."""
    sasl_oauthbearer_scope: str = ""
    """Scopes that are asked for, with spaces between. Empty: the endpoint's own."""
    sasl_oauthbearer_extensions: Annotated[str, BeforeValidator(_joined), AfterValidator(_extensions)] = ""
    """`name=value`, with commas between, told to the broker beside the token (RFC 7628 3.1; in JAAS: `extension_name`)."""
    sasl_oauthbearer_header_urlencode: bool = False
    """Encode client id and secret as for a form before they go into the header, as RFC 6749 2.3.1 asks and few endpoints expect."""
    sasl_oauthbearer_truststore_location: Path | None = None
    """PEM file of the authorities that the endpoint's certificate is checked against. Unset: the system's."""
    sasl_login_connect_timeout_ms: int = Field(default=5_000, ge=1, le=_INT_MAX)
    """How long connecting to the endpoint may take, in ms. With the next one it should stay below
    `socket.connection.setup.timeout.ms`, which covers a whole login."""
    sasl_login_read_timeout_ms: int = Field(default=5_000, ge=1, le=_INT_MAX)
    """How long the endpoint's whole answer may take, in ms."""
    sasl_login_retry_backoff_ms: int = Field(default=100, ge=1, le=_INT_MAX)
    """First wait before the endpoint is asked again after a failure, in ms; doubles with every one."""
    sasl_login_retry_backoff_max_ms: int = Field(default=10_000, ge=1, le=_INT_MAX)
    """Longest such wait, in ms."""
    sasl_login_refresh_window_factor: float = Field(default=0.8, ge=0.5, le=1.0)
    """Part of a token's life after which a new one is asked for."""
    sasl_login_refresh_window_jitter: float = Field(default=0.05, ge=0.0, le=0.25)
    """At most so much is added to that part by chance, so that many producers do not ask at once."""
    sasl_login_refresh_min_period_seconds: int = Field(default=60, ge=0, le=900)
    """Ask for a new token no sooner than so long after the last, in seconds, unless there is no such time left with the buffer."""
    sasl_login_refresh_buffer_seconds: int = Field(default=300, ge=0, le=3_600)
    """Ask for a new token at least so long before the old one ends, in seconds, unless there is no such time left with the period."""
    sasl_kerberos_service_name: str = Field(default="kafka", pattern=r"^[^\s@/]+$")
    """First part of the brokers' own names in Kerberos, before the host."""
    sasl_kerberos_keytab: Path | None = None
    """Keytab that tickets are had with. Unset: the ticket cache of the process (`KRB5CCNAME`), or its default client keytab."""
    sasl_kerberos_principal: str = ""
    """The producer's own name in Kerberos. Empty: the first of the keytab, or the cache's."""

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def token_file(self) -> Path | None:
        """Where the token is, unless an endpoint gives it."""
        url = urlsplit(self.sasl_oauthbearer_token_endpoint_url)
        return Path(unquote(url.path)) if url.scheme == "file" else None

    @property
    def token_extensions(self) -> dict[str, str]:
        """`sasl.oauthbearer.extensions`, taken apart."""
        found = (entry.partition("=") for entry in split_list(self.sasl_oauthbearer_extensions))
        return {name: value for name, _, value in found}

    def insecure_settings(self) -> tuple[str, ...]:
        """What was switched off that protects, one sentence each; shown for as long as it is so."""
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
        """What is allowed but probably not meant, one sentence each."""
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
        """Whether this setting is looked at with this protocol and mechanism."""
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
    """A rule between settings that does not hold, and whose settings it is about."""

    names: tuple[str, ...]
    message: str


def rule_violations(settings: SecuritySettings) -> Iterator[RuleViolation]:
    """Rules between the settings; those about files are elsewhere."""
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
