"""Requests and reads settings of topics and brokers with DescribeConfigs."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse

_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_EXPIRATION_KEY: Final = "producer.id.expiration.ms"
_BYTES_MAX_KEY: Final = "max.message.bytes"
_INSYNC_KEY: Final = "min.insync.replicas"
_TIMESTAMP_KEY: Final = "message.timestamp.type"
_UNCLEAN_KEY: Final = "unclean.leader.election.enable"
_TOPIC_KEYS: Final = (_BYTES_MAX_KEY, _INSYNC_KEY, _TIMESTAMP_KEY, _UNCLEAN_KEY)


class TopicSettings(NamedTuple):
    """A topic's settings as reported by the brokers; None: not reported."""

    message_bytes_max: int | None
    min_insync_replicas: int | None
    timestamp_type: str | None
    unclean_election: bool | None


def topic_config_request(topics: Iterable[str]) -> DescribeConfigsRequest:
    """Requests the settings that `topic_settings_of` reads."""
    return _describe(_TOPIC_RESOURCE, topics, _TOPIC_KEYS)


def broker_config_request(node: int) -> DescribeConfigsRequest:
    """Requests the setting that `producer_id_expiration_ms` reads. Only the broker `node` itself can answer it."""
    return _describe(_BROKER_RESOURCE, [str(node)], [_EXPIRATION_KEY])


def topic_settings_of(row: DescribeConfigsResponse.DescribeConfigsResult) -> TopicSettings:
    """The settings in a topic's row of a response."""
    values = _values(row)
    unclean = values.get(_UNCLEAN_KEY)
    return TopicSettings(
        message_bytes_max=_number(values.get(_BYTES_MAX_KEY)),
        min_insync_replicas=_number(values.get(_INSYNC_KEY)),
        timestamp_type=values.get(_TIMESTAMP_KEY),
        unclean_election=None if unclean is None else unclean == "true",
    )


def producer_id_expiration_ms(row: DescribeConfigsResponse.DescribeConfigsResult) -> int | None:
    """`producer.id.expiration.ms` in a broker's row of a response; None if not reported."""
    return _number(_values(row).get(_EXPIRATION_KEY))


def _describe(kind: int, names: Iterable[str], keys: Iterable[str]) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    rows = [resource(resource_type=kind, resource_name=name, configuration_keys=list(keys)) for name in names]
    return DescribeConfigsRequest(resources=rows, include_synonyms=False, include_documentation=False)


def _values(row: DescribeConfigsResponse.DescribeConfigsResult) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in row.configs}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
