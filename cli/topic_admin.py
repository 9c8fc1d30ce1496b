"""One topic, looked at and made: a conversation with whichever broker answers, and with the controller where it must be that one."""

import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from ..config.bootstrap import parse_bootstrap
from ..config.model import KafkaSettings
from ..producer.network.connection import KafkaConnection
from ..producer.network.resolver import Resolver
from ..producer.network.socket_options import control_options
from ..producer.protocol.error_codes import error_name
from ..producer.protocol.responses import KafkaRequest, ResponseOrBytes
from ..runtime.clock import monotonic
from ..runtime.loop import Loop

TALK_S: Final = 30.0
_TOPIC_RESOURCE: Final = 2
_UNKNOWN_TOPIC: Final = 3
_ATTEMPTS: Final = 4


class AdminError(Exception):
    """The text says what could not be done, and why."""


class TopicDescription(NamedTuple):
    """A topic that is there, and those of its settings that were asked for."""

    partitions: int
    replication_factor: int
    settings: dict[str, str | None]


class _BrokerConnection:
    """One connection, asked one question at a time."""

    def __init__(self, loop: Loop, resolver: Resolver, kafka: KafkaSettings, host: str, port: int) -> None:
        self._loop = loop
        self._answer: ResponseOrBytes | None = None
        self._lost: str | None = None
        self._ready = False
        self._attempts = 0
        chance = random.Random()  # noqa: S311 - jitter
        self.connection: KafkaConnection[None] = KafkaConnection(
            loop, resolver, host, port, options=control_options(kafka), owner=self, rng=chance.random
        )

    def connection_ready(self, connection: KafkaConnection[None]) -> None:
        assert connection is self.connection, "it has one"
        self._ready = True

    def connection_answered(self, connection: KafkaConnection[None], tag: None, answer: ResponseOrBytes) -> None:
        assert (connection, tag) == (self.connection, None), "one question each"
        self._answer = answer

    def connection_lost(self, connection: KafkaConnection[None], tags: list[None], reason: str) -> None:
        self._attempts += 1
        if connection.authentication_failed or self._attempts == _ATTEMPTS or tags:
            self._lost = reason
        else:
            connection.connect()

    def connect(self, until: float) -> str | None:
        """Why it cannot be had; None: it is ready."""
        self.connection.connect()
        self._run(until, wants_answer=False)
        return None if self._ready else self._lost or self.connection.last_error or "no answer"

    def ask(self, request: KafkaRequest, until: float) -> Any:  # noqa: ANN401 - a generated class
        """Its answer.

        Raises:
            AdminError: there is none.
        """
        self._answer = None
        if self.connection.send(request, None) is None:
            raise AdminError(f"the broker takes no version of {type(request).__name__} that we speak")
        self._run(until, wants_answer=True)
        if self._answer is None:
            raise AdminError(self._lost or "the broker does not answer")
        return self._answer

    def _run(self, until: float, *, wants_answer: bool) -> None:
        now = monotonic()
        while now < until and self._lost is None and not (self._answer is not None if wants_answer else self._ready):
            self.connection.tick(now)
            due = self.connection.next_deadline()
            _ = self._loop.run_once(until if due is None else min(due, until))
            now = monotonic()


class TopicAdmin:
    """Speaks to the cluster of these settings for at most `TALK_S` seconds. A context manager."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._loop = Loop()
        self._resolver = Resolver(self._loop)
        self._until = monotonic() + TALK_S
        self._talks: list[_BrokerConnection] = []
        self._controller: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for talk in self._talks:
            _ = talk.connection.close()
        self._resolver.close()
        self._loop.close()

    def describe(self, topic: str, settings: list[str]) -> TopicDescription | None:
        """The topic, None where there is none.

        Raises:
            AdminError: no broker says.
        """
        talk = self._any_broker()
        asked = MetadataRequest.MetadataRequestTopic(name=topic)
        told = talk.ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=False), self._until)
        brokers = {broker.node_id: (str(broker.host), int(broker.port)) for broker in told.brokers}
        self._controller = brokers.get(told.controller_id)
        found = told.topics[0]
        if found.error_code == _UNKNOWN_TOPIC:
            return None
        if found.error_code:
            raise AdminError(f"topic {topic}: {error_name(found.error_code)}")
        replicas = [len(partition.replica_nodes) for partition in found.partitions]
        resource = DescribeConfigsRequest.DescribeConfigsResource
        row = resource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=settings)
        request = DescribeConfigsRequest(resources=[row], include_synonyms=False, include_documentation=False)
        described = talk.ask(cast("KafkaRequest", request), self._until).results[0]
        if described.error_code:
            raise AdminError(f"settings of topic {topic}: {error_name(described.error_code)}")
        values = {str(entry.name): entry.value for entry in described.configs}
        return TopicDescription(len(found.partitions), min(replicas, default=0), values)

    def create(self, topic: str, partitions: int, replication_factor: int, settings: Mapping[str, str]) -> None:
        """Make the topic; call `describe` first. -1: as the brokers do by default.

        Raises:
            AdminError: it was not made, in the broker's words.
        """
        kind = CreateTopicsRequest.CreatableTopic
        configs = [kind.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        row = kind(
            name=topic,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=configs,
        )
        talk = self._talks[-1] if self._controller is None else self._connect(*self._controller)
        request = CreateTopicsRequest(topics=[row], timeout_ms=int(TALK_S * 1_000), validate_only=False)
        answer = talk.ask(cast("KafkaRequest", request), self._until).topics[0]
        if answer.error_code:
            words = getattr(answer, "error_message", None)
            raise AdminError(f"topic {topic}: {error_name(answer.error_code)}" + (f": {words}" if words else ""))

    def _any_broker(self) -> _BrokerConnection:
        problems: list[str] = []
        for host, port in parse_bootstrap(self._kafka.bootstrap_servers):
            try:
                return self._connect(host, port)
            except AdminError as error:
                problems.append(str(error))
        raise AdminError("; ".join(problems))

    def _connect(self, host: str, port: int) -> _BrokerConnection:
        talk = _BrokerConnection(self._loop, self._resolver, self._kafka, host, port)
        self._talks.append(talk)
        problem = talk.connect(self._until)
        if problem is not None:
            raise AdminError(f"{host}:{port}: {problem}")
        return talk
