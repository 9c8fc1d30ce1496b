"""Describes and creates one topic: over any broker that answers, or over the controller where Kafka requires it."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from ..config.bootstrap import parse_bootstrap
from ..config.model import KafkaSettings
from ..producer.protocol.error_codes import error_name
from ..producer.protocol.responses import KafkaRequest
from .brokers import BrokerConnection, BrokerConnections

TALK_S: Final = 30.0
_TOPIC_RESOURCE: Final = 2
_UNKNOWN_TOPIC: Final = 3


class AdminError(Exception):
    """A request failed. The message gives the reason."""


class TopicDescription(NamedTuple):
    """An existing topic, and the requested ones of its settings."""

    partitions: int
    replication_factor: int
    settings: dict[str, str | None]


class TopicAdmin:
    """Sends requests to the cluster of these settings for at most `TALK_S` seconds."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._servers = parse_bootstrap(kafka.bootstrap_servers)
        self._connections = BrokerConnections(kafka, TALK_S)
        self._newest: BrokerConnection | None = None
        self._controller: tuple[str, int] | None = None

    def close(self) -> None:
        self._connections.close()

    def describe(self, topic: str, settings: list[str]) -> TopicDescription | None:
        """Return the topic; None when it does not exist.

        Raises:
            AdminError: no broker answers, or it refuses.
        """
        broker = self._any_broker()
        asked = MetadataRequest.MetadataRequestTopic(name=topic)
        metadata = self._ask(broker, MetadataRequest(topics=[asked], allow_auto_topic_creation=False))
        brokers = {broker.node_id: (str(broker.host), int(broker.port)) for broker in metadata.brokers}
        self._controller = brokers.get(metadata.controller_id)
        found = metadata.topics[0]
        if found.error_code == _UNKNOWN_TOPIC:
            return None
        if found.error_code:
            raise AdminError(f"topic {topic}: {error_name(found.error_code)}")
        replicas = [len(partition.replica_nodes) for partition in found.partitions]
        resource = DescribeConfigsRequest.DescribeConfigsResource
        row = resource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=settings)
        request = DescribeConfigsRequest(resources=[row], include_synonyms=False, include_documentation=False)
        described = self._ask(broker, cast("KafkaRequest", request)).results[0]
        if described.error_code:
            raise AdminError(f"settings of topic {topic}: {error_name(described.error_code)}")
        values = {str(entry.name): entry.value for entry in described.configs}
        return TopicDescription(len(found.partitions), min(replicas, default=0), values)

    def create(self, topic: str, partitions: int, replication_factor: int, settings: Mapping[str, str]) -> None:
        """Create the topic; call `describe` first. -1: the brokers' default.

        Raises:
            AdminError: with the broker's message.
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
        assert self._newest is not None, "`describe` is called first"
        broker = self._newest if self._controller is None else self._connect(self._controller)
        request = CreateTopicsRequest(topics=[row], timeout_ms=int(TALK_S * 1_000), validate_only=False)
        answer = self._ask(broker, cast("KafkaRequest", request)).topics[0]
        if answer.error_code:
            words = getattr(answer, "error_message", None)
            raise AdminError(f"topic {topic}: {error_name(answer.error_code)}" + (f": {words}" if words else ""))

    def _any_broker(self) -> BrokerConnection:
        problems: list[str] = []
        for address in self._servers:
            try:
                return self._connect(address)
            except AdminError as error:
                problems.append(str(error))
        raise AdminError("; ".join(problems))

    def _connect(self, address: tuple[str, int]) -> BrokerConnection:
        made = self._newest = self._connections.connect(address)
        self._connections.run(lambda each: each is not made or each.is_ready)
        if not made.is_ready:
            raise AdminError(f"{made.server}: {made.lost or made.connection.last_error or 'no answer'}")
        return made

    def _ask(self, broker: BrokerConnection, request: KafkaRequest) -> Any:  # noqa: ANN401 - a generated class
        """Send a request and return its response. Raise AdminError when there is none."""
        if not broker.send(request):
            raise AdminError(f"the broker takes no version of {type(request).__name__} that we speak")
        self._connections.run(lambda each: each is not broker or each.response is not None)
        if broker.response is None:
            raise AdminError(broker.lost or "the broker does not answer")
        return broker.response
