"""Settings of Kafka's producer with Kafka's defaults, and reasons for those refused by daemon and direct producer.

A test compares this table with Kafka's own. `producer.py`, `model.py` and `direct.py` declare the supported ones.
"""

from typing import Final

from .security_names import SECURITY_REFUSED

KAFKA_DEFAULTS: Final = {
    "acks": "all",
    "batch.size": "16384",
    "bootstrap.servers": "required",
    "buffer.memory": "33554432",
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "none",
    "compression.zstd.level": "3",
    "config.providers": "",
    "connections.max.idle.ms": "540000",
    "delivery.timeout.ms": "120000",
    "enable.idempotence": "true",
    "enable.metrics.push": "true",
    "interceptor.classes": "",
    "key.serializer": "required",
    "linger.ms": "5",
    "max.block.ms": "60000",
    "max.in.flight.requests.per.connection": "5",
    "max.request.size": "1048576",
    "metadata.max.age.ms": "300000",
    "metadata.max.idle.ms": "300000",
    "metadata.recovery.rebootstrap.trigger.ms": "300000",
    "metadata.recovery.strategy": "rebootstrap",
    "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
    "metrics.num.samples": "2",
    "metrics.recording.level": "INFO",
    "metrics.sample.window.ms": "30000",
    "partitioner.adaptive.partitioning.enable": "true",
    "partitioner.availability.timeout.ms": "0",
    "partitioner.class": "null",
    "partitioner.ignore.keys": "false",
    "receive.buffer.bytes": "32768",
    "reconnect.backoff.max.ms": "1000",
    "reconnect.backoff.ms": "50",
    "request.timeout.ms": "30000",
    "retries": "2147483647",
    "retry.backoff.max.ms": "1000",
    "retry.backoff.ms": "100",
    "sasl.client.callback.handler.class": "null",
    "sasl.jaas.config": "null",
    "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
    "sasl.kerberos.min.time.before.relogin": "60000",
    "sasl.kerberos.service.name": "null",
    "sasl.kerberos.ticket.renew.jitter": "0.05",
    "sasl.kerberos.ticket.renew.window.factor": "0.8",
    "sasl.login.callback.handler.class": "null",
    "sasl.login.class": "null",
    "sasl.login.connect.timeout.ms": "null",
    "sasl.login.read.timeout.ms": "null",
    "sasl.login.refresh.buffer.seconds": "300",
    "sasl.login.refresh.min.period.seconds": "60",
    "sasl.login.refresh.window.factor": "0.8",
    "sasl.login.refresh.window.jitter": "0.05",
    "sasl.login.retry.backoff.max.ms": "10000",
    "sasl.login.retry.backoff.ms": "100",
    "sasl.mechanism": "GSSAPI",
    "sasl.oauthbearer.assertion.algorithm": "RS256",
    "sasl.oauthbearer.assertion.claim.aud": "null",
    "sasl.oauthbearer.assertion.claim.exp.seconds": "300",
    "sasl.oauthbearer.assertion.claim.iss": "null",
    "sasl.oauthbearer.assertion.claim.jti.include": "false",
    "sasl.oauthbearer.assertion.claim.nbf.seconds": "60",
    "sasl.oauthbearer.assertion.claim.sub": "null",
    "sasl.oauthbearer.assertion.file": "null",
    "sasl.oauthbearer.assertion.private.key.file": "null",
    "sasl.oauthbearer.assertion.private.key.passphrase": "null",
    "sasl.oauthbearer.assertion.template.file": "null",
    "sasl.oauthbearer.client.credentials.client.id": "null",
    "sasl.oauthbearer.client.credentials.client.secret": "null",
    "sasl.oauthbearer.clock.skew.seconds": "30",
    "sasl.oauthbearer.expected.audience": "",
    "sasl.oauthbearer.expected.issuer": "null",
    "sasl.oauthbearer.header.urlencode": "false",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "3600000",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "10000",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "100",
    "sasl.oauthbearer.jwks.endpoint.url": "null",
    "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    "sasl.oauthbearer.jwt.validator.class": "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
    "sasl.oauthbearer.scope": "null",
    "sasl.oauthbearer.scope.claim.name": "scope",
    "sasl.oauthbearer.sub.claim.name": "sub",
    "sasl.oauthbearer.token.endpoint.url": "null",
    "security.protocol": "PLAINTEXT",
    "security.providers": "null",
    "send.buffer.bytes": "131072",
    "socket.connection.setup.timeout.max.ms": "30000",
    "socket.connection.setup.timeout.ms": "10000",
    "ssl.cipher.suites": "",
    "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.engine.factory.class": "null",
    "ssl.key.password": "null",
    "ssl.keymanager.algorithm": "SunX509",
    "ssl.keystore.certificate.chain": "null",
    "ssl.keystore.key": "null",
    "ssl.keystore.location": "null",
    "ssl.keystore.password": "null",
    "ssl.keystore.type": "JKS",
    "ssl.protocol": "TLSv1.3",
    "ssl.provider": "null",
    "ssl.secure.random.implementation": "null",
    "ssl.trustmanager.algorithm": "PKIX",
    "ssl.truststore.certificates": "null",
    "ssl.truststore.location": "null",
    "ssl.truststore.password": "null",
    "ssl.truststore.type": "JKS",
    "transaction.timeout.ms": "60000",
    "transaction.two.phase.commit.enable": "false",
    "transactional.id": "null",
    "value.serializer": "required",
}
"""Defaults of Kafka 4.3. `null`: none; empty: an empty string or list."""

