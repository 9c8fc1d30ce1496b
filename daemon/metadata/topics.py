"""Provides topic metadata in the form that the router's cores need."""

from ...producer.accumulator.partitioners import leaders_of
from ...producer.metadata.client import Metadata
from ...producer.protocol.error_codes import INVALID_TOPIC, TopicErrorClass, classify_topic_error, error_name
from ...wire.frames import PartitionInfo
from ..sessions.routing import TopicFacts


class TopicMetadata:
    """A stateless view of `metadata`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def want(self, topic: str) -> None:
        self._metadata.want(topic)

    def facts(self, topic: str) -> TopicFacts | None:
        """The facts of an existing topic; None while they are incomplete."""
        view = self._metadata.topic(topic)
        if (
            view is None
            or self.error(topic) is not None
            or sorted(view.partitions) != list(range(view.partition_count))
        ):
            return None
        settings = self._metadata.topic_settings(topic)
        return TopicFacts(
            topic,
            view.topic_id or b"",
            view.partition_count,
            leaders_of(self._metadata.cluster, view),
            min(len(found.replicas) for found in view.partitions.values()),
            None if settings is None else settings.message_bytes_max,
            None if settings is None else settings.min_insync_replicas,
        )

    def error(self, topic: str) -> str | None:
        """The error text if brokers reported, more than once, that the topic does not exist."""
        if self._metadata.topic_error(topic) is None:
            return None
        found = self._metadata.cluster.topic(topic)
        if found is None or classify_topic_error(found.code) is not TopicErrorClass.MISSING:
            return None
        return f"topic {topic} does not exist ({error_name(found.code)}), and allow_auto_create_topics is off"

    def forbidden(self, topic: str) -> str | None:
        """The error text if brokers do not authorize us to describe the topic."""
        found = self._metadata.cluster.topic(topic)
        if found is None or classify_topic_error(found.code) is not TopicErrorClass.REFUSED:
            return None
        return f"topic {topic} may not be described by us ({error_name(found.code)})"

    def forget(self, topic: str) -> None:
        """Stop requesting the topic until `want` is called for it again."""
        self._metadata.forget(topic)

    def invalid(self, topic: str) -> str | None:
        """The error text if a broker rejected the topic's name as invalid."""
        found = self._metadata.cluster.topic(topic)
        if found is None or found.code != INVALID_TOPIC:
            return None
        return f"no topic may be named {topic} ({error_name(found.code)})"

    def problem(self, topic: str) -> str | None:
        """Why the topic's metadata is missing, as text."""
        found = self._metadata.topic_error(topic)
        if found is not None:
            return f"brokers answer {found}"
        return self._metadata.problems.get("brokers")

    def partitions(self, topic: str) -> list[PartitionInfo] | None:
        view = self._metadata.topic(topic)
        if view is None or self.error(topic) is not None:
            return None
        return [
            PartitionInfo(index, found.leader, list(found.replicas), list(found.isr))
            for index, found in sorted(view.partitions.items())
        ]
