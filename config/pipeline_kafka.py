"""The pipeline's Kafka settings: connections under the daemon's names, and any other setting of Java's consumer.

Two kinds of clients read them: Spark's connector, which is Java's consumer (`java_settings`), and our own in Python.
Settings that only Java knows are passed on unchanged. Secrets come from files and are never shown.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from pydantic import Field, model_validator

from .errors import ConfigError
from .secret_files import SecretError, read_certificates, read_password
from .security import PASSWORD_MECHANISMS, SecuritySettings

_CONNECTOR: Final = "the connector sets it itself"
_CHECKPOINT: Final = "positions lie in the checkpoint, and no consumer group is joined"

REFUSED: Final = {
    "auto.commit.interval.ms": _CHECKPOINT,
    "auto.offset.reset": "write startingOffsets under [land]",
    "enable.auto.commit": _CHECKPOINT,
    "group.id": _CHECKPOINT,
    "group.instance.id": _CHECKPOINT,
    "group.protocol": _CHECKPOINT,
    "group.remote.assignor": _CHECKPOINT,
    "heartbeat.interval.ms": _CHECKPOINT,
    "interceptor.classes": _CONNECTOR,
    "isolation.level": "write isolation under [land]",
    "key.deserializer": _CONNECTOR,
    "partition.assignment.strategy": _CHECKPOINT,
    "sasl.jaas.config": "a secret comes from a file: name it in sasl.jaas.config.file, or write sasl.username and sasl.password.file",
    "sasl.password": "a secret comes from a file: name it in sasl.password.file",
    "session.timeout.ms": _CHECKPOINT,
    "ssl.key.password": "a secret comes from a file: name it in ssl.key.password.file",
    "ssl.keystore.key": "a secret comes from a file: name it in ssl.key.location",
    "ssl.keystore.certificate.chain": "name its file in ssl.keystore.location",
    "ssl.keystore.password": "a secret comes from a file: name it in ssl.keystore.password.file",
    "ssl.truststore.certificates": "name their file in ssl.truststore.location",
    "ssl.truststore.password": "a secret comes from a file: name it in ssl.truststore.password.file",
    "value.deserializer": _CONNECTOR,
}
"""Settings of Java's consumer that are refused, and why."""

JAVA_ONLY: Final = frozenset(
    [
        "allow.auto.create.topics",
        "auto.include.jmx.reporter",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.client.callback.handler.class",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "security.providers",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.type",
    ]
)
"""Settings of Java's consumer (kafka-clients 3.9.2) that are passed on unchanged."""

_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule"
_AS_THEY_ARE: Final = (
    "security.protocol",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "sasl.mechanism",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.header.urlencode",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.buffer.seconds",
    "sasl.kerberos.service.name",
)
"""Settings of both kinds of clients that mean the same to both."""


class PipelineKafka(SecuritySettings):
    """The Kafka cluster of the topics. Other settings of Java's consumer are passed to Spark's connector unchanged."""

    bootstrap_servers: str
    """Brokers for the first connection: `host:port`, comma-separated."""
    sasl_jaas_config_file: Path | None = None
    """File with the text of `sasl.jaas.config`, for the connector only: for cases that the mechanism's own settings do
    not cover."""
    ssl_truststore_password_file: Path | None = None
    """File with the password of a truststore that is not a PEM file (`ssl.truststore.type`), for the connector only."""
    ssl_keystore_password_file: Path | None = None
    """File with the password of a keystore that is not a PEM file (`ssl.keystore.type`), for the connector only."""
    java: dict[str, str] = Field(default_factory=dict)
    """Settings that only the connector receives."""

    @model_validator(mode="before")
    @classmethod
    def _split_java_settings(cls, given: object) -> object:
        """Move settings that only Java knows into `java`."""
        if not isinstance(given, dict):
            return given
        table = dict(cast("dict[str, object]", given))
        only_java = {name: _text(table.pop(name)) for name in JAVA_ONLY & set(table)}
        if only_java:
            table["java"] = {**cast("dict[str, str]", table.get("java", {})), **only_java}
        return table

    @property
    def is_pem_truststore(self) -> bool:
        return self.java.get("ssl.truststore.type", "PEM").upper() == "PEM"

    @property
    def is_pem_keystore(self) -> bool:
        return self.java.get("ssl.keystore.type", "PEM").upper() == "PEM"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def connector_options(kafka: PipelineKafka) -> dict[str, str]:
    """Return options of Spark's `kafka` source and sink, named `kafka.…`. They include secrets: never show them.

    Raises:
        ConfigError: a named file cannot be used.
    """
    return {f"kafka.{name}": value for name, value in java_settings(kafka).items()}


