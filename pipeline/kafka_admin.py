"""Queries to the brokers without Spark: whether they and the topics exist, and the offsets of a group.

They use kafka-python with the certificates and credentials of `[kafka]`. kafka-python cannot use settings of `[kafka]`
that only Java understands; then no query is sent, and the error gives the reason.
"""

import contextlib
import os
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from ..api.errors import AuthenticationError
from ..config.pipeline_kafka import PipelineKafka
from ..config.secret_files import SecretError, read_password
from ..config.security import PASSWORD_MECHANISMS
from ..producer.network.tls import TlsError, make_context, tls_rules
from ..producer.security.mechanisms import token_provider
from ..producer.security.oauthbearer import TokenProvider

CLIENT_ID: Final = "penstock-pipeline"
Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


class KafkaUnreachableError(Exception):
    """No broker gave a usable response. The message names the brokers that were tried."""


class JavaOnlyKafkaError(Exception):
    """Only Java can connect with these settings."""


class Admin(Protocol):
    """The methods of kafka-python's admin client that are used."""

    def list_topics(self) -> list[str]: ...

    def alter_group_offsets(
        self, group_id: str, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, type[Exception]]: ...

    def list_group_offsets(self, group_specs: str) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]: ...

    def list_partition_offsets(
        self, topic_partition_specs: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]: ...

    def close(self) -> None: ...


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is not typed
    """Adapts the producer's token provider to kafka-python."""

    def __init__(self, given: TokenProvider, extensions: Mapping[str, str]) -> None:
        self._token_source = given
        self._extensions = dict(extensions)

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # the base method returns None
        return self._token_source.cached_token() or self._token_source.fetch_token()

    def extensions(self) -> dict[str, str]:
        return self._extensions


def python_settings(kafka: PipelineKafka) -> dict[str, Any]:
    """Translate `[kafka]` to kafka-python's settings.

    Raises:
        JavaOnlyKafkaError: only Java can connect with these settings, or a file they name cannot be used.
    """
    found: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers.split(","),
        "client_id": CLIENT_ID,
        "security_protocol": kafka.security_protocol,
    }
    try:
        if kafka.uses_tls:
            if not (kafka.is_pem_truststore and kafka.is_pem_keystore):
                raise JavaOnlyKafkaError("stores that are no PEM files are read by Java only")
            found["ssl_context"] = make_context(tls_rules(kafka))
            found["ssl_check_hostname"] = bool(kafka.ssl_endpoint_identification_algorithm)
        if kafka.uses_sasl:
            if kafka.sasl_jaas_config_file is not None:
                raise JavaOnlyKafkaError("sasl.jaas.config.file is read by Java only")
            found |= _sasl_config(kafka)
    except (SecretError, TlsError) as error:
        raise JavaOnlyKafkaError(str(error)) from error
    return found


def _sasl_config(kafka: PipelineKafka) -> dict[str, Any]:
    found: dict[str, Any] = {"sasl_mechanism": kafka.sasl_mechanism}
    if kafka.sasl_mechanism in PASSWORD_MECHANISMS:
        found["sasl_plain_username"] = kafka.sasl_username
        found["sasl_plain_password"] = read_password(cast("Path", kafka.sasl_password_file))
    elif kafka.sasl_mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = _TokenProvider(token_provider(kafka), kafka.token_extensions)
    else:
        found["sasl_kerberos_service_name"] = kafka.sasl_kerberos_service_name
        if kafka.sasl_kerberos_keytab is not None:
            # kafka-python has no setting for the keytab; MIT's library takes it from the environment.
            _ = os.environ.setdefault("KRB5_CLIENT_KTNAME", str(kafka.sasl_kerberos_keytab))
    return found


def connect(kafka: PipelineKafka, *, timeout_s: float) -> Admin:
    """Return a client that has connected to a broker. Each response may take at most `timeout_s` seconds.

    Raises:
        KafkaUnreachableError: no broker responded in that time, or authentication failed.
        JavaOnlyKafkaError: as for `python_settings`.
    """
    settings = python_settings(kafka)
    milliseconds = max(int(timeout_s * 1_000), 1)
    settings |= {"request_timeout_ms": milliseconds, "bootstrap_timeout_ms": milliseconds}
    try:
        client = KafkaAdminClient(**settings, reconnect_backoff_max_ms=1_000)
    except (KafkaError, AuthenticationError, OSError) as error:
        raise unreachable(kafka, error) from error
    return cast("Admin", client)


def unreachable(kafka: PipelineKafka, error: Exception) -> KafkaUnreachableError:
    """Build the error for a failed connection to the brokers, with a one-sentence message."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return KafkaUnreachableError(
        f"no broker of kafka.bootstrap.servers = {kafka.bootstrap_servers} can be used: {reason}"
    )


@contextlib.contextmanager
def admin_client(kafka: PipelineKafka, *, timeout_s: float) -> Generator[Admin]:
    """Open a client for a few queries, and close it.

    Raises:
        KafkaUnreachableError, JavaOnlyKafkaError: as for `connect`; the former also for Kafka errors raised inside the
        block.
    """
    client = connect(kafka, timeout_s=timeout_s)
    try:
        yield client
    except (KafkaError, AuthenticationError, OSError) as error:
        raise unreachable(kafka, error) from error
    finally:
        client.close()


def missing_topics(kafka: PipelineKafka, wanted: Iterable[str], *, timeout_s: float) -> list[str]:
    """Return those of the topics that do not exist in Kafka, or that this user may not see.

    Raises:
        KafkaUnreachableError, JavaOnlyKafkaError: as for `connect`.
    """
    with admin_client(kafka, timeout_s=timeout_s) as client:
        there = set(client.list_topics())
    return [name for name in wanted if name not in there]