NEWER_DEFAULTS: Final = {
    "buffer.memory.allocation.strategy": "full",
    "client.rack": "",
    "partitioner.rack.aware": "false",
}
"""Defaults of settings newer than Kafka 4.3."""

OLDER_DEFAULTS: Final = {"auto.include.jmx.reporter": "true"}
"""Defaults of Kafka 3.9 settings that have since been removed."""

EVERY_DEFAULT: Final = KAFKA_DEFAULTS | NEWER_DEFAULTS | OLDER_DEFAULTS

_NO_TRANSACTIONS: Final = "the daemon has no transactions: the direct producer has"
_JMX: Final = "there is no Java virtual machine to report from"


def _refused(reasons: dict[str, str]) -> dict[str, str]:
    """Add the settings that are refused everywhere."""
    everywhere = {
        "auto.include.jmx.reporter": _JMX,
        "buffer.memory.allocation.strategy": "memory is taken as records come, never a whole batch ahead",
        "config.providers": "write the value itself, or in the daemon's file ${NAME} for one from the environment",
        "security.providers": "these are classes of Java",
        "transaction.two.phase.commit.enable": "no coordinator of other systems takes part: transactions end in one step",
    }
    return dict(sorted({**SECURITY_REFUSED, **everywhere, **reasons}.items()))


_FOR_EVER: Final = "the daemon retries for ever: records wait in the spool, bounded by spool.bytes_max"
_EXPORTER: Final = "metrics are counters over HTTP, see [exporter]: they need no windows and no reporters"

DAEMON_REFUSED: Final = _refused(
    {
        "delivery.timeout.ms": _FOR_EVER,
        "interceptor.classes": "there is no code of yours inside the daemon: give the client library `interceptors`",
        "key.serializer": "keys arrive as bytes: give the client library a `key_serializer`",
        "metric.reporters": _EXPORTER,
        "metrics.num.samples": _EXPORTER,
        "metrics.recording.level": _EXPORTER,
        "metrics.sample.window.ms": _EXPORTER,
        "retries": _FOR_EVER,
        "transaction.timeout.ms": _NO_TRANSACTIONS,
        "transactional.id": _NO_TRANSACTIONS,
        "value.serializer": "values arrive as bytes: give the client library a `value_serializer`",
    }
)
"""Why the daemon refuses a setting."""

_REPORTERS: Final = (
    "reporters are classes of Java: ask `metrics()`, or register a Prometheus collector for the producer"
)

DIRECT_REFUSED: Final = _refused(
    {
        "interceptor.classes": "classes of Java cannot run here: give the producer `interceptors`, a list of objects of yours",
        "key.serializer": 'a class of Java cannot run here: give the producer a `key_serializer`, a name such as "string" or a function',
        "metric.reporters": _REPORTERS,
        "partitioner.class": 'a class of Java cannot run here: give the producer a `partitioner`, a function or "round_robin"',
        "value.serializer": 'a class of Java cannot run here: give the producer a `value_serializer`, a name such as "json" or a function',
    }
)
"""Why the direct producer refuses a setting."""