def java_settings(kafka: PipelineKafka) -> dict[str, str]:
    """Return settings for Java's clients, with the contents of PEM files: executors lack these files.

    Raises:
        ConfigError: a named file cannot be used.
    """
    found = {"bootstrap.servers": kafka.bootstrap_servers}
    given = kafka.model_dump(by_alias=True, exclude_unset=True)
    found |= {name: _text(given[name]) for name in _AS_THEY_ARE if given.get(name) not in (None, "")}
    if "ssl.endpoint.identification.algorithm" in given:
        found["ssl.endpoint.identification.algorithm"] = kafka.ssl_endpoint_identification_algorithm
    try:
        if kafka.uses_tls:
            found |= _tls(kafka)
        if kafka.uses_sasl:
            found |= _sasl(kafka)
    except SecretError as error:
        raise ConfigError([f"kafka: {error}"]) from error
    return found | kafka.java


def _tls(kafka: PipelineKafka) -> dict[str, str]:
    found: dict[str, str] = {}
    if kafka.ssl_truststore_location is not None:
        if kafka.is_pem_truststore:
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.certificates"] = read_certificates(kafka.ssl_truststore_location).decode()
        else:
            found["ssl.truststore.location"] = str(kafka.ssl_truststore_location)
    if kafka.ssl_truststore_password_file is not None:
        found["ssl.truststore.password"] = read_password(kafka.ssl_truststore_password_file)
    if kafka.ssl_keystore_location is not None:
        if kafka.is_pem_keystore:
            chain = read_password(kafka.ssl_keystore_location)
            key = chain if kafka.ssl_key_location is None else read_password(kafka.ssl_key_location)
            found["ssl.keystore.type"] = "PEM"
            found["ssl.keystore.certificate.chain"] = _blocks(chain, "CERTIFICATE", kafka.ssl_keystore_location)
            found["ssl.keystore.key"] = _blocks(
                key, "PRIVATE KEY", kafka.ssl_key_location or kafka.ssl_keystore_location
            )
        else:
            found["ssl.keystore.location"] = str(kafka.ssl_keystore_location)
    if kafka.ssl_keystore_password_file is not None:
        found["ssl.keystore.password"] = read_password(kafka.ssl_keystore_password_file)
    if kafka.ssl_key_password_file is not None:
        found["ssl.key.password"] = read_password(kafka.ssl_key_password_file)
    return found


def _blocks(text: str, kind: str, path: Path) -> str:
    """Return the PEM blocks of one kind. Java reads private keys in PKCS #8 only."""
    kinds = (kind, f"ENCRYPTED {kind}")
    wanted: list[str] = []
    inside = False
    for line in text.splitlines():
        inside = inside or line in [f"-----BEGIN {name}-----" for name in kinds]
        if inside:
            wanted.append(line)
        inside = inside and line not in [f"-----END {name}-----" for name in kinds]
    if not wanted:
        more = " in PKCS #8 (openssl pkcs8 -topk8 makes it)" if kind == "PRIVATE KEY" else ""
        raise SecretError(f"{path} has no {kind.lower()}{more}")
    return "\n".join([*wanted, ""])


def _sasl(kafka: PipelineKafka) -> dict[str, str]:
    if kafka.sasl_jaas_config_file is not None:
        return {"sasl.jaas.config": read_password(kafka.sasl_jaas_config_file)}
    mechanism = kafka.sasl_mechanism
    if mechanism in PASSWORD_MECHANISMS:
        assert kafka.sasl_password_file is not None  # a rule between settings
        module = _PLAIN if mechanism == "PLAIN" else _SCRAM
        password = read_password(kafka.sasl_password_file)
        return _jaas(module, {"username": kafka.sasl_username, "password": password})
    if mechanism == "OAUTHBEARER":
        values = dict(kafka.token_extensions)
        options = {f"extension_{name}": value for name, value in values.items()}
        if kafka.sasl_oauthbearer_client_secret_file is not None:
            secret = read_password(kafka.sasl_oauthbearer_client_secret_file)
            options |= {"clientId": kafka.sasl_oauthbearer_client_id, "clientSecret": secret}
        if kafka.sasl_oauthbearer_scope:
            options["scope"] = kafka.sasl_oauthbearer_scope
        if kafka.sasl_oauthbearer_truststore_location is not None:
            # Of the endpoint, which is another server than the brokers; a text in JAAS has no line ends.
            options |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(kafka.sasl_oauthbearer_truststore_location),
            }
        return {"sasl.login.callback.handler.class": _OAUTH_HANDLER, **_jaas(_OAUTH, options)}
    if kafka.sasl_kerberos_keytab is None:
        return _jaas(_KERBEROS, {"useTicketCache": "true", **_principal(kafka)})
    keytab = {"useKeyTab": "true", "storeKey": "true", "keyTab": str(kafka.sasl_kerberos_keytab)}
    return _jaas(_KERBEROS, keytab | _principal(kafka))


def _principal(kafka: PipelineKafka) -> dict[str, str]:
    return {"principal": kafka.sasl_kerberos_principal} if kafka.sasl_kerberos_principal else {}


def _jaas(module: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return one JAAS entry; quotes and backslashes in its values are escaped."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    text = " ".join([module, "required", *(f'{name}="{value}"' for name, value in quoted.items())])
    return {"sasl.jaas.config": f"{text};"}
