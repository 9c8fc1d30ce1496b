"""A real Kafka node with a listener for every way to say who one is, and the realm, authority and token server behind them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse

from .certificates import EXPIRED, Authority
from .kafka_cluster import REQUEST_S, OwnCluster
from .kafka_node import JavaOptions, Listener, NodeExtras
from .kdc import REALM, Kdc
from .node_metrics import JmxPort
from .one_node import ask
from .ports import free_ports
from .token_server import AUDIENCE, ISSUER, Registered, TokenServer

SESSION_MS: Final = 10_000
OPEN: Final = "open-"
"""Topics whose names begin so may be written by everybody who has a name."""
USER: Final = "app"
PASSWORD: Final = "correct horse"
SECRET: Final = "client secret"
STRANGER: Final = "stranger"
"""A client of the token server whose tokens are for another audience."""
LIMITED: Final = ("limited-1", "limited-2", "limited-3", "limited-4")
"""Users with the same password, whose quotas tests change."""
QUOTAS_VERSION: Final = 1
ITERATIONS: Final = 4096
ROTATED: Final = "rotated"
"""A user of SCRAM with the same password, which tests change."""
OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Way(StrEnum):
    """How a client says who it is; the listeners of the node are named after it."""

    TLS = "TLS"
    MTLS = "MTLS"
    PLAIN = "PLAIN"
    SCRAM_256 = "SCRAM256"
    SCRAM_512 = "SCRAM512"
    OAUTH = "OAUTH"
    KERBEROS = "KERBEROS"


MECHANISMS: Final = {
    Way.PLAIN: "PLAIN",
    Way.SCRAM_256: "SCRAM-SHA-256",
    Way.SCRAM_512: "SCRAM-SHA-512",
    Way.OAUTH: "OAUTHBEARER",
    Way.KERBEROS: "GSSAPI",
}
# Listeners that no client may believe.
WRONG_NAME: Final = "WRONGNAME"
OUT_OF_DATE: Final = "OUTOFDATE"
IN_THE_CLEAR: Final = "CLEAR"
"""PLAIN and GSSAPI without TLS."""
PROTOCOLS: Final = {
    Way.TLS: "SSL",
    Way.MTLS: "SSL",
    **dict.fromkeys(MECHANISMS, "SASL_SSL"),
    WRONG_NAME: "SSL",
    OUT_OF_DATE: "SSL",
    IN_THE_CLEAR: "SASL_PLAINTEXT",
}


def _jaas(module: str, **options: str) -> str:
    pairs = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{module} required {pairs};".replace(" ;", ";")


def _written_by(user: str) -> tuple[str, str, AclOperation, AclPermissionType]:
    return f"User:{user}", "*", AclOperation.WRITE, AclPermissionType.ALLOW


def write_secret(path: Path, text: str) -> Path:
    """Make or replace a file that its owner alone may read, in one rename."""
    beside = path.with_name(path.name + ".new")
    beside.touch(0o600)
    _ = beside.write_text(text)
    return beside.replace(path)


class _Files(NamedTuple):
    """PEM files, secrets and key tabs."""

    trust: Path
    other_trust: Path
    client: Path
    password: Path
    wrong_password: Path
    secret: Path
    keytab: Path


class SecureKafka:
    """The node and all that belongs to it. Use it in a `with`."""

    def __init__(self, version: str) -> None:
        """Start everything. Raise what starting raises, with nothing left running."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"secure-{version}-"))
        self._stack = ExitStack()
        _ = self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._start(version)
        except BaseException:
            self.close()
            raise

    def _start(self, version: str) -> None:
        self.authority = Authority()
        self.kdc = self._stack.enter_context(Kdc(self.folder / "kdc"))
        self.kdc.start()
        self.files = self._write_files()
        server = self.authority.issue("broker").write(self.folder / "server.pem")
        clients = {USER: Registered(SECRET), STRANGER: Registered(SECRET, audience="something else")}
        self.tokens = self._stack.enter_context(TokenServer(clients, server))
        self.jmx = JmxPort(version, free_ports(1)[0])
        self._ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
        listeners = [Listener(str(name), protocol, self._ports[name]) for name, protocol in PROTOCOLS.items()]
        users = [
            f"{mechanism}=[name={user},password={PASSWORD}]"
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for user in (USER, ROTATED)
        ]
        self.cluster = OwnCluster(
            version,
            java=JavaOptions(
                properties={
                    **self.jmx.properties(),
                    "java.security.krb5.conf": str(self.kdc.config_path),
                    "org.apache.kafka.sasl.oauthbearer.allowed.urls": self.tokens.keys_url,
                }
            ),
            settings=self._node_settings(server),
            extras=NodeExtras(listeners, users),
        )
        _ = self._stack.callback(self.cluster.close)
        self.allow("*", OPEN, prefix=True)

    def _write_files(self) -> _Files:
        def secret(name: str, text: str) -> Path:
            return write_secret(self.folder / name, text)

        return _Files(
            trust=self.authority.write(self.folder / "trust.pem"),
            other_trust=Authority("Somebody Else").write(self.folder / "other-trust.pem"),
            client=self.authority.issue(USER, hosts=()).write(self.folder / "client.pem"),
            password=secret("password", PASSWORD + "\n"),
            wrong_password=secret("wrong-password", "guess"),
            secret=secret("secret", SECRET),
            keytab=self.kdc.add(USER),
        )

    def _node_settings(self, server: Path) -> dict[str, str]:
        wrong_name = self.authority.issue("broker", hosts=["kafka.example"]).write(self.folder / "wrong-name.pem")
        expired = self.authority.issue("broker", validity=EXPIRED).write(self.folder / "expired.pem")
        users = {f"user_{name}": PASSWORD for name in (USER, *LIMITED)}
        plain = _jaas("org.apache.kafka.common.security.plain.PlainLoginModule", **users)
        scram = _jaas("org.apache.kafka.common.security.scram.ScramLoginModule")
        # For fetching the keys; and the login as a client that every listener's module makes is never used.
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.files.trust)}
        oauth = _jaas(f"{OAUTH_PACKAGE}.OAuthBearerLoginModule", unsecuredLoginStringClaim_sub="broker", **trust)
        keytab = str(self.kdc.add("kafka/localhost"))
        kerberos = _jaas(
            "com.sun.security.auth.module.Krb5LoginModule",
            useKeyTab="true",
            storeKey="true",
            keyTab=keytab,
            principal=f"kafka/localhost@{REALM}",
        )
        modules = {
            Way.PLAIN: plain,
            Way.SCRAM_256: scram,
            Way.SCRAM_512: scram,
            Way.OAUTH: oauth,
            Way.KERBEROS: kerberos,
        }
        settings = {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            "connections.max.reauth.ms": str(SESSION_MS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files.trust),
            "sasl.kerberos.service.name": "kafka",
            "sasl.oauthbearer.jwks.endpoint.url": self.tokens.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            f"listener.name.{WRONG_NAME.lower()}.ssl.keystore.location": str(wrong_name),
            f"listener.name.{OUT_OF_DATE.lower()}.ssl.keystore.location": str(expired),
            f"listener.name.{Way.MTLS.lower()}.ssl.client.auth": "required",
            # Short windows: a quota is felt, and forgotten, within seconds.
            "quota.window.num": "3",
        }
        offered = {**{name: (name,) for name in MECHANISMS}, IN_THE_CLEAR: (Way.PLAIN, Way.KERBEROS)}
        for name, ways in offered.items():
            prefix = f"listener.name.{name.lower()}."
            settings[prefix + "sasl.enabled.mechanisms"] = ",".join(MECHANISMS[way] for way in ways)
            for way in ways:
                settings[f"{prefix}{MECHANISMS[way].lower()}.sasl.jaas.config"] = modules[way]
        handler = f"listener.name.{Way.OAUTH.lower()}.oauthbearer.sasl.server.callback.handler.class"
        settings[handler] = f"{OAUTH_PACKAGE}.OAuthBearerValidatorCallbackHandler"
        return settings

    def bootstrap(self, way: str) -> str:
        """The address of a listener."""
        return f"localhost:{self._ports[way]}"

    @contextmanager
    def realm(self) -> Iterator[None]:
        """Inside, this process and those it starts find the realm."""
        before = {name: os.environ.get(name) for name in self.kdc.environment}
        os.environ.update(self.kdc.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def settings(self, way: Way, *, user: str = USER) -> dict[str, str]:
        """Our settings for a client that is let in that way."""
        files = self.files
        common = {"security.protocol": PROTOCOLS[way], "ssl.truststore.location": str(files.trust)}
        if way in MECHANISMS:
            common["sasl.mechanism"] = MECHANISMS[way]
        match way:
            case Way.TLS:
                return common
            case Way.MTLS:
                return common | {"ssl.keystore.location": str(files.client)}
            case Way.PLAIN | Way.SCRAM_256 | Way.SCRAM_512:
                return common | {"sasl.username": user, "sasl.password.file": str(files.password)}
            case Way.OAUTH:
                return common | {
                    "sasl.oauthbearer.token.endpoint.url": self.tokens.token_url,
                    "sasl.oauthbearer.client.id": user,
                    "sasl.oauthbearer.client.secret.file": str(files.secret),
                    "sasl.oauthbearer.truststore.location": str(files.trust),
                }
            case Way.KERBEROS:
                return common | {
                    "sasl.kerberos.keytab": str(files.keytab),
                    "sasl.kerberos.principal": f"{user}@{REALM}",
                }

    def allow(self, user: str, topic: str, *, prefix: bool = False) -> None:
        """Let a user write a topic, or all that begin so."""
        kind = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        binding = AclBinding(ResourceType.TOPIC, topic, kind, *_written_by(user))
        for done in self.cluster.admin.create_acls([binding]).values():
            _ = done.result(REQUEST_S)

    def forbid(self, user: str, topic: str) -> None:
        """Take back what `allow` gave."""
        found = AclBindingFilter(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *_written_by(user))
        for done in self.cluster.admin.delete_acls([found]).values():
            assert len(done.result(REQUEST_S)) == 1

    def change_password(self, user: str, password: str) -> None:
        """Give a user of SCRAM-SHA-512 another password; sessions that there are go on to their end."""
        rules = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        changed = UserScramCredentialUpsertion(user, rules, password.encode())
        for done in self.cluster.admin.alter_user_scram_credentials([changed]).values():
            _ = done.result(REQUEST_S)

    def limit(self, user: str, quota: str, value: float | None) -> None:
        """Set a quota of a user (`producer_byte_rate`, `request_percentage`), or with None take it away."""
        entry = AlterClientQuotasRequest.EntryData
        wanted = entry(
            entity=[entry.EntityData(entity_type="user", entity_name=user)],
            ops=[entry.OpData(key=quota, value=value or 0.0, remove=value is None)],
        )
        request = AlterClientQuotasRequest(entries=[wanted], validate_only=False)
        node = self.cluster.nodes[1].address
        answer = ask("127.0.0.1", node.port, request, AlterClientQuotasResponse, version=QUOTAS_VERSION)
        assert answer is not None
        assert [each.error_code for each in answer.entries] == [0]

    def close(self) -> None:
        """Stop everything and remove the folder."""
        self._stack.close()

    def __enter__(self) -> Self:
        """For `with`; everything runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.close()
