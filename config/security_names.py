"""Kafka's TLS and SASL settings that are not supported, and their replacements."""

from typing import Final

_INLINE: Final = "secrets and certificates come from files: write the PEM into one and name it in"
_STORE: Final = "stores are PEM files, without a type and a password: leave it out"
_JAVA: Final = "classes of Java cannot run here"
_KERBEROS: Final = "a ticket is had from sasl.kerberos.keytab when a connection authenticates and none lasts: there is nothing to renew"
_CLAIMS: Final = "nothing but the end of a token is read here: brokers check its claims"
_BROKERS: Final = "only brokers check tokens of others"
_ASSERTION: Final = (
    "tokens come by client credentials, or from a file that another program writes: "
    "sasl.oauthbearer.token.endpoint.url = file:///…"
)

SECURITY_REFUSED: Final = {
    "sasl.client.callback.handler.class": f"{_JAVA}: sasl.mechanism and its settings say it all",
    "sasl.jaas.config": (
        "write sasl.username and sasl.password.file (PLAIN, SCRAM), sasl.oauthbearer.client.id and "
        "sasl.oauthbearer.client.secret.file (OAUTHBEARER), or sasl.kerberos.keytab and sasl.kerberos.principal (GSSAPI)"
    ),
    "sasl.kerberos.kinit.cmd": "no program is run: name sasl.kerberos.keytab, or keep the ticket cache fresh from outside",
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": _KERBEROS,
    "sasl.login.callback.handler.class": f"{_JAVA}: sasl.mechanism and its settings say it all",
    "sasl.login.class": f"{_JAVA}: sasl.mechanism and its settings say it all",
    "sasl.oauthbearer.assertion.algorithm": _ASSERTION,
    "sasl.oauthbearer.assertion.claim.aud": _ASSERTION,
    "sasl.oauthbearer.assertion.claim.exp.seconds": _ASSERTION,
    "sasl.oauthbearer.assertion.claim.iss": _ASSERTION,
    "sasl.oauthbearer.assertion.claim.jti.include": _ASSERTION,
    "sasl.oauthbearer.assertion.claim.nbf.seconds": _ASSERTION,
    "sasl.oauthbearer.assertion.claim.sub": _ASSERTION,
    "sasl.oauthbearer.assertion.file": _ASSERTION,
    "sasl.oauthbearer.assertion.private.key.file": _ASSERTION,
    "sasl.oauthbearer.assertion.private.key.passphrase": _ASSERTION,
    "sasl.oauthbearer.assertion.template.file": _ASSERTION,
    "sasl.oauthbearer.client.credentials.client.id": "write sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": (
        "a secret comes from a file: name it in sasl.oauthbearer.client.secret.file"
    ),
    "sasl.oauthbearer.clock.skew.seconds": _CLAIMS,
    "sasl.oauthbearer.expected.audience": _BROKERS,
    "sasl.oauthbearer.expected.issuer": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKERS,
    "sasl.oauthbearer.jwt.retriever.class": f"{_JAVA}: sasl.oauthbearer.token.endpoint.url says where the token comes from",
    "sasl.oauthbearer.jwt.validator.class": _CLAIMS,
    "sasl.oauthbearer.scope.claim.name": _CLAIMS,
    "sasl.oauthbearer.sub.claim.name": _CLAIMS,
    "ssl.engine.factory.class": f"{_JAVA}: TLS is OpenSSL's",
    "ssl.key.password": "a password comes from a file: name it in ssl.key.password.file",
    "ssl.keymanager.algorithm": f"{_JAVA}: TLS is OpenSSL's",
    "ssl.keystore.certificate.chain": f"{_INLINE} ssl.keystore.location",
    "ssl.keystore.key": f"{_INLINE} ssl.keystore.location or ssl.key.location",
    "ssl.keystore.password": f"{_STORE} (the password of the key inside goes into ssl.key.password.file)",
    "ssl.keystore.type": _STORE,
    "ssl.protocol": "write ssl.enabled.protocols",
    "ssl.provider": f"{_JAVA}: TLS is OpenSSL's",
    "ssl.secure.random.implementation": f"{_JAVA}: TLS is OpenSSL's",
    "ssl.trustmanager.algorithm": f"{_JAVA}: TLS is OpenSSL's",
    "ssl.truststore.certificates": f"{_INLINE} ssl.truststore.location",
    "ssl.truststore.password": _STORE,
    "ssl.truststore.type": _STORE,
}
"""Reason for each name."""

OTHER_CLIENTS_NAMES: Final = {
    "sasl.password": "a password comes from a file: name it in sasl.password.file",
    "sasl.oauthbearer.client.secret": "a secret comes from a file: name it in sasl.oauthbearer.client.secret.file",
    "ssl.ca.location": "write ssl.truststore.location",
    "ssl.certificate.location": "write ssl.keystore.location",
    "sasl.mechanisms": "write sasl.mechanism",
    "enable.ssl.certificate.verification": "write tls.insecure = true, if that is meant",
    "sasl.kerberos.keytab.location": "write sasl.kerberos.keytab",
    "sasl.oauthbearer.method": "sasl.oauthbearer.token.endpoint.url says where the token comes from",
}
"""Other Kafka clients' names for supported settings, and the name to use."""
