"""Topics made, deleted and changed; settings and producers told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

from kafka.protocol.admin.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.admin.transactions import DescribeProducersRequest, DescribeProducersResponse

from .errors import ErrorCode
from .node import NO_ID, Node
from .outcomes import Answer, Outcome
from .ports import Moment
from .topics import PARTITIONS_MAX, SETTINGS, SettingError, Topic, check_settings, name_is_legal

DESCRIBE_PRODUCERS_KEY: Final = 61
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
DEFAULT_SOURCE: Final = 5
TOPIC_SOURCE: Final = 1
STATIC_BROKER_SOURCE: Final = 4
LONG_KIND: Final = 5

_Created: TypeAlias = CreateTopicsResponse.CreatableTopicResult
_Deleted: TypeAlias = DeleteTopicsResponse.DeletableTopicResult
_Described: TypeAlias = DescribeConfigsResponse.DescribeConfigsResult
_Setting: TypeAlias = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
_Altered: TypeAlias = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_Producers: TypeAlias = DescribeProducersResponse.TopicResponse.PartitionResponse


class DeniedError(Exception):
    """An administrative request cannot be fulfilled."""

    def __init__(self, error: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.error = error
        self.why = why


def create_topics(node: Node, request: CreateTopicsRequest, moment: Moment) -> Outcome:
    """Serve CreateTopics, on whichever node is asked."""
    names = Counter(entry.name for entry in request.topics)
    answers: list[_Created] = []
    for entry in request.topics:
        try:
            if names[entry.name] > 1:
                raise DeniedError(ErrorCode.INVALID_REQUEST, "the topic is twice in the request")
            answers.append(_create(node, entry, only_check=request.validate_only, moment=moment))
        except DeniedError as denied:
            answers.append(
                _Created(name=entry.name, topic_id=NO_ID, error_code=denied.error, error_message=denied.why, configs=[])
            )
    return Answer(CreateTopicsResponse(topics=answers))


def _create(node: Node, entry: CreateTopicsRequest.CreatableTopic, *, only_check: bool, moment: Moment) -> _Created:
    if not name_is_legal(entry.name):
        raise DeniedError(ErrorCode.INVALID_TOPIC, "a name has 1 to 249 of a-z A-Z 0-9 . _ -")
    if entry.assignments:
        raise DeniedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are placed by this broker's own rule")
    partitions = node.limits.default_partitions if entry.num_partitions == -1 else entry.num_partitions
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise DeniedError(ErrorCode.INVALID_PARTITIONS, f"1 to {PARTITIONS_MAX} partitions")
    if entry.replication_factor not in {-1, 1}:
        raise DeniedError(ErrorCode.INVALID_REPLICATION_FACTOR, "this broker keeps one replica")
    settings = _settings({item.name: item.value for item in entry.configs})
    if node.topic(entry.name) is not None:
        raise DeniedError(ErrorCode.TOPIC_ALREADY_EXISTS, "the topic exists")
    topic_id = NO_ID
    if not only_check:
        topic = node.create_topic(entry.name, partitions, settings, moment)
        if topic is None:
            raise DeniedError(ErrorCode.TOPIC_ALREADY_EXISTS, "another node has just made the topic")
        topic_id = topic.id
    return _Created(
        name=entry.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            _Created.CreatableTopicConfigs(
                name=item.name,
                value=item.value,
                read_only=False,
                config_source=item.config_source,
                is_sensitive=False,
            )
            for item in _topic_settings(dict(settings))
        ],
    )


def _settings(asked: dict[str, str | None]) -> tuple[tuple[str, str], ...]:
    try:
        return check_settings({name: value for name, value in asked.items() if value is not None})
    except SettingError as bad:
        raise DeniedError(ErrorCode.INVALID_CONFIG, str(bad)) from bad


def delete_topics(node: Node, request: DeleteTopicsRequest, version: int, moment: Moment) -> Outcome:
    """Serve DeleteTopics, by name or by id."""
    answers: list[_Deleted] = []
    if version < 6:
        names = request.topic_names
        answers += [_delete(node, node.topic(name), _Deleted(name=name, topic_id=NO_ID), moment) for name in names]
    else:
        for entry in request.topics:
            topic = node.topic(entry.name) if entry.name is not None else node.topic_by_id(entry.topic_id)
            answers.append(_delete(node, topic, _Deleted(name=entry.name, topic_id=entry.topic_id), moment))
    return Answer(DeleteTopicsResponse(responses=answers))


def _delete(node: Node, topic: Topic | None, answer: _Deleted, moment: Moment) -> _Deleted:
    if topic is None or not node.delete_topic(topic, moment):
        named = answer.name is not None
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if named else ErrorCode.UNKNOWN_TOPIC_ID
        return answer
    answer.name, answer.topic_id, answer.error_code = topic.name, topic.id, ErrorCode.NONE
    return answer


def describe_configs(node: Node, request: DescribeConfigsRequest) -> Outcome:
    """Serve DescribeConfigs for topics and for this node."""
    return Answer(DescribeConfigsResponse(results=[_describe(node, entry) for entry in request.resources]))


def _describe(node: Node, entry: DescribeConfigsRequest.DescribeConfigsResource) -> _Described:
    answer = _Described(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        configs=[],
    )
    if entry.resource_type == TOPIC_RESOURCE:
        topic = node.topic(entry.resource_name)
        if topic is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        found: Iterable[_Setting] = _topic_settings(dict(topic.settings))
    elif entry.resource_type == BROKER_RESOURCE and entry.resource_name in {"", str(node.node_id)}:
        found = _broker_settings(node)
    else:
        answer.error_code, answer.error_message = ErrorCode.INVALID_REQUEST, "topics and this node only"
        return answer
    wanted = entry.configuration_keys
    answer.configs = [item for item in found if not wanted or item.name in wanted]
    return answer


def _topic_settings(own: dict[str, str]) -> list[_Setting]:
    return [
        _Setting(
            name=name,
            value=own.get(name, setting.default),
            read_only=False,
            is_default=name not in own,
            config_source=TOPIC_SOURCE if name in own else DEFAULT_SOURCE,
            is_sensitive=False,
            synonyms=[],
            config_type=setting.kind,
            documentation=None,
        )
        for name, setting in SETTINGS.items()
    ]


def _broker_settings(node: Node) -> list[_Setting]:
    values = {
        "auto.create.topics.enable": (str(node.limits.auto_create_topics).lower(), 1),
        "default.replication.factor": ("1", 3),
        "num.partitions": (str(node.limits.default_partitions), 3),
        "producer.id.expiration.ms": (str(node.limits.producer_id_expiration_ms), 3),
    }
    return [
        _Setting(
            name=name,
            value=value,
            read_only=True,
            is_default=False,
            config_source=STATIC_BROKER_SOURCE,
            is_sensitive=False,
            synonyms=[],
            config_type=kind,
            documentation=None,
        )
        for name, (value, kind) in values.items()
    ]


def alter_configs(node: Node, request: IncrementalAlterConfigsRequest, moment: Moment) -> Outcome:
    """Serve IncrementalAlterConfigs for topics: set a value, or go back to the default."""
    answers: list[_Altered] = []
    for entry in request.resources:
        answer = _Altered(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=entry.resource_type,
            resource_name=entry.resource_name,
        )
        try:
            _alter(node, entry, only_check=request.validate_only, moment=moment)
        except DeniedError as denied:
            answer.error_code, answer.error_message = denied.error, denied.why
        answers.append(answer)
    return Answer(IncrementalAlterConfigsResponse(responses=answers))


def _alter(
    node: Node, entry: IncrementalAlterConfigsRequest.AlterConfigsResource, *, only_check: bool, moment: Moment
) -> None:
    if entry.resource_type != TOPIC_RESOURCE:
        raise DeniedError(ErrorCode.INVALID_REQUEST, "only the settings of topics can be changed")
    topic = node.topic(entry.resource_name)
    if topic is None:
        raise DeniedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic")
    values: dict[str, str | None] = dict(topic.settings)
    for item in entry.configs:
        match item.config_operation, item.value:
            case 0, str(value):
                values[item.name] = value
            case 1, _:
                values[item.name] = SETTINGS[item.name].default if item.name in SETTINGS else ""
            case _:
                raise DeniedError(ErrorCode.INVALID_CONFIG, f"{item.name}: set and delete only")
    settings = _settings(values)
    if not only_check and not node.alter_topic(topic, settings, moment):
        raise DeniedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has just been deleted")


def describe_producers(node: Node, request: DescribeProducersRequest) -> Outcome:
    """Serve DescribeProducers: what the logs of this node know of their producers."""
    return Answer(
        DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=entry.name,
                    partitions=[_producers(node, entry.name, index) for index in entry.partition_indexes],
                )
                for entry in request.topics
            ]
        )
    )


def _producers(node: Node, name: str, index: int) -> _Producers:
    topic = node.topic(name)
    found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else node.partition(topic, index)
    fault = node.faults.for_partition(DESCRIBE_PRODUCERS_KEY, name, index)
    if fault is not None:
        found = fault.error
    if isinstance(found, ErrorCode):
        return _Producers(partition_index=index, error_code=found, error_message=None, active_producers=[])
    return _Producers(
        partition_index=index,
        error_code=ErrorCode.NONE,
        error_message=None,
        active_producers=[
            _Producers.ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last.last_sequence,
                last_timestamp=producer.last.timestamp,
                coordinator_epoch=-1,
                current_txn_start_offset=-1,
            )
            for producer_id, producer in found.log.producers.snapshot()
        ],
    )
